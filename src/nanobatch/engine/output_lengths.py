"""How long sequences go on: an estimate of their stopping rate by age.

Knows how many tokens sequences have generated and whether they stopped there; nothing of
blocks. Running sequences are *censored* observations: they say how long an answer is at least,
so they count as time without a stop (the hazard form of the Kaplan-Meier estimator, 1958, with
constant rates between powers of two). What a sequence has already produced then tells how much
more to expect: in a mix of short and long answers, the ones that still run are the long ones.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from nanobatch.engine.sequence import Sequence

PRIOR_OUTPUT_TOKENS: Final = 256
PRIOR_NUM_STOPS: Final = 4
"""Stops that the prior is worth, against those seen at any age."""
NUM_SMOOTHING_STOPS: Final = 2
"""Stops at the average rate that are added to those seen at each age."""

NUM_AGES: Final = 24
AGE_EDGES: Final = np.concatenate([[0], 2 ** np.arange(NUM_AGES)])
"""[NUM_AGES + 1] tokens: age group i reaches from edge i to edge i + 1."""

FloatArray = npt.NDArray[np.float64]


class StoppingRates:
    """Stops per generated token, for sequences of each age group.

    Args:
        prior_tokens: Expected output length before anything was seen.
    """

    __slots__ = ("_num_stops", "_num_tokens", "_prior_rate")

    def __init__(self, prior_tokens: int) -> None:
        self._prior_rate = 1.0 / prior_tokens
        self._num_stops: FloatArray = np.zeros(NUM_AGES)
        self._num_tokens: FloatArray = np.zeros(NUM_AGES)

    def observe(self, seq: Sequence, *, is_stopped: bool) -> None:
        """Count a sequence that leaves the engine, unless its length was known before.

        Args:
            seq: The sequence.
            is_stopped: Whether it ended by itself, not by max_tokens or an abort.
        """
        num_tokens = len(seq.output_token_ids)
        if seq.has_known_length or num_tokens == 0:
            return
        self._num_tokens += _tokens_by_age(np.array([num_tokens]))
        self._num_stops[age_group(num_tokens - 1)] += is_stopped

    def cumulative(self, running: Iterable[Sequence]) -> FloatArray:
        """Return the expected stops up to each of AGE_EDGES, in [NUM_AGES + 1].

        The share of sequences of age a that still runs t tokens later is the exponential of
        minus the difference between the (linearly interpolated) values at a + t and at a.

        Args:
            running: Sequences that have generated tokens and not ended.
        """
        ages = [len(seq.output_token_ids) for seq in running if not seq.has_known_length]
        num_tokens = self._num_tokens + _tokens_by_age(np.array(ages, dtype=np.int64))
        prior_tokens = PRIOR_NUM_STOPS / self._prior_rate
        average = (PRIOR_NUM_STOPS + self._num_stops.sum()) / (prior_tokens + num_tokens.sum())
        rates = (self._num_stops + NUM_SMOOTHING_STOPS) / (
            num_tokens + NUM_SMOOTHING_STOPS / average
        )
        return np.concatenate([[0.0], np.cumsum(rates * np.diff(AGE_EDGES))])


def age_group(num_tokens: int) -> int:
    """Return the age group of a sequence that has generated that many tokens."""
    return min(num_tokens.bit_length(), NUM_AGES - 1)


def _tokens_by_age(ages: npt.NDArray[np.int64]) -> FloatArray:
    """Return in [NUM_AGES] how many tokens sequences of these ages generated in each group."""
    reached = np.minimum(ages[:, None], AGE_EDGES)  # [num_seqs, NUM_AGES + 1]
    return np.asarray(np.diff(reached, axis=1).sum(axis=0), dtype=np.float64)
