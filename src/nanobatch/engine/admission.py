"""Whether one more sequence fits: a forecast of how much KV the running ones will come to need.

Admitting by what is free now fills the pool with young sequences whose growth then drives each
other out; admitting by max_tokens leaves most of the pool empty, since answers are mostly
short. So the *expected* use of the pool is followed into the future, and a sequence is admitted
while the highest point stays inside the pool (the idea of the Past-Future scheduler, Gong et
al., ASPLOS 2025). Knows sequences and the pool's counts; not steps or devices.

Lengths are taken as exponential. Running sequences are *censored* observations: they tell how
long an answer is at least. The estimate of the mean is then all generated tokens over the
number of sequences that stopped by themselves, with a prior worth a few sequences. Being
memoryless, it is also the expected rest of every running sequence, whatever it has produced.
A sequence that only max_tokens can end has a known length and is exact.
"""

import math
from collections.abc import Collection, Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from nanobatch.engine.block_manager import BlockManager, CacheEntry
from nanobatch.engine.sequence import Sequence

PRIOR_OUTPUT_TOKENS: Final = 256
PRIOR_NUM_SEQS: Final = 4

NUM_INTERVALS: Final = 64
HORIZON_MEANS: Final = 4
"""Sequences of unknown length are followed for this many expected rests (2 % live longer)."""
SAFETY_STD: Final = 1.0
"""Standard deviations of use that are kept free above the expected use."""

FloatArray = npt.NDArray[np.float64]


class OutputLengthEstimate:
    """Running estimate of how many tokens a sequence of unknown length generates.

    Args:
        prior_tokens: Estimate before anything was seen.
    """

    __slots__ = ("_num_stopped", "_num_tokens")

    def __init__(self, prior_tokens: int) -> None:
        self._num_tokens = PRIOR_NUM_SEQS * prior_tokens
        self._num_stopped = PRIOR_NUM_SEQS

    def mean_tokens(self, running: Iterable[Sequence] = ()) -> float:
        """Return the expected tokens of a new sequence, or further tokens of a running one."""
        num_running_tokens = sum(
            len(seq.output_token_ids) for seq in running if not seq.has_known_length
        )
        return (self._num_tokens + num_running_tokens) / self._num_stopped

    def observe(self, seq: Sequence, *, is_stopped: bool) -> None:
        """Count a sequence that leaves the engine.

        Args:
            seq: The sequence.
            is_stopped: Whether it ended by itself, not by max_tokens or an abort.
        """
        if not seq.has_known_length:
            self._num_tokens += len(seq.output_token_ids)
            self._num_stopped += is_stopped


