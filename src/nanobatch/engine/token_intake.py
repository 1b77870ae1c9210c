"""Gives sequences the tokens that a launch sampled, as far as each of them goes on.

Knows tokens and endings; not blocks or steps to come. Few rows end in a step, so which rows
*may* end is found for all at once, and only those are looked at token by token.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nanobatch.engine.scheduler_output import ScheduledDecode, SchedulerOutput
from nanobatch.engine.sequence import Sequence, SequenceStatus
from nanobatch.engine.step_batch import SampledTokens
from nanobatch.engine.stopping import Ending

FindEnding = Callable[[Sequence], Ending | None]
"""Says how a sequence ends with its newest token, None if it goes on."""

EndedSequence = tuple[Sequence, Ending | None]
"""A sequence that has its last token, and why; None where its logits held NaN or +inf."""

BoolArray = npt.NDArray[np.bool_]


class StopTokenTable:
    """Every token id that ends some sequence, in a table over the vocabulary.

    It keeps ids and nothing else, so that it does not grow with the rows of a job.

    Attributes:
        has_stop_strings: Whether any sequence may end at a string, which no table tells.
    """

    __slots__ = ("_is_stop", "_token_ids", "has_stop_strings")

    def __init__(self) -> None:
        self.has_stop_strings = False
        self._is_stop: BoolArray = np.zeros(1, dtype=np.bool_)
        self._token_ids: set[int] = set()

    def add(self, seq: Sequence) -> None:
        """Add what ends a sequence; its stop tokens are not negative."""
        self.has_stop_strings |= bool(seq.params.stop)
        if self._token_ids.issuperset(seq.eos_token_ids):
            return  # as for most: the rows of a job end alike
        token_ids = list(seq.eos_token_ids)
        self._token_ids.update(token_ids)
        # The last entry stands for every id above, which are clipped to it.
        num_missing = max(token_ids) + 2 - len(self._is_stop)
        if num_missing > 0:
            self._is_stop = np.pad(self._is_stop, (0, num_missing))
        self._is_stop[token_ids] = True

    def contain(self, token_ids: npt.NDArray[np.int32]) -> BoolArray:
        """Return where an id ends some sequence; ids out of bounds are clipped."""
        return self._is_stop.take(token_ids, mode="clip")


@dataclass(slots=True)
class TokenIntake:
    """One launch's tokens on their way into their sequences.

    Attributes:
        sampled: What the launch sampled.
        find_ending: Called for tokens that may end their sequence, which holds them already.
        num_kept: Tokens that sequences were given.
        ended: Sequences that have their last token.
    """

    sampled: SampledTokens
    find_ending: FindEnding
    num_kept: int = 0
    ended: list[EndedSequence] = field(default_factory=list)

    def take(self, output: SchedulerOutput, stop_tokens: StopTokenTable) -> None:
        """Give every sequence of a step its tokens up to its end.

        A preempted sequence gets its tokens. Those of one that has finished or begins again are
        dropped.
        """
        num_steps, finished = output.num_steps, SequenceStatus.FINISHED
        last_rows = _last_rows(output)
        firsts = self._first_possible_ends(output.sampled, last_rows, stop_tokens)
        columns: list[list[int]] = self.sampled.token_ids.T.tolist()  # [num_rows][num_steps]
        # The hot loop of the host: once per sequence and launch.
        for row, (seq, token_ids, first) in enumerate(
            zip(output.sampled, columns, firsts, strict=True)
        ):
            num_tokens = num_steps if first == num_steps else last_rows.get(row, num_steps)
            seq.num_in_flight -= num_tokens
            if seq.status is finished or seq.drops_owed_tokens:
                continue
            if first == num_steps:
                seq.output_token_ids += token_ids
                self.num_kept += num_tokens
            else:
                self.num_kept += self._take_until_end(seq, row, token_ids[:num_tokens], start=first)
        self._take_logprobs(output.sampled)

    def _first_possible_ends(
        self, seqs: list[Sequence], last_rows: dict[int, int], stop_tokens: StopTokenTable
    ) -> list[int]:
        """Return the first step at which each row may end, num_steps where it cannot."""
        may_end = stop_tokens.contain(self.sampled.token_ids)  # [num_steps, num_rows]
        may_end |= self.sampled.is_nan
        may_end[np.array(list(last_rows.values()), dtype=np.intp) - 1, list(last_rows)] = True
        if stop_tokens.has_stop_strings:
            may_end[:, [row for row, seq in enumerate(seqs) if seq.params.stop]] = True
        firsts = np.where(may_end.any(axis=0), may_end.argmax(axis=0), len(may_end))
        first_of_row: list[int] = firsts.tolist()
        return first_of_row

    def _take_until_end(self, seq: Sequence, row: int, token_ids: list[int], *, start: int) -> int:
        """Give a sequence tokens one by one from step `start` on; return how many it got."""
        is_nan = self.sampled.is_nan[:, row].tolist()
        seq.output_token_ids += token_ids[:start]
        for step in range(start, len(token_ids)):
            if is_nan[step]:
                self.ended.append((seq, None))
                return step
            seq.output_token_ids.append(token_ids[step])
            ending = self.find_ending(seq)
            if ending is not None:
                self.ended.append((seq, ending))
                return step + 1
        return len(token_ids)

    def _take_logprobs(self, seqs: list[Sequence]) -> None:
        """Give sequences the log-probabilities of the tokens that they were given."""
        if self.sampled.logprobs is not None:
            for seq, logprobs in zip(seqs, self.sampled.logprobs.T.tolist(), strict=True):
                seq.logprobs += logprobs[: len(seq.output_token_ids) - len(seq.logprobs)]


def _last_rows(output: SchedulerOutput) -> dict[int, int]:
    """Return the rows that reach max_tokens with this step, each with its number of tokens."""
    if isinstance(output, ScheduledDecode):
        return output.last_rows
    # Results are read in order, so all tokens before the one of this step are known by now.
    return {
        row: 1 for row, seq in enumerate(output.sampled) if seq.num_tokens + 1 >= seq.max_num_tokens
    }
