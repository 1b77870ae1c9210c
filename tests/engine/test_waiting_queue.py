"""In which order sequences are admitted."""

import random

import numpy as np

from nanobatch.engine.sequence import Sequence, SequenceStatus
from nanobatch.engine.waiting_queue import WaitingQueue
from nanobatch.request import SamplingParams

PRIOR = 100


def sequence(
    seq_id: int, max_tokens: int = PRIOR, *, is_known: bool = True, priority: int = 0
) -> Sequence:
    return Sequence(
        seq_id,
        np.ones(3, dtype=np.int32),
        params=SamplingParams(ignore_eos=is_known),
        max_tokens=max_tokens,
        priority=priority,
    )


def queue_of(*seqs: Sequence) -> WaitingQueue:
    queue = WaitingQueue(PRIOR)
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
    queue = WaitingQueue(PRIOR)
    for seq_id in range(10_000):
        queue.push(sequence(seq_id, rng.randint(1, 500)))
        if seq_id >= 10:
            seq = queue.peek(num_running=rng.choice([0, 1, 100]))
            assert seq is not None
            queue.pop(seq)
    queue.check_integrity()
    assert len(queue) == 10
    assert len(queue._by_length) + len(queue._by_arrival) <= 2 * (1024 + 2 * 10)
