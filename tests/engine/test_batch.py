"""From a step to arrays."""

import pickle

import numpy as np

from nanobatch.engine.batch import build_batch
from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.scheduler_output import SchedulerOutput
from nanobatch.engine.sequence import Sequence
from nanobatch.engine.step_batch import DecodeBatch, PrefillBatch
from nanobatch.request import SamplingParams
from tests.engine.fake_model import ending_by_tokens, sampled_tokens


def scheduler(*, budget: int = 64, block_size: int = 4) -> Scheduler:
    manager = BlockManager(32, block_size)
    return Scheduler(manager, max_num_seqs=8, max_num_batched_tokens=budget)


def add(target: Scheduler, seq_id: int, prompt: list[int], *, max_tokens: int = 20) -> Sequence:
    seq = Sequence(
        seq_id, np.array(prompt, dtype=np.int32), params=SamplingParams(), max_tokens=max_tokens
    )
    target.add(seq)
    return seq


def next_prefill(target: Scheduler) -> tuple[SchedulerOutput, PrefillBatch]:
    output = target.schedule()
    assert output is not None
    batch = build_batch(output)
    assert isinstance(batch, PrefillBatch)
    return output, batch


def next_decode(target: Scheduler, *, num_steps: int = 1) -> tuple[SchedulerOutput, DecodeBatch]:
    target.num_decode_steps = num_steps
    output = target.schedule()
    assert output is not None
    batch = build_batch(output)
    assert isinstance(batch, DecodeBatch)
    return output, batch


def complete(target: Scheduler, output: SchedulerOutput, *steps: list[int | None]) -> None:
    target.complete(output, sampled_tokens([*steps]), find_ending=ending_by_tokens)


def test_prompts_are_laid_end_to_end() -> None:
    target = scheduler()
    add(target, 0, [10, 11, 12, 13, 14])
    add(target, 1, [20, 21])
    _, batch = next_prefill(target)
    assert batch.input_ids.tolist() == [10, 11, 12, 13, 14, 20, 21]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert batch.query_start_loc.tolist() == [0, 5, 7]
    assert batch.seq_lens.tolist() == [5, 2]
    assert batch.block_tables.block_ids.tolist() == [0, 1, 2]
    assert batch.block_tables.starts.tolist() == [0, 2, 3]
    assert batch.slot_mapping.tolist() == [0, 1, 2, 3, 4, 8, 9]
    assert batch.logits_indices.tolist() == [4, 6]
    assert batch.logits_rows.tolist() == [0, 1]
    assert batch.row_ids.tolist() == [0, 1]
    assert [assignment.slot for assignment in batch.slot_assignments] == [0, 1]
    assert (batch.num_tokens, batch.num_seqs) == (7, 2)


def test_arrays_have_the_types_that_the_runner_expects() -> None:
    target = scheduler()
    add(target, 0, [1, 2, 3])
    _, batch = next_prefill(target)
    _, decode = next_decode(target)
    int32_arrays = (
        batch.input_ids,
        batch.positions,
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_tables.block_ids,
        batch.block_tables.starts,
        batch.row_ids,
        batch.logits_indices,
        batch.logits_rows,
        decode.row_ids,
        decode.positions,
        decode.num_steps_of_rows,
        decode.block_tables.block_ids,
        decode.block_tables.starts,
    )
    assert {array.dtype for array in int32_arrays} == {np.dtype(np.int32)}
    assert batch.slot_mapping.dtype == batch.slot_copies.dtype == np.int64
    assert batch.slot_copies.shape == (2, 0)


def test_decoding_sequences_stand_in_the_order_of_their_admission() -> None:
    target = scheduler()
    add(target, 0, [10, 11, 12])
    add(target, 1, [20, 21])
    next_prefill(target)
    _, batch = next_decode(target)
    assert batch.row_ids.tolist() == [0, 1]
    assert batch.positions.tolist() == [3, 2]
    assert batch.num_steps_of_rows.tolist() == [1, 1]
    assert batch.block_tables.block_ids.tolist() == [0, 1]
    assert batch.block_tables.starts.tolist() == [0, 1, 2]
    assert (batch.num_steps, batch.num_seqs, batch.num_tokens) == (1, 2, 2)


def test_blocks_of_all_steps_of_a_chunk_are_in_its_tables() -> None:
    target = scheduler()
    add(target, 0, [10, 11, 12])
    add(target, 1, [20, 21], max_tokens=4)
    next_prefill(target)
    _, batch = next_decode(target, num_steps=5)
    assert batch.num_steps_of_rows.tolist() == [5, 3]
    assert batch.num_steps == 5
    assert batch.block_tables.block_ids.tolist() == [0, 2, 1, 3]
    assert batch.block_tables.starts.tolist() == [0, 2, 4]
    assert batch.num_tokens == 8
    _, batch = next_decode(target, num_steps=5)
    assert batch.row_ids.tolist() == [0]
    assert batch.positions.tolist() == [8]


def test_a_chunk_is_no_longer_than_the_longest_rest() -> None:
    target = scheduler()
    add(target, 0, [10, 11, 12], max_tokens=3)
    add(target, 1, [20, 21], max_tokens=4)
    next_prefill(target)
    _, batch = next_decode(target, num_steps=5)
    assert batch.num_steps_of_rows.tolist() == [2, 3]
    assert batch.num_steps == 3
    assert target.schedule() is None


def test_unfinished_prompt_samples_nothing() -> None:
    target = scheduler(budget=4)
    add(target, 0, [10, 11, 12, 13, 14, 15])
    output, batch = next_prefill(target)
    assert batch.logits_indices.tolist() == []
    assert batch.logits_rows.tolist() == []
    assert batch.seq_lens.tolist() == [4]
    complete(target, output, [])
    _, batch = next_prefill(target)
    assert batch.input_ids.tolist() == [14, 15]
    assert batch.positions.tolist() == [4, 5]
    assert batch.logits_indices.tolist() == [1]
    assert batch.slot_assignments == ()


def test_beginnings_of_blocks_are_copied_from_where_they_were_computed() -> None:
    manager = BlockManager(32, 4, min_copied_tokens=1)
    target = Scheduler(manager, max_num_seqs=8, max_num_batched_tokens=64)
    add(target, 0, [1, 2, 3, 4, 5, 6, 7, 8])  # blocks 0 and 1
    add(target, 1, [1, 2, 3, 4, 5, 9, 9, 9])  # block 2: one token of block 1
    add(target, 2, [1, 2, 3, 4, 5, 9, 9, 8])  # block 3: three of block 2, the first of block 1
    _, batch = next_prefill(target)
    assert batch.slot_copies.tolist() == [[4, 4, 9, 10], [8, 12, 13, 14]]
    assert batch.positions.tolist() == [*range(8), 5, 6, 7, 7]
    assert batch.slot_mapping.tolist() == [*range(8), 9, 10, 11, 15]
    assert pickle.loads(pickle.dumps(batch)).slot_copies.tolist() == batch.slot_copies.tolist()
    assert target.stats().num_cached_prompt_tokens == 5 + 7


def test_batch_can_be_sent_to_another_process() -> None:
    target = scheduler()
    add(target, 0, [1, 2, 3])
    _, batch = next_prefill(target)
    again = pickle.loads(pickle.dumps(batch))
    assert again.input_ids.tolist() == batch.input_ids.tolist()
    assert again.slot_assignments[0].prompt_token_ids.tolist() == [1, 2, 3]
    _, decode = next_decode(target)
    again = pickle.loads(pickle.dumps(decode))
    assert again.block_tables.block_ids.tolist() == [0]
