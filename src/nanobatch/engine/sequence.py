"""One continuation of a request while it is in the engine: tokens, progress, blocks.

Holds state only; the scheduler moves it through its life, the block manager owns its blocks.
"""

from array import array
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from nanobatch.request import RowIndex, SamplingParams

INT32_BYTES: Final = 4


@dataclass(slots=True, kw_only=True)
class SlotAssignment:
    """A sequence enters a slot: everything the sampler must know of it from now on.

    Nobody changes one; not frozen, as one is made per row, and a frozen one takes almost three
    times as long to make.

    Attributes:
        slot: Index of the slot.
        params: How to sample.
        noise_seed: 64-bit key of the sampling noise, already derived where params.seed is None.
        sample_index: Second half of the noise key.
        prompt_token_ids: [num_prompt_tokens] int32.
        output_token_ids: [num_output_tokens] int32, not empty when a preempted sequence returns.
        eos_token_ids: Tokens banned until min_tokens are generated (the model's end-of-sequence
            ids unless ignore_eos, and params.stop_token_ids).
    """

    slot: int
    params: SamplingParams
    noise_seed: int
    sample_index: int
    prompt_token_ids: npt.NDArray[np.int32]
    output_token_ids: npt.NDArray[np.int32]
    eos_token_ids: tuple[int, ...]


