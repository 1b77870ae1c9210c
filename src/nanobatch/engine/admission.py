"""Whether one more sequence fits: a forecast of how much KV the running ones will come to need.

Admitting by what is free now fills the pool with young sequences whose growth then drives each
other out; admitting by max_tokens leaves most of the pool empty, since answers are mostly
short. So the *expected* use of the pool is followed into the future, and a sequence is admitted
while the highest point stays inside the pool, with a margin for chance (the idea of the
Past-Future scheduler, Gong et al., ASPLOS 2025, which draws lengths where we take moments).
Sequences that only max_tokens can end have a known length and are exact; the others thin out
at the rates of `output_lengths`. Knows sequences and the pool's counts; not steps or devices.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.cache_entry import PrefixHits
from nanobatch.engine.output_lengths import AGE_EDGES, NUM_AGES, StoppingRates, age_group
from nanobatch.engine.running_set import RunningSet
from nanobatch.engine.sequence import Sequence

NUM_INTERVALS: Final = 96
SURVIVORS_FOLLOWED: Final = 0.02
"""The forecast ends where fewer than this share of new sequences still runs."""
SAFETY_STD: Final = 2.0
"""Standard deviations of use that are kept free above the expected use."""

KNOWN: Final = NUM_AGES
"""Cohort of the sequences whose length is known, after those of each age."""

FloatArray = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]


class KvForecast:
    """Expected use of the KV pool from now until the running sequences have ended.

    Time is counted in tokens per sequence and cut into equal intervals; a use inside an
    interval is rounded up to that at its end.

    Args:
        running: Sequences that hold blocks.
        candidate: A sequence that is about to be added; it only lengthens the view.
        num_used_tokens: Places of the pool that are taken now.
        rates: Expected stops up to each of AGE_EDGES.
    """

    __slots__ = (
        "_expected",
        "_growth",
        "_interval",
        "_most",
        "_num_lasting_tokens",
        "_survival",
        "_unknown_horizon",
        "_variance",
    )

    def __init__(
        self,
        running: list[Sequence],
        candidate: Sequence,
        *,
        num_used_tokens: int,
        rates: FloatArray,
    ) -> None:
        self._unknown_horizon = int(np.interp(-np.log(SURVIVORS_FOLLOWED), rates, AGE_EDGES))
        horizon = max(self._horizon(seq) for seq in (*running, candidate))
        self._interval = max(1, -(-horizon // NUM_INTERVALS))
        time = np.arange(NUM_INTERVALS) * self._interval
        self._growth = time + float(self._interval)
        self._survival = _survival_by_cohort(time, rates)
        held = np.array([_num_own_tokens(seq) for seq in running], dtype=np.float64)
        self._num_lasting_tokens = num_used_tokens - int(held.sum())
        self._sum_up(self._moments(running, held))

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
        end = self._end(seq)
        held = num_own_tokens + self._growth[:end]
        survival = self._survival[_cohort(seq), :end]
        self._expected[:end] += survival * held
        self._variance[:end] += survival * (1 - survival) * held * held
        self._most[:end] += held
        self._num_lasting_tokens += num_shared_tokens

    def peak_tokens(self) -> float:
        """Return the highest expected use plus its safety margin."""
        likely = self._expected + SAFETY_STD * np.sqrt(self._variance)
        return float(self._num_lasting_tokens + np.minimum(likely, self._most).max())

    def _horizon(self, seq: Sequence) -> int:
        num_left = _num_tokens_left(seq)
        return num_left if seq.has_known_length else min(num_left, self._unknown_horizon)

    def _end(self, seq: Sequence) -> int:
        return min(-(-_num_tokens_left(seq) // self._interval), NUM_INTERVALS)

    def _moments(self, running: list[Sequence], held: FloatArray) -> FloatArray:
        """Group sequences into *cohorts* that thin out in the same way: by age.

        Returns:
            [3, NUM_AGES + 1, NUM_INTERVALS]: number of a cohort's sequences that may reach an
            interval, and the sum and sum of squares of what they hold now.
        """
        shape = (NUM_AGES + 1, NUM_INTERVALS + 1)
        cells = [_cohort(seq) * shape[1] + self._end(seq) for seq in running]
        by_end = [
            np.bincount(np.array(cells, dtype=np.int64), weights, minlength=shape[0] * shape[1])
            for weights in (np.ones_like(held), held, held * held)
        ]
        # Whoever ends before interval i + 1 at the earliest may reach interval i.
        latest_first = np.reshape(by_end, (3, *shape))[:, :, :0:-1]
        return np.asarray(np.cumsum(latest_first, axis=2)[:, :, ::-1])

    def _sum_up(self, moments: FloatArray) -> None:
        count, held, held_squared = moments
        survival, growth = self._survival, self._growth
        squares = held_squared + 2 * growth * held + growth * growth * count
        self._expected: FloatArray = (survival * (held + growth * count)).sum(axis=0)
        self._variance: FloatArray = (survival * (1 - survival) * squares).sum(axis=0)
        self._most: FloatArray = (held + growth * count).sum(axis=0)


class AdmissionControl:
    """Says yes or no to sequences, one scheduling step at a time.

    Args:
        block_manager: The KV pool.
        prior_output_tokens: Length that outputs are taken to have while none has ended.
    """

    __slots__ = ("_block_manager", "_forecast", "_refused", "stopping_rates")

    def __init__(self, block_manager: BlockManager, *, prior_output_tokens: int) -> None:
        self.stopping_rates: Final = StoppingRates(prior_output_tokens)
        self._block_manager = block_manager
        self._forecast: KvForecast | None = None
        self._refused: Sequence | None = None

    def begin_step(self) -> None:
        """Forget the forecast of the last step: tokens were added since."""
        self._forecast = None

    def note_departure(self) -> None:
        """Make a new forecast, and reconsider who was refused last: a running sequence has left."""
        self._forecast = None
        self._refused = None

    def find_room(self, seq: Sequence, running: RunningSet) -> PrefixHits | None:
        """Decide whether the sequence fits beside the running ones, now and later.

        After a yes it counts as running for the rest of the step. Alone it always fits. After a
        no it is not asked for again until a running sequence has left: it gets no better
        before, and looking up a long prompt costs time.

        Args:
            seq: A waiting sequence.
            running: The running sequences.

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

    def _will_fit(self, seq: Sequence, num_needed: int, num_hits: int, running: RunningSet) -> bool:
        manager, block_size = self._block_manager, self._block_manager.block_size
        num_tokens_at_most = running.max_num_tokens + seq.max_num_tokens
        if manager.num_blocks_of(num_tokens_at_most) + len(running) < manager.num_blocks:
            return True
        forecast = self._forecast
        if forecast is None or not forecast.covers(seq):
            forecast = self._forecast = KvForecast(
                [*running],
                seq,
                num_used_tokens=(manager.num_blocks - manager.num_free_blocks) * block_size,
                rates=self.stopping_rates.cumulative(running),
            )
        num_own = manager.num_blocks_of(seq.num_tokens) - num_hits
        forecast.add(
            seq,
            num_own_tokens=num_own * block_size,
            num_shared_tokens=(num_needed - num_own) * block_size,
        )
        return forecast.peak_tokens() <= manager.num_blocks * block_size


def _num_tokens_left(seq: Sequence) -> int:
    # The last one is never stored, but blocks are held until it has been read.
    return seq.max_num_tokens - seq.num_tokens


def _num_own_tokens(seq: Sequence) -> int:
    # An estimate: what was found in the cache may be its own by now, and the reverse.
    return seq.num_tokens - (seq.num_cached_tokens or 0)


def _cohort(seq: Sequence) -> int:
    return KNOWN if seq.has_known_length else age_group(len(seq.output_token_ids))


def _survival_by_cohort(time: Int64Array, rates: FloatArray) -> FloatArray:
    """Return in [NUM_AGES + 1, NUM_INTERVALS] which share of a cohort still runs."""
    ages = (AGE_EDGES[:-1] + AGE_EDGES[1:]) // 2
    now = np.interp(ages, AGE_EDGES, rates)
    later = np.interp(ages[:, None] + time, AGE_EDGES, rates)
    return np.vstack([np.exp(now[:, None] - later), np.ones(len(time))])
