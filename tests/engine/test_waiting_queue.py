"""In which order sequences are admitted."""

import random
from itertools import pairwise

import numpy as np

from nanobatch.engine.sequence import Sequence, SequenceStatus
from nanobatch.engine.waiting_queue import WaitingQueue
from nanobatch.request import SamplingParams

PRIOR = 100
BLOCK_SIZE = 4


def sequence(
    seq_id: int,
    max_tokens: int = PRIOR,
    *,
    is_known: bool = True,
    priority: int = 0,
    prompt: list[int] | None = None,
) -> Sequence:
    return Sequence(
        seq_id,
        np.array(prompt or [1, 1, 1], dtype=np.int32),
        params=SamplingParams(ignore_eos=is_known),
        max_tokens=max_tokens,
        priority=priority,
    )


def queue_of(*seqs: Sequence, block_size: int | None = BLOCK_SIZE) -> WaitingQueue:
    queue = WaitingQueue(PRIOR, block_size=block_size)
    for seq in seqs:
        queue.push(seq)
    return queue


def take_all(queue: WaitingQueue, *, num_running: int) -> list[int]:
    order = []
    while (seq := queue.peek(num_running=num_running)) is not None:
        queue.pop(seq)
        order.append(seq.seq_id)
        seq.status = SequenceStatus.RUNNING
        queue.check_integrity()
    return order


def beginning(name: str, num_blocks: int = 1) -> list[int]:
    """Return whole blocks that are equal for equal names only."""
    return [ord(name)] * (num_blocks * BLOCK_SIZE)


def test_the_longest_of_the_last_wave_go_first() -> None:
    lengths = [50, 400, 120, 400, 99]
    queue = queue_of(*(sequence(seq_id, length) for seq_id, length in enumerate(lengths)))
    assert take_all(queue, num_running=3) == [1, 3, 2, 4, 0]


def test_while_more_wait_sequences_go_as_they_came() -> None:
    lengths = [50, 400, 120, 500, 99]
    queue = queue_of(*(sequence(seq_id, length) for seq_id, length in enumerate(lengths)))
    assert take_all(queue, num_running=1) == [0, 1, 2, 3, 4]
    queue = queue_of(*(sequence(seq_id, length) for seq_id, length in enumerate(lengths)))
    assert take_all(queue, num_running=2) == [0, 3, 1, 2, 4], "four are no more than twice two"


def test_while_more_will_come_the_last_wave_has_not_begun() -> None:
    seqs = [sequence(seq_id, length) for seq_id, length in enumerate([50, 400, 120])]
    queue = queue_of(*seqs)
    queue.expects_more = True
    assert queue.peek(num_running=9) is seqs[0]
    queue.expects_more = False
    assert take_all(queue, num_running=9) == [1, 2, 0]


def test_an_unknown_length_counts_as_the_prior() -> None:
    queue = queue_of(
        sequence(0, 10, is_known=False),
        sequence(1, PRIOR - 1),
        sequence(2, 4_000, is_known=False),
        sequence(3, PRIOR + 1),
    )
    assert take_all(queue, num_running=4) == [3, 0, 2, 1]


def test_priority_stands_above_length_and_arrival() -> None:
    for num_running in (0, 9):
        queue = queue_of(
            sequence(0, 900), sequence(1, 10, priority=5), sequence(2, 20, priority=-1)
        )
        assert take_all(queue, num_running=num_running) == [1, 0, 2]


def test_a_returned_sequence_goes_before_all_others() -> None:
    queue = queue_of(sequence(0, priority=9))
    queue.push_front(sequence(1))
    queue.push_front(sequence(2))
    assert take_all(queue, num_running=0) == [2, 1, 0]


def test_what_finishes_while_it_waits_is_gone() -> None:
    seqs = [sequence(seq_id) for seq_id in range(4)]
    queue = queue_of(*seqs[:3])
    queue.push_front(seqs[3])
    for seq_id in (0, 3):
        queue.discard(seqs[seq_id])
        queue.check_integrity()
    assert (len(queue), queue.mean_prompt_tokens) == (2, 3.0)
    assert take_all(queue, num_running=0) == [1, 2]
    assert (len(queue), queue.mean_prompt_tokens) == (0, 0.0)