class SequenceStatus(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """A prompt, what was generated for it, and how far the model has come with it.

    A token is *known* once the host has read it and *computed* once the step that stores its
    keys and values was launched. A running sequence has `num_tokens + num_in_flight` tokens on
    the device, of which the last is never computed yet.

    Attributes:
        seq_id: Unique in the engine.
        row_index: Request that the sequence answers.
        sample_index: Which of the request's samples it is.
        params: How to sample, never changed.
        max_tokens: Most tokens to generate, resolved against context and KV capacity.
        max_num_tokens: Most tokens in all, prompt included.
        noise_seed: 64-bit key of the sampling noise.
        eos_token_ids: Tokens that are banned until `params.min_tokens`.
        priority: Higher is admitted first.
        num_truncated_tokens: Tokens that were cut from the prompt before it came here.
        prompt_token_ids: [num_prompt_tokens] int32.
        output_token_ids: Known generated tokens.
        logprobs: Log-probability of each known generated token, if asked for.
        status: Where the sequence is in its life.
        slot: Stable index of its sampling state while it runs, else None.
        block_table: Ids of its KV blocks in order (a C int array, so that a step's tables are
            joined without touching single ids).
        prefix_entry_ids: Prefix-cache entry of each leading block that has one.
        block_hashes: Chained hash of each leading full block, as far as it was needed.
        num_computed_tokens: Tokens whose keys and values are stored by launched steps.
        num_in_flight: Tokens sampled by launched steps and not yet read.
        num_cached_tokens: Tokens taken from the prefix cache at first admission, None before.
        num_preemptions: Times it was sent back to the queue.
        num_lost_tokens: Tokens that were computed when it was last preempted, 0 once readmitted.
        has_cached_blocks: Whether it took blocks from the prefix cache at its last admission, or
            copied from one.
        avoids_cache: Whether it neither takes blocks from the prefix cache nor publishes any: it
            failed with blocks of others, and begins again with its own.
        drops_owed_tokens: Whether what it is owed is worthless; so until it is readmitted.
    """

    __slots__ = (
        "_prompt_bytes",
        "avoids_cache",
        "block_hashes",
        "block_table",
        "drops_owed_tokens",
        "eos_token_ids",
        "has_cached_blocks",
        "logprobs",
        "max_num_tokens",
        "max_tokens",
        "noise_seed",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_in_flight",
        "num_lost_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_truncated_tokens",
        "output_token_ids",
        "params",
        "prefix_entry_ids",
        "priority",
        "prompt_token_ids",
        "row_index",
        "sample_index",
        "seq_id",
        "slot",
        "status",
    )

    def __init__(
        self,
        seq_id: int,
        prompt_token_ids: npt.NDArray[np.int32],
        *,
        params: SamplingParams,
        max_tokens: int,
        noise_seed: int = 0,
        eos_token_ids: tuple[int, ...] = (),
        row_index: RowIndex = RowIndex(0),  # noqa: B008  (a NewType call is the plain int)
        sample_index: int = 0,
        priority: int = 0,
        num_truncated_tokens: int = 0,
    ) -> None:
        assert len(prompt_token_ids) > 0, "an empty prompt is an error row, not a sequence"
        assert max_tokens > 0, "a request for no tokens is answered without the engine"
        self.seq_id: Final = seq_id
        self.row_index: Final = row_index
        self.sample_index: Final = sample_index
        self.params: Final = params
        self.max_tokens: Final = max_tokens
        self.noise_seed: Final = noise_seed
        self.eos_token_ids: Final = eos_token_ids
        self.priority: Final = priority
        self.num_truncated_tokens: Final = num_truncated_tokens
        self.prompt_token_ids: Final = np.ascontiguousarray(prompt_token_ids, dtype=np.int32)
        self._prompt_bytes: Final = self.prompt_token_ids.data.cast("B")
        self.num_prompt_tokens: Final = len(prompt_token_ids)
        self.max_num_tokens: Final = len(prompt_token_ids) + max_tokens
        self.output_token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.status = SequenceStatus.WAITING
        self.slot: int | None = None
        self.block_table: array[int] = array("i")
        self.prefix_entry_ids: list[int] = []
        self.block_hashes: list[bytes] = []
        self.num_computed_tokens = 0
        self.num_in_flight = 0
        self.num_cached_tokens: int | None = None
        self.num_preemptions = 0
        self.num_lost_tokens = 0
        self.has_cached_blocks = False
        self.avoids_cache = False
        self.drops_owed_tokens = False

    def __repr__(self) -> str:
        return (
            f"Sequence(seq_id={self.seq_id}, {self.status.value}, "
            f"num_tokens={self.num_tokens}, num_computed_tokens={self.num_computed_tokens}, "
            f"num_in_flight={self.num_in_flight})"
        )

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output."""
        return self.num_prompt_tokens + len(self.output_token_ids)

    @property
    def has_known_length(self) -> bool:
        """Whether nothing but max_tokens can end the sequence."""
        params = self.params
        return params.ignore_eos and not params.stop and not params.stop_token_ids

    def tokens(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the known tokens at positions start to stop.

        Returns:
            [stop - start] int32; a view where only the prompt is touched.
        """
        assert 0 <= start <= stop <= self.num_tokens, "only known tokens can be read"
        num_prompt_tokens = self.num_prompt_tokens
        if stop <= num_prompt_tokens:
            return self.prompt_token_ids[start:stop]
        first_output = max(start - num_prompt_tokens, 0)
        output = np.array(
            self.output_token_ids[first_output : stop - num_prompt_tokens], dtype=np.int32
        )
        if start >= num_prompt_tokens:
            return output
        return np.concatenate([self.prompt_token_ids[start:], output])

    def token_bytes(self, start: int, stop: int) -> bytes:
        """Return the known tokens at positions start to stop as int32 bytes, for hashing."""
        assert 0 <= start <= stop <= self.num_tokens, "only known tokens can be read"
        if stop <= self.num_prompt_tokens:
            return self._prompt_bytes[start * INT32_BYTES : stop * INT32_BYTES].tobytes()
        num_prompt_tokens = self.num_prompt_tokens
        first_output = max(start - num_prompt_tokens, 0)
        output = array("i", self.output_token_ids[first_output : stop - num_prompt_tokens])
        return self._prompt_bytes[start * INT32_BYTES :].tobytes() + output.tobytes()

    def slot_assignment(self) -> SlotAssignment:
        """Return what the sampler must know of the sequence now that it has a slot."""
        assert self.slot is not None, "only a running sequence has a slot"
        return SlotAssignment(
            slot=self.slot,
            params=self.params,
            noise_seed=self.noise_seed,
            sample_index=self.sample_index,
            prompt_token_ids=self.prompt_token_ids,
            output_token_ids=np.array(self.output_token_ids, dtype=np.int32),
            eos_token_ids=self.eos_token_ids,
        )