class KvForecast:
    """Expected use of the KV pool from now until the running sequences have ended.

    Time is counted in tokens per sequence and cut into equal intervals; a use inside an
    interval is rounded up to that at its end. Sequences of known and of unknown length are two
    cohorts (first axis below), since only the latter thin out on the way.

    Args:
        running: Sequences that hold blocks.
        candidate: A sequence that is about to be added; it only lengthens the view.
        num_used_tokens: Places of the pool that are taken now.
        mean_tokens: Expected rest of a sequence of unknown length.
    """

    __slots__ = (
        "_cohorts",
        "_growth",
        "_interval",
        "_mean_tokens",
        "_num_lasting_tokens",
        "_survival",
    )

    def __init__(
        self,
        running: list[Sequence],
        candidate: Sequence,
        *,
        num_used_tokens: int,
        mean_tokens: float,
    ) -> None:
        self._mean_tokens = mean_tokens
        horizon = max(self._horizon(seq) for seq in (*running, candidate))
        self._interval = max(1, -(-horizon // NUM_INTERVALS))
        time = np.arange(NUM_INTERVALS, dtype=np.float64) * self._interval
        self._growth: FloatArray = time + self._interval
        self._survival: FloatArray = np.stack([np.ones(NUM_INTERVALS), np.exp(-time / mean_tokens)])
        # [2, 3, NUM_INTERVALS + 1]: by cohort and by the first interval that the sequence does
        # not reach: count, sum and sum of squares of the tokens that its end gives back.
        self._cohorts: FloatArray = np.zeros((2, 3, NUM_INTERVALS + 1))
        self._num_lasting_tokens = num_used_tokens
        self._add_running(running)

    def covers(self, seq: Sequence) -> bool:
        """Return whether the forecast reaches as far as the sequence needs to be followed."""
        return self._horizon(seq) <= self._interval * NUM_INTERVALS

    def add(self, seq: Sequence, *, num_own_tokens: int, num_shared_tokens: int) -> None:
        """Count a sequence that is about to run.

        Args:
            seq: The sequence.
            num_own_tokens: Free places that it takes, and gives back when it ends.
            num_shared_tokens: Free places that it takes and that may outlast it.
        """
        end = min(-(-num_tokens_left(seq) // self._interval), NUM_INTERVALS)
        moments = (1.0, float(num_own_tokens), float(num_own_tokens) ** 2)
        self._cohorts[int(not seq.has_known_length), :, end] += moments
        self._num_lasting_tokens += num_shared_tokens

    def peak_tokens(self) -> float:
        """Return the highest expected use plus its safety margin."""
        # [2, 3, NUM_INTERVALS]: over the sequences that no bound has ended before the interval.
        moments = np.cumsum(self._cohorts[:, :, :0:-1], axis=2)[:, :, ::-1]
        count, held, held_squared = moments[:, 0], moments[:, 1], moments[:, 2]
        expected = (self._survival * (held + count * self._growth)).sum(axis=0)
        squares = held_squared + 2 * self._growth * held + self._growth**2 * count
        variance = (self._survival * (1 - self._survival) * squares).sum(axis=0)
        return float(self._num_lasting_tokens + np.max(expected + SAFETY_STD * np.sqrt(variance)))

    def _horizon(self, seq: Sequence) -> int:
        num_left = num_tokens_left(seq)
        if seq.has_known_length:
            return num_left
        return min(num_left, math.ceil(HORIZON_MEANS * self._mean_tokens))

    def _add_running(self, running: list[Sequence]) -> None:
        ends: tuple[list[int], list[int]] = ([], [])
        helds: tuple[list[int], list[int]] = ([], [])
        for seq in running:
            cohort = int(not seq.has_known_length)
            ends[cohort].append(-(-num_tokens_left(seq) // self._interval))
            helds[cohort].append(seq.num_tokens - (seq.num_cached_tokens or 0))
        for cohort in (0, 1):
            end = np.minimum(np.array(ends[cohort], dtype=np.int64), NUM_INTERVALS)
            held = np.array(helds[cohort], dtype=np.float64)
            for moment, weights in enumerate((np.ones_like(held), held, held * held)):
                self._cohorts[cohort, moment] = np.bincount(
                    end, weights=weights, minlength=NUM_INTERVALS + 1
                )
            self._num_lasting_tokens -= int(held.sum())


class AdmissionControl:
    """Says yes or no to sequences, one scheduling step at a time.

    Args:
        block_manager: The KV pool.
        prior_output_tokens: Length that outputs are taken to have while none has ended.
    """

    __slots__ = ("_block_manager", "_forecast", "_refused", "estimate")

    def __init__(self, block_manager: BlockManager, *, prior_output_tokens: int) -> None:
        self.estimate: Final = OutputLengthEstimate(prior_output_tokens)
        self._block_manager = block_manager
        self._forecast: KvForecast | None = None
        self._refused: Sequence | None = None

    def begin_step(self) -> None:
        """Forget the forecast of the last step: tokens were added since."""
        self._forecast = None

    def note_departure(self) -> None:
        """Reconsider the sequence that was refused last: a running one has left."""
        self._refused = None

    def find_room(self, seq: Sequence, running: Collection[Sequence]) -> list[CacheEntry] | None:
        """Decide whether the sequence fits beside the running ones, now and later.

        After a yes it counts as running for the rest of the step. Alone it always fits. After a
        no it is not asked for again until a running sequence has left: it gets no better
        before, and looking up a long prompt costs time.

        Args:
            seq: A waiting sequence.
            running: Sequences that hold blocks.

        Returns:
            Published blocks that hold its beginning, or None if it has to wait.
        """
        if seq is self._refused:
            return None
        hits = self._block_manager.match_prefix(seq)
        num_needed = self._block_manager.num_blocks_needed(seq, hits)
        if num_needed <= self._block_manager.num_free_blocks and (
            not running or self._will_fit(seq, num_needed, len(hits), running)
        ):
            return hits
        self._refused = seq
        return None

    def _will_fit(
        self, seq: Sequence, num_needed: int, num_hits: int, running: Collection[Sequence]
    ) -> bool:
        manager, block_size = self._block_manager, self._block_manager.block_size
        forecast = self._forecast
        if forecast is None or not forecast.covers(seq):
            forecast = self._forecast = KvForecast(
                [*running],
                seq,
                num_used_tokens=(manager.num_blocks - manager.num_free_blocks) * block_size,
                mean_tokens=self.estimate.mean_tokens(running),
            )
        num_own = manager.num_blocks_of(seq.num_tokens) - num_hits
        forecast.add(
            seq,
            num_own_tokens=num_own * block_size,
            num_shared_tokens=(num_needed - num_own) * block_size,
        )
        return forecast.peak_tokens() <= manager.num_blocks * block_size


def num_tokens_left(seq: Sequence) -> int:
    """Return how many tokens the sequence may store beyond those it knows."""
    return seq.max_num_tokens - 1 - seq.num_tokens