def test_the_queue_does_not_grow_with_what_has_passed_through() -> None:
    rng = random.Random(0)
    queue = WaitingQueue(PRIOR, block_size=BLOCK_SIZE)
    for seq_id in range(10_000):
        priority = rng.randint(0, 3) if seq_id < 5_000 else 0
        queue.push(sequence(seq_id, rng.randint(1, 500), priority=priority))
        if seq_id >= 10:
            seq = queue.peek(num_running=rng.choice([0, 1, 100]))
            assert seq is not None
            queue.pop(seq)
    queue.check_integrity()
    assert len(queue) == len(queue._leaves) == 10
    assert len(queue._forests) == len(queue._priorities) == 1
    assert sum(map(len, queue._forests[0]._root.ranks)) <= 2 * (64 + 2 * 10)


def test_what_shares_nothing_goes_as_without_a_tree() -> None:
    rng = random.Random(1)
    rows = [(rng.randint(1, 9), rng.choice([0, 0, 1])) for _ in range(60)]
    # Three equal tokens, or four at the end of a prompt that has one of its own before them.
    prompts = [rng.choice([[7, 7, 7], [seq_id, 7, 7, 7, 7]]) for seq_id in range(60)]
    for num_running in (0, 60):
        queue = queue_of(
            *(
                sequence(seq_id, length, priority=priority, prompt=prompts[seq_id])
                for seq_id, (length, priority) in enumerate(rows)
            )
        )
        expected = sorted(
            range(60),
            key=lambda seq_id: (-rows[seq_id][1], -rows[seq_id][0] if num_running else 0, seq_id),
        )
        assert take_all(queue, num_running=num_running) == expected


def test_rows_that_share_a_beginning_go_one_after_the_other() -> None:
    prompts = [[*beginning(name), seq_id] for seq_id, name in enumerate("abacbca")]
    seqs = [sequence(seq_id, prompt=prompt) for seq_id, prompt in enumerate(prompts)]
    assert take_all(queue_of(*seqs), num_running=0) == [0, 2, 6, 1, 4, 3, 5]
    seqs = [sequence(seq_id, prompt=prompt) for seq_id, prompt in enumerate(prompts)]
    assert take_all(queue_of(*seqs, block_size=None), num_running=0) == list(range(7))


def test_a_tree_is_gone_through_depth_first() -> None:
    names = ["ax", "b", "ay", "bx", "ax", "by", "a", "ay", "axz", "b"]
    prompts = [
        [token for name in names for token in beginning(name)] + [seq_id]
        for seq_id, names in enumerate(names)
    ]
    seqs = [sequence(seq_id, prompt=prompt) for seq_id, prompt in enumerate(prompts)]
    assert take_all(queue_of(*seqs), num_running=0) == [0, 4, 8, 2, 7, 6, 1, 3, 5, 9]


def test_the_longest_of_one_system_prompt_go_first_in_the_last_wave() -> None:
    lengths = [50, 400, 120, 400, 99]
    seqs = [
        sequence(seq_id, length, prompt=[*beginning("s", 20), seq_id])
        for seq_id, length in enumerate(lengths)
    ]
    assert take_all(queue_of(*seqs), num_running=3) == [1, 3, 2, 4, 0]


def test_in_the_last_wave_a_group_goes_as_early_as_its_longest_row() -> None:
    rows = [("a", 50), ("b", 70), ("a", 60), ("b", 20), ("c", 65), ("b", 71)]
    seqs = [
        sequence(seq_id, length, prompt=[*beginning(name), seq_id])
        for seq_id, (name, length) in enumerate(rows)
    ]
    assert take_all(queue_of(*seqs), num_running=6) == [5, 1, 3, 4, 2, 0]


