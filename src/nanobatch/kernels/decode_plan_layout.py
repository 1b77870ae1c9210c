"""Where the attention plan of a decode step lies in one int32 buffer of fixed size.

Knows the arrays of `kernels.decode_plan` and `kernels.shared_items` and their bounds, not how they
are made or used. The buffer is uploaded in one piece and never moves, so that CUDA graphs can hold
its address.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Self

from nanobatch.kernels.decode_plan import DecodePlan, Int32Array
from nanobatch.kernels.shared_items import MAX_SHARED_PARTIALS, SharedItems

ALIGNMENT_WORDS = 16
"""Arrays of a packed plan begin at multiples of this many int32."""

NUM_ITEMS_WORD = 0
"""Where the number of items stands."""

NUM_SHARED_ITEMS_WORD = 1
"""Where the number of shared items stands."""


class PlanStarts(NamedTuple):
    """First words of the arrays, named as in `DecodePlan` and `SharedItems`."""

    item_rows: int
    item_first_tokens: int
    item_partials: int
    row_partials: int
    row_first_tokens: int
    row_num_partials: int
    shared_first_rows: int
    shared_num_rows: int
    shared_first_tokens: int
    shared_end_tokens: int
    shared_partials: int
    end: int


def most_shared_items(max_rows: int) -> int:
    """Return how many shared items the rows of a bucket can have at most.

    An item has two rows or more, else it saves nothing, and takes one of the
    `MAX_SHARED_PARTIALS` partial results of each.
    """
    return max_rows * MAX_SHARED_PARTIALS // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlanLayout:
    """Where the arrays of any plan for a bucket lie.

    The first words are num_items and num_shared_items; then follow the arrays at `starts`.

    Attributes:
        max_rows: Rows of the bucket.
        max_items: Most items.
        max_partials: Most partial results.
        split_tokens: Length of an item.
        max_shared_items: Most shared items; with 0 there is no room for `SharedItems`.
    """

    max_rows: int
    max_items: int
    max_partials: int
    split_tokens: int
    max_shared_items: int = 0

    @classmethod
    def for_bucket(
        cls,
        max_rows: int,
        *,
        split_tokens: int,
        max_model_len: int,
        max_total_tokens: int,
        max_shared_items: int = 0,
    ) -> Self:
        """Size the arrays for the worst batch.

        Args:
            max_rows: Rows of the bucket.
            split_tokens: Length of an item.
            max_model_len: Most tokens of one sequence.
            max_total_tokens: Most tokens of all sequences together, each counted in full, also
                where they share blocks.
            max_shared_items: Most shared items (`most_shared_items`); whoever plans keeps to it.

        Returns:
            The layout: a row has at most one item that is not whole, so there are at most
            max_rows + total / split_tokens items. A row with partial results has a whole item
            for each that is not, which bounds partial results by twice the whole items. Keys
            that a row shares only take items away from it, or shorten one.
        """
        total_tokens = min(max_total_tokens, max_rows * max_model_len)
        max_whole_items = total_tokens // split_tokens
        max_items = min(max_rows + max_whole_items, max_rows * -(-max_model_len // split_tokens))
        max_partials = min(max_items, 2 * max_whole_items) if max_model_len > split_tokens else 0
        return cls(
            max_rows=max_rows,
            max_items=max_items,
            max_partials=max_partials,
            split_tokens=split_tokens,
            max_shared_items=max_shared_items,
        )

    @property
    def starts(self) -> PlanStarts:
        """Return where each array begins, and where the buffer ends."""
        items, rows = _aligned(self.max_items), _aligned(self.max_rows)
        shared_items = _aligned(self.max_shared_items)
        shared_rows = rows if self.max_shared_items else 0
        sizes = [ALIGNMENT_WORDS, *[items] * 3, rows, *[shared_rows] * 2, *[shared_items] * 5]
        return PlanStarts(*accumulate(sizes))

    @property
    def num_words(self) -> int:
        """Size of the buffer in int32."""
        return self.starts.end

    def pack(self, plan: DecodePlan, out: Int32Array, *, shared: SharedItems | None = None) -> None:
        """Write a plan into a buffer; what it does not need keeps its old content.

        Args:
            plan: A plan with this layout's split_tokens, for keys from `row_first_tokens` on.
            out: [num_words] int32, written in part.
            shared: What the rows attend to together, also if that is nothing; needed by kernels
                that run with `has_shared`. A layout without room for it takes one without items.

        Raises:
            ValueError: The plan does not fit, or was cut at another length.
        """
        if plan.split_tokens != self.split_tokens:
            raise ValueError(
                f"the plan is cut at {plan.split_tokens} tokens, the layout at {self.split_tokens}"
            )
        num_shared_items = 0 if shared is None else shared.num_items
        for name, count, most in (
            ("items", plan.num_items, self.max_items),
            ("partial results", plan.num_partials, self.max_partials),
            ("rows", plan.num_rows, self.max_rows),
            ("shared items", num_shared_items, self.max_shared_items),
        ):
            if count > most:
                raise ValueError(f"the plan has {count} {name}, its buffer holds {most}")
        starts = self.starts
        out[NUM_ITEMS_WORD] = plan.num_items
        out[NUM_SHARED_ITEMS_WORD] = num_shared_items
        for start, array in (
            (starts.item_rows, plan.item_rows),
            (starts.item_first_tokens, plan.item_first_tokens),
            (starts.item_partials, plan.item_partials),
            (starts.row_partials, plan.row_partials),
        ):
            out[start : start + len(array)] = array
        if shared is not None and self.max_shared_items:
            _pack_shared(shared, starts, out)


def _pack_shared(shared: SharedItems, starts: PlanStarts, out: Int32Array) -> None:
    """Write what `has_shared` reads."""
    for start, array in (
        (starts.row_first_tokens, shared.row_first_tokens),
        (starts.row_num_partials, shared.row_num_partials),
        (starts.shared_first_rows, shared.item_first_rows),
        (starts.shared_num_rows, shared.item_num_rows),
        (starts.shared_first_tokens, shared.item_first_tokens),
        (starts.shared_end_tokens, shared.item_end_tokens),
        (starts.shared_partials, shared.item_partials),
    ):
        out[start : start + len(array)] = array


def _aligned(num_words: int) -> int:
    """Round up to whole units of alignment."""
    return -(-num_words // ALIGNMENT_WORDS) * ALIGNMENT_WORDS
