"""Requests that are in the engine: which samples of each have ended, and which have not.

Knows sequences and their outputs; not how sequences run or why they ended.
"""

from collections.abc import Sequence

from nanobatch.engine.sequence import Sequence as EngineSequence
from nanobatch.request import RequestOutput, RequestOutputs, RowIndex


class UnfinishedRequests:
    """Gathers the outputs of each request's samples until there is one for all of them.

    Attributes:
        num_prompt_tokens: Prompt tokens of all requests here, each prompt counted once.
    """

    __slots__ = ("_by_row", "num_prompt_tokens")

    def __init__(self) -> None:
        self._by_row: dict[RowIndex, _Samples] = {}
        self.num_prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._by_row)

    def add(self, sequences: Sequence[EngineSequence]) -> None:
        """Add a request: its samples, in order. Its row must not be here already."""
        row_index = sequences[0].row_index
        assert row_index not in self._by_row, "row_index is the request's key"
        self._by_row[row_index] = _Samples(sequences)
        self.num_prompt_tokens += sequences[0].num_prompt_tokens

    def collect(self, output: RequestOutput) -> RequestOutputs | None:
        """Take the output of one sample.

        Returns:
            All outputs of the request, in order of their samples, if this was the last one
            missing; the request is then forgotten.
        """
        samples = self._by_row[output.row_index]
        assert samples.outputs[output.sample_index] is None, "a sample ends once"
        samples.outputs[output.sample_index] = output
        samples.num_missing -= 1
        if samples.num_missing:
            return None
        self.remove(output.row_index)
        return tuple([each for each in samples.outputs if each is not None])

    def remove(self, row_index: RowIndex) -> Sequence[EngineSequence]:
        """Forget a request, if it is here.

        Returns:
            Its sequences, ended or not; none if it is not here.
        """
        samples = self._by_row.pop(row_index, None)
        if samples is None:
            return ()
        self.num_prompt_tokens -= samples.sequences[0].num_prompt_tokens
        return samples.sequences

    def clear(self) -> None:
        """Forget all requests."""
        self._by_row.clear()
        self.num_prompt_tokens = 0


class _Samples:
    """The sequences of a request and the outputs of those that have ended."""

    __slots__ = ("num_missing", "outputs", "sequences")

    def __init__(self, sequences: Sequence[EngineSequence]) -> None:
        self.sequences = sequences
        self.outputs: list[RequestOutput | None] = [None] * len(sequences)
        self.num_missing = len(sequences)