def test_samples_of_a_request_go_one_after_the_other() -> None:
    prompts = [[*beginning("s"), *beginning(name), 1] for name in "aaabbbaaa"]
    seqs = [sequence(seq_id, prompt=prompt) for seq_id, prompt in enumerate(prompts)]
    assert take_all(queue_of(*seqs), num_running=0) == [0, 1, 2, 6, 7, 8, 3, 4, 5]


def test_a_higher_priority_goes_first_whatever_its_beginning() -> None:
    seqs = [
        sequence(seq_id, priority=seq_id % 2, prompt=[*beginning(name), seq_id])
        for seq_id, name in enumerate("aabbab")
    ]
    queue = queue_of(*seqs[:5])
    assert queue.peek(num_running=0) is seqs[1]
    queue.pop(seqs[1])
    assert queue.peek(num_running=0) is seqs[3]
    queue.push(seqs[5])
    assert take_all(queue, num_running=0) == [3, 5, 0, 4, 2]


def test_the_order_goes_on_where_it_was_after_a_returned_sequence() -> None:
    seqs = [
        sequence(seq_id, prompt=[*beginning(name), seq_id]) for seq_id, name in enumerate("babab")
    ]
    queue = queue_of(*seqs)
    queue.pop(seqs[0])
    queue.push_front(sequence(9, prompt=beginning("a")))
    assert take_all(queue, num_running=0) == [9, 2, 4, 1, 3]


def test_rows_that_come_join_the_group_that_is_being_admitted() -> None:
    queue = queue_of(
        *(sequence(seq_id, prompt=[*beginning(name), seq_id]) for seq_id, name in enumerate("aba"))
    )
    first = queue.peek(num_running=0)
    assert first is not None
    queue.pop(first)
    queue.push(sequence(3, prompt=[*beginning("a"), 3]))
    assert take_all(queue, num_running=0) == [2, 3, 1]


def test_no_row_starves_behind_a_group_that_keeps_coming() -> None:
    """After some rows of their own an endless file has one group; 20 rows wait at a time."""
    queue = WaitingQueue(PRIOR, block_size=BLOCK_SIZE)
    queue.expects_more = True
    order: list[int] = []
    for seq_id in range(1_000):
        is_alone = 0 < seq_id < 20 and seq_id % 3 == 0
        prompt = [10_000 + seq_id] * BLOCK_SIZE if is_alone else beginning("a")
        queue.push(sequence(seq_id, prompt=[*prompt, seq_id]))
        if len(queue) > 20:
            seq = queue.peek(num_running=5)
            assert seq is not None
            queue.pop(seq)
            order.append(seq.seq_id)
    alone = [order.index(seq_id) for seq_id in range(3, 20, 3)]
    # Before them come the group's rows that are older, and a turn of as many more as waited then.
    assert alone == list(range(3 + 20, 3 + 20 + 6))


def test_with_all_rows_here_no_group_is_left_before_its_end() -> None:
    rng = random.Random(4)
    names = [rng.choice("aaaaaaaaabcd") for _ in range(500)]
    seqs = [sequence(seq_id, prompt=[*beginning(name), 1]) for seq_id, name in enumerate(names)]
    order = take_all(queue_of(*seqs), num_running=0)
    groups = [names[seq_id] for seq_id in order]
    assert sum(left != right for left, right in pairwise(groups)) == len(set(names)) - 1


def test_finishing_in_the_middle_of_the_tree_leaves_the_others_in_order() -> None:
    names = "abcabcabc"
    seqs = [
        sequence(seq_id, prompt=[*beginning("s"), *beginning(name), seq_id])
        for seq_id, name in enumerate(names)
    ]
    queue = queue_of(*seqs)
    queue.pop(seqs[0])
    for seq_id in (3, 1, 6):
        queue.discard(seqs[seq_id])
        queue.check_integrity()
    assert queue.mean_prompt_tokens == 9.0
    assert take_all(queue, num_running=0) == [2, 5, 8, 4, 7]
