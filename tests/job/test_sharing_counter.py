"""What prompts share, compared with counting it by brute force over all beginnings."""

import random
from dataclasses import replace

import numpy as np
import pytest

from nanobatch.job.known_blocks import block_hashes
from nanobatch.job.sharing_counter import SharingCounter
from nanobatch.job.sharing_report import Beginning, SharingLevel, SharingReport, levels_of
from tests.job.counted_sharing import SETTINGS, Prefix, Prompt, count, count_by_brute_force


def assert_same(report: SharingReport, expected: SharingReport) -> None:
    assert abs(report.num_saved_kv_tokens - expected.num_saved_kv_tokens) <= 1  # a sum of floats
    assert replace(report, num_saved_kv_tokens=0) == replace(expected, num_saved_kv_tokens=0)


def random_tree(seed: int, num_rows: int = 40) -> list[Prompt]:
    """Return prompts that branch often, and at ends that are full blocks and others."""
    rng = random.Random(seed)
    prompts: list[Prompt] = []
    for _ in range(num_rows):
        kept: Prefix = ()
        if prompts and rng.random() < 0.8:
            earlier = rng.choice(prompts).token_ids
            kept = earlier[: rng.randint(0, len(earlier))]
        tail = tuple(rng.randrange(3) for _ in range(rng.randint(0 if kept else 1, 12)))
        prompts.append(Prompt(kept + tail, rng.choice([1, 1, 3]), rng.randint(0, 20)))
    return prompts


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("block_size", [2, 7])
def test_every_number_is_that_of_brute_force(seed: int, block_size: int) -> None:
    prompts = random_tree(seed)
    report = count(prompts, block_size=block_size)
    assert_same(report, count_by_brute_force(prompts, block_size=block_size))
    assert report.num_reused_tokens > 0
    # Of a block of two tokens none is worth a copy.
    num_copied = report.num_prompt_tokens - report.num_near_tokens - report.num_prefill_tokens
    assert (num_copied > 0) == (block_size == 7)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("block_size", [2, 7])
@pytest.mark.parametrize(("window_rows", "window_tokens"), [(1, 1_000), (6, 1_000), (1_000, 60)])
def test_rows_that_no_window_holds_are_not_near(
    seed: int, block_size: int, window_rows: int, window_tokens: int
) -> None:
    prompts = random_tree(seed)
    settings = {
        "block_size": block_size,
        "window_rows": window_rows,
        "window_tokens": window_tokens,
    }
    report = count(prompts, **settings)
    assert_same(report, count_by_brute_force(prompts, **settings))
    everything = count(prompts, block_size=block_size)
    assert report.num_reused_tokens == everything.num_reused_tokens
    assert report.num_near_tokens < everything.num_near_tokens
    assert report.num_prefill_tokens > everything.num_prefill_tokens


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("block_size", [2, 7])
def test_what_is_forgotten_changes_nothing_of_what_near_rows_share(
    seed: int, block_size: int
) -> None:
    prompts = random_tree(seed, num_rows=200)
    window = {"window_rows": 30, "window_tokens": 60}
    bounded = count(prompts, **window, block_size=block_size, min_kept_blocks=1)
    exact = count(prompts, **window, block_size=block_size)
    assert bounded.is_lower_bound
    assert not exact.is_lower_bound
    assert bounded.num_prefill_tokens == exact.num_prefill_tokens
    assert bounded.num_near_tokens == exact.num_near_tokens
    assert bounded.num_attended_tokens == exact.num_attended_tokens
    assert bounded.num_reused_tokens < exact.num_reused_tokens
    assert bounded.num_shared_tokens <= exact.num_shared_tokens
    assert sum(level.num_reused_tokens for level in bounded.levels) == bounded.num_reused_tokens


def test_no_more_blocks_are_known_than_the_bound() -> None:
    counter = SharingCounter(**{**SETTINGS, "window_tokens": 20}, min_kept_blocks=80)
    for row in range(500):
        tokens = np.array([7, 7, row, *range(4)], dtype=np.int32)
        counter.add(tokens, num_samples=1, num_decode_steps=0)
        assert len(counter._blocks) <= 100 + len(tokens) // 2
    report = counter.report()
    # All rows began with the first block, which was never unused for long.
    assert report.num_shared_tokens == 500 * 2
    assert report.levels[0].most_rows == 500


