"""What the prompts of a file share: plain numbers, and what they are numbers of.

Prompts share *beginnings* in full blocks of KV, as the engine reuses them. All blocks that at least
two rows begin with form a tree; a chain of blocks that the very same rows go through is one
beginning. Its level is the number of beginnings on the way to it, itself included: a system prompt
of all rows has level 1, the documents that follow it level 2, the questions to a document that
begin alike level 3.

Knows no tokens and no rows; `nanobatch.job.sharing_counter` finds these numbers.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Beginning(NamedTuple):
    """How large a shared beginning is, by which equal ones are counted.

    Attributes:
        level: Which beginning of its rows it is, from 1.
        num_rows: Rows that begin with it; at least 2.
        num_tokens: Its tokens, without those of the beginnings before it.
    """

    level: int
    num_rows: int
    num_tokens: int

    @property
    def num_reused_tokens(self) -> int:
        """Prompt tokens that all its rows but one need not compute."""
        return (self.num_rows - 1) * self.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingLevel:
    """The shared beginnings of one level.

    What is *typical* is a median in which every reused token counts, so that a few accidental pairs
    beside large groups do not change it.

    Attributes:
        num_beginnings: How many there are.
        typical_rows: Rows that begin with a typical one.
        most_rows: Rows that begin with the one that most rows have.
        typical_tokens: Tokens of a typical one, without those of the levels above.
        num_reused_tokens: Prompt tokens in them that an earlier row has too.
    """

    num_beginnings: int
    typical_rows: int
    most_rows: int
    typical_tokens: int
    num_reused_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingReport:
    """What the good rows of a file share, and what a run can make of it.

    A run looks ahead by a window of rows. *Near* are two rows that stand in one window; a run
    computes and reads together what near rows share.

    Attributes:
        block_size: Tokens of a block.
        num_prompt_tokens: Prompt tokens of all rows.
        num_shared_tokens: Of those, tokens in full blocks that another row begins with too.
        num_reused_tokens: Of those, tokens in full blocks that an earlier row begins with too.
        num_near_tokens: Of those, tokens in full blocks that a near earlier row begins with too.
        num_prefill_tokens: Prompt tokens that a run computes if it takes the rows in their order:
            all but those in full blocks that a near earlier row begins with, and those at the
            beginning of the next block that it has in common with a full block of such a row, as
            these are copied. At least one a row.
        num_attended_tokens: Keys that the decode steps of all rows attend to, by an estimate of how
            long answers are.
        num_saved_kv_tokens: Of those, keys that need not be read, if near rows that share them run
            in the same steps, as many as run at once.
        num_running_seqs: Sequences that are taken to run at once.
        num_output_tokens: Tokens that answers are taken to have, unless max_tokens is less.
        window_rows: Most rows of a window.
        window_tokens: Most prompt tokens of a window.
        levels: The beginnings by level, from the first.
        is_lower_bound: Whether blocks were forgotten for lack of memory, so that rows far apart may
            share more. What near rows share is always exact.
    """

    block_size: int
    num_prompt_tokens: int
    num_shared_tokens: int
    num_reused_tokens: int
    num_near_tokens: int
    num_prefill_tokens: int
    num_attended_tokens: int
    num_saved_kv_tokens: int
    num_running_seqs: int
    num_output_tokens: int
    window_rows: int
    window_tokens: int
    levels: tuple[SharingLevel, ...]
    is_lower_bound: bool

    @property
    def shared_fraction(self) -> float:
        """Share of prompt tokens that another row begins with too, 0 to 1."""
        return _fraction(self.num_shared_tokens, self.num_prompt_tokens)

    @property
    def reused_fraction(self) -> float:
        """Share of prompt tokens that an earlier row begins with too, near or not, 0 to 1."""
        return _fraction(self.num_reused_tokens, self.num_prompt_tokens)

    @property
    def near_fraction(self) -> float:
        """Share of prompt tokens that a near earlier row begins with too, 0 to 1."""
        return _fraction(self.num_near_tokens, self.num_prompt_tokens)

    @property
    def prefill_saved_fraction(self) -> float:
        """Share of prompt tokens that a run need not compute, 0 to 1."""
        num_saved = self.num_prompt_tokens - self.num_prefill_tokens
        return _fraction(num_saved, self.num_prompt_tokens)

    @property
    def kv_saved_fraction(self) -> float:
        """Share of the keys that decode steps attend to that need not be read, 0 to 1."""
        return _fraction(self.num_saved_kv_tokens, self.num_attended_tokens)


def levels_of(beginnings: Mapping[Beginning, int]) -> tuple[SharingLevel, ...]:
    """Sum beginnings up by level.

    Args:
        beginnings: How many there are of each size.
    """
    depth = max((beginning.level for beginning in beginnings), default=0)
    by_level: list[dict[Beginning, int]] = [{} for _ in range(depth)]
    for beginning, count in beginnings.items():
        by_level[beginning.level - 1][beginning] = count
    return tuple(map(_level_of, by_level))


def _level_of(beginnings: Mapping[Beginning, int]) -> SharingLevel:
    reused = {one: one.num_reused_tokens * count for one, count in beginnings.items()}
    return SharingLevel(
        num_beginnings=sum(beginnings.values()),
        typical_rows=_weighted_median((one.num_rows, weight) for one, weight in reused.items()),
        most_rows=max(one.num_rows for one in beginnings),
        typical_tokens=_weighted_median((one.num_tokens, weight) for one, weight in reused.items()),
        num_reused_tokens=sum(reused.values()),
    )


def _weighted_median(weighted: Iterable[tuple[int, int]]) -> int:
    """Return the smallest value up to which at least half of the weight lies."""
    weights: Counter[int] = Counter()
    for value, weight in weighted:
        weights[value] += weight
    total, so_far = weights.total(), 0
    for value in sorted(weights):
        so_far += weights[value]
        if 2 * so_far >= total:
            return value
    raise AssertionError("nothing has no median")


def _fraction(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
