"""From a step to arrays."""

import pickle

import numpy as np

from nanobatch.engine.batch import ForwardBatch, build_forward_batch
from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.scheduler_output import SchedulerOutput
from nanobatch.engine.sequence import Sequence
from nanobatch.request import SamplingParams


def scheduler(*, budget: int = 64, block_size: int = 4) -> Scheduler:
    manager = BlockManager(32, block_size)
    return Scheduler(manager, max_num_seqs=8, max_num_batched_tokens=budget)


def add(target: Scheduler, seq_id: int, prompt: list[int]) -> Sequence:
    seq = Sequence(seq_id, np.array(prompt, dtype=np.int32), params=SamplingParams(), max_tokens=20)
    target.add(seq)
    return seq


def next_step(target: Scheduler) -> tuple[SchedulerOutput, ForwardBatch]:
    output = target.schedule()
    assert output is not None
    return output, build_forward_batch(output)


def complete(target: Scheduler, output: SchedulerOutput, tokens: list[int]) -> None:
    target.complete(output, np.array(tokens, np.int32), is_nan=np.zeros(len(tokens), np.bool_))


def test_prompts_are_laid_end_to_end() -> None:
    target = scheduler()
    add(target, 0, [10, 11, 12, 13, 14])
    add(target, 1, [20, 21])
    _, batch = next_step(target)
    assert batch.input_ids.tolist() == [10, 11, 12, 13, 14, 20, 21]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert batch.query_start_loc.tolist() == [0, 5, 7]
    assert batch.seq_lens.tolist() == [5, 2]
    assert batch.block_tables.tolist() == [[0, 1], [2, 0]]
    assert batch.slot_mapping.tolist() == [0, 1, 2, 3, 4, 8, 9]
    assert batch.logits_indices.tolist() == [4, 6]
    assert batch.logits_rows.tolist() == [0, 1]
    assert batch.row_ids.tolist() == [0, 1]
    assert [assignment.slot for assignment in batch.slot_assignments] == [0, 1]
    assert (batch.num_tokens, batch.num_seqs, batch.num_prefill_tokens) == (7, 2, 7)


def test_arrays_have_the_types_that_the_runner_expects() -> None:
    target = scheduler()
    add(target, 0, [1, 2, 3])
    _, batch = next_step(target)
    int32_arrays = (
        batch.input_ids,
        batch.last_token_indices,
        batch.last_token_rows,
        batch.positions,
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_tables,
        batch.row_ids,
        batch.logits_indices,
        batch.logits_rows,
    )
    assert {array.dtype for array in int32_arrays} == {np.dtype(np.int32)}
    assert batch.slot_mapping.dtype == np.int64


def test_decoding_sequences_stand_before_chunks() -> None:
    target = scheduler()
    add(target, 0, [10, 11, 12])
    output, _ = next_step(target)
    complete(target, output, [99])
    add(target, 1, [20, 21])
    _, batch = next_step(target)
    assert batch.input_ids.tolist() == [99, 20, 21]
    assert batch.positions.tolist() == [3, 0, 1]
    assert batch.query_start_loc.tolist() == [0, 1, 3]
    assert batch.seq_lens.tolist() == [4, 2]
    assert batch.logits_indices.tolist() == [0, 2]
    assert batch.last_token_indices.tolist() == []
    assert [assignment.slot for assignment in batch.slot_assignments] == [1]
    assert batch.num_prefill_tokens == 2


def test_unread_token_is_taken_from_the_slot() -> None:
    target = scheduler()
    add(target, 0, [10, 11, 12])
    first_output, _ = next_step(target)
    _, batch = next_step(target)
    assert batch.input_ids.tolist() == [0]
    assert batch.last_token_indices.tolist() == [0]
    assert batch.last_token_rows.tolist() == [0]
    assert batch.positions.tolist() == [3]
    complete(target, first_output, [99])
    _, batch = next_step(target)
    assert batch.last_token_indices.tolist() == [0], "the second token is still unread"


def test_unfinished_prompt_samples_nothing() -> None:
    target = scheduler(budget=4)
    add(target, 0, [10, 11, 12, 13, 14, 15])
    output, batch = next_step(target)
    assert batch.logits_indices.tolist() == []
    assert batch.logits_rows.tolist() == []
    assert batch.seq_lens.tolist() == [4]
    complete(target, output, [])
    _, batch = next_step(target)
    assert batch.input_ids.tolist() == [14, 15]
    assert batch.positions.tolist() == [4, 5]
    assert batch.logits_indices.tolist() == [1]
    assert batch.slot_assignments == ()


def test_batch_can_be_sent_to_another_process() -> None:
    target = scheduler()
    add(target, 0, [1, 2, 3])
    _, batch = next_step(target)
    again = pickle.loads(pickle.dumps(batch))
    assert again.input_ids.tolist() == batch.input_ids.tolist()
    assert again.slot_assignments[0].prompt_token_ids.tolist() == [1, 2, 3]