def test_a_tree_of_three_levels_is_told_as_such() -> None:
    """One system prompt, 3 sets of examples, 4 documents each, 5 questions each."""
    prompts = [
        Prompt((1,) * 20 + (2, few) * 5 + (3, document) * 4 + (4, question, 5))
        for few in range(3)
        for document in range(4)
        for question in range(5)
    ]
    random.Random(0).shuffle(prompts)
    report = count(prompts)
    assert report.levels == (
        SharingLevel(
            num_beginnings=1, typical_rows=60, most_rows=60, typical_tokens=20,
            num_reused_tokens=59 * 20,
        ),
        SharingLevel(
            num_beginnings=3, typical_rows=20, most_rows=20, typical_tokens=10,
            num_reused_tokens=3 * 19 * 10,
        ),
        SharingLevel(
            num_beginnings=12, typical_rows=5, most_rows=5, typical_tokens=8,
            num_reused_tokens=12 * 4 * 8,
        ),
    )  # fmt: skip
    assert report.num_prefill_tokens == 20 + 3 * 10 + 12 * 8 + 60 * 3
    assert report.shared_fraction == (20 + 10 + 8) / 41
    assert report.prefill_saved_fraction == report.reused_fraction


def test_accidental_pairs_are_not_typical() -> None:
    """What is typical is typical of the tokens that are reused."""
    pairs = Beginning(level=1, num_rows=2, num_tokens=16)
    groups = Beginning(level=1, num_rows=40, num_tokens=1_024)
    (level,) = levels_of({pairs: 500, groups: 50})
    assert level == SharingLevel(
        num_beginnings=550,
        typical_rows=40,
        most_rows=40,
        typical_tokens=1_024,
        num_reused_tokens=500 * 16 + 50 * 39 * 1_024,
    )


def test_of_a_prompt_that_is_there_already_a_token_is_computed() -> None:
    prompts = [Prompt((1, 2, 3, 4))] * 3
    assert count(prompts).num_prefill_tokens == 4 + 1 + 1


def test_answers_of_one_row_share_its_prompt() -> None:
    (prompt,) = [Prompt((1, 2, 3, 4, 5), num_samples=4, num_steps=2)]
    report = count([prompt])
    assert report.num_attended_tokens == 4 * (6 + 7)
    # Four keys in full blocks, read once a step instead of four times.
    assert report.num_saved_kv_tokens == 4 * 2 * 3
    assert report.num_shared_tokens == 0


def test_no_more_sequences_read_together_than_run_at_once() -> None:
    prompts = [Prompt((1, 2), num_steps=3)] * 10
    assert count(prompts, num_running_seqs=2).num_saved_kv_tokens == 10 * 3 * 2 // 2
    assert count(prompts, num_running_seqs=10).num_saved_kv_tokens == 9 * 3 * 2


def test_nothing_is_nothing() -> None:
    report = count([])
    assert (report.num_prompt_tokens, report.levels) == (0, ())
    assert (report.shared_fraction, report.kv_saved_fraction) == (0.0, 0.0)


def test_the_hash_of_a_block_depends_on_all_tokens_before_it() -> None:
    one = block_hashes(np.array([1, 2, 3, 4, 5, 6, 7], dtype=np.int32), 2)
    other = block_hashes(np.array([9, 2, 3, 4, 5, 6], dtype=np.int32), 2)
    assert len(one) == len(other) == 3
    assert not set(one) & set(other)
    assert block_hashes(np.array([1, 2, 3, 4, 8, 6], dtype=np.int32), 2)[:2] == one[:2]
    assert block_hashes(np.array([1], dtype=np.int32), 2) == []


def test_a_source_that_is_near_is_found_behind_others_that_are_not() -> None:
    """All rows have five tokens in common; the middle ones are nearest in the order of tokens."""
    prompts = [Prompt((1,) * 5 + (token,) * 3) for token in (50, 40, 60, 30, 70, 52)]
    # Blocks of 8: each row but the first copies five tokens.
    assert count(prompts, block_size=8).num_prefill_tokens == 8 + 5 * 3
    assert count(prompts, block_size=8, window_rows=2).num_prefill_tokens == 8 + 5 * 3
    assert count(prompts, block_size=8, window_rows=1).num_prefill_tokens == 6 * 8


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_rows_changes_nothing_of_what_their_blocks_share(seed: int) -> None:
    prompts = random_tree(seed, num_rows=100)
    report, other = count(prompts), count(prompts[::-1])
    # Which of equal prompts comes first decides whether it is computed or one token of it.
    assert replace(other, num_prefill_tokens=report.num_prefill_tokens) == report
