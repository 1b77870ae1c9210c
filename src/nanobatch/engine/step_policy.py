"""Whether the next step computes prompts or generates: in which portions prompts are admitted.

Only throughput counts, so decoding is interrupted for a portion of prompts that is worth it.
Per portion, a prefill step costs the reading of the weights, its launches and a decode chunk that
begins cold: as much as some 2,000 tokens of computation, below which it takes no less time. Thus
a portion of that many tokens wastes nothing. Waiting for it wastes the rows that could run:
where F is the fixed cost in decode steps, n the rows that fit and L the tokens that a row
generates, rows end at n / L a step, and a portion of m rows costs F / m per row for its launch
and m L / (2 n^2) for those that were missing meanwhile. The sum is least at m = n sqrt(2 F / L),
which is n / 16 for F = 1 and L = 512 (and flat around it: n / 8 or n / 32 cost 25 % more of
what is about 1 % in all).

Knows counts only: no sequences, no clock. The same counts lead to the same steps.
"""

from typing import Final

WORTHWHILE_TOKENS: Final = 2048
"""Tokens of a prefill step from which on its time grows with them."""

WORTHWHILE_SHARE: Final = 1 / 16
"""Share of the rows that fit of which it is not worth to wait for more."""


class StepPolicy:
    """Decides between prompts and decoding, from counts.

    How many rows fit is learnt from admission: as many as ran when it last refused one.

    Args:
        max_num_seqs: Most sequences that run at once.
        max_num_batched_tokens: Most tokens of a prefill step.
    """

    __slots__ = ("_is_filling", "_max_num_seqs", "_num_rows_that_fit", "_worthwhile_tokens")

    def __init__(self, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._worthwhile_tokens = min(WORTHWHILE_TOKENS, max_num_batched_tokens)
        self._num_rows_that_fit = max_num_seqs
        self._is_filling = False

    def wants_prompts(
        self, *, num_running: int, num_waiting: int, num_tokens_to_admit: float
    ) -> bool:
        """Return whether to try to admit sequences now.

        Args:
            num_running: Sequences that run.
            num_waiting: Sequences that wait.
            num_tokens_to_admit: Tokens that each of those is expected to compute.
        """
        if num_waiting == 0:
            return False
        if num_running == 0 or self._is_filling:
            return True
        num_missing = min(self._num_rows_that_fit - num_running, num_waiting)
        return num_missing > 0 and (
            num_missing == num_waiting  # none is known that would come to join them
            or num_missing * num_tokens_to_admit >= self._worthwhile_tokens
            or num_missing >= WORTHWHILE_SHARE * self._num_rows_that_fit
        )

    def note_admission(
        self, *, num_running: int, num_waiting: int, is_budget_used_up: bool
    ) -> None:
        """Learn from an attempt to admit, after which so many run and wait.

        Args:
            num_running: Sequences that run.
            num_waiting: Sequences that wait.
            is_budget_used_up: Whether it was the token budget that ended the attempt.
        """
        self._is_filling = is_budget_used_up and num_waiting > 0
        if not is_budget_used_up:
            self._num_rows_that_fit = num_running if num_waiting else self._max_num_seqs

    def note_preemption(self, num_running: int) -> None:
        """Learn that the pool holds no more than these."""
        self._num_rows_that_fit = num_running
        self._is_filling = False
