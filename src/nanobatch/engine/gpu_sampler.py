"""Turn logits into token ids on a GPU: the sampler of the decode loop, which never waits.

Does what `sampler.Sampler` does, for float32 logits: the same tokens, in the same order of effects.
Knows slots, and packs what kernels need of a batch's slots into one copy that serves many steps.
Does not know the model, the scheduler, or when a sequence ends.

A batch of greedy and plainly sampled rows costs two launches a step. Biases and bans, penalties,
and filters each launch more only in batches where a row asks for them, and their kernels leave the
other rows at once.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from nanobatch.engine.sampling_state import SamplingState
from nanobatch.engine.sequence import SlotAssignment
from nanobatch.kernels.gpu.sampling import draw
from nanobatch.kernels.gpu.sampling_edits import TOKEN_EDIT, TokenCounts, edit_tokens, penalize
from nanobatch.kernels.gpu.sampling_logprobs import token_logprobs
from nanobatch.kernels.gpu.sampling_records import (
    IS_FILTERED,
    IS_PENALIZED,
    IS_ROW,
    RECORD_WORDS,
    ROW_RECORD,
)
from nanobatch.kernels.gpu.sampling_thresholds import find_cutoffs
from nanobatch.kernels.host_copy import copy_to_device

TokenEdits = npt.NDArray[np.void]

INT32_MAX = 2**31 - 1

_NO_EDITS: TokenEdits = np.empty(0, dtype=TOKEN_EDIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """What the kernels know of a batch's rows: the same for every step until the batch changes.

    Attributes:
        records: [num_padded_rows, RECORD_WORDS] int32 on the device, zeros where there is no row.
        edits: [num_edits, EDIT_WORDS] int32 biases and bans on the device, or None.
        has_filters: Whether any row has top-k, top-p or min-p.
        has_penalties: Whether any row has penalties.
    """

    records: torch.Tensor
    edits: torch.Tensor | None
    has_filters: bool
    has_penalties: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """What one step sampled; all on the device.

    Attributes:
        token_ids: [n] int32; 0 where is_nan and for rows that are inactive or padding.
        is_nan: [n] bool: the logits held NaN or +inf, or left no token to draw.
        logprobs: [n] float32 natural log of each token's probability in the softmax of the logits
            as they came, or None if not asked for; meaningless where is_nan.
    """

    token_ids: torch.Tensor
    is_nan: torch.Tensor
    logprobs: torch.Tensor | None


class GpuSampler:
    """Samples the next token of many sequences, each in its slot, without waiting for the device.

    Token counts for penalties are allocated with the first slot that has any: `num_late_bytes`.

    Args:
        max_num_seqs: Number of slots.
        vocab_size: Tokens that can be drawn.
        device: Where logits come from.
        return_logprobs: Whether samples carry log-probabilities.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        vocab_size: int,
        device: torch.device,
        return_logprobs: bool = False,
    ) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._return_logprobs = return_logprobs
        self._state = SamplingState(max_num_seqs=max_num_seqs, vocab_size=vocab_size)
        self._records = np.zeros(max_num_seqs, dtype=ROW_RECORD)
        self._records["flags"] = IS_ROW  # a profiling run assigns no slot
        self._edits: list[TokenEdits] = [_NO_EDITS] * max_num_seqs
        self._num_edits = np.zeros(max_num_seqs, dtype=np.int32)
        self._token_counts: TokenCounts | None = None

    @property
    def num_late_bytes(self) -> int:
        """Device memory that is taken only once a row asks for penalties, biases or bans."""
        num_logits = len(self._records) * self._vocab_size
        num_copied_bytes = num_logits * 4 if self._return_logprobs else 0
        return num_logits * TokenCounts.BYTES_PER_TOKEN + num_copied_bytes

    def assign(self, assignment: SlotAssignment) -> None:
        """Give a slot to a sequence: all state of the slot's previous sequence is replaced.

        Batches uploaded before keep what they knew of the slot, except for its token counts.

        Args:
            assignment: The sequence; its token ids are counted here if it has penalties.
        """
        slot = assignment.slot
        self._state.assign(assignment)
        self._records[slot] = self._record(slot)[0]
        self._edits[slot] = self._token_edits(slot)
        self._num_edits[slot] = len(self._edits[slot])
        if assignment.params.has_penalties:
            self._allocated_token_counts().assign(
                slot,
                prompt_token_ids=assignment.prompt_token_ids,
                output_token_ids=assignment.output_token_ids,
            )

    def upload(self, slots: npt.NDArray[np.int32], *, num_padded_rows: int) -> SamplingRows:
        """Send what sampling needs of a batch to the device: one copy, no wait.

        Args:
            slots: [n] slot of each row; no slot twice.
            num_padded_rows: Rows of the logits to come, n or more; rows past n are padding.
        """
        assert num_padded_rows >= len(slots), "more rows than the logits have"
        records = np.zeros(num_padded_rows, dtype=ROW_RECORD)
        records[: len(slots)] = self._records[slots]
        edits = self._edits_of(slots)
        words = np.concatenate([records.view(np.int32), edits.view(np.int32)])
        on_device = copy_to_device(words, self._device)
        num_record_words = num_padded_rows * RECORD_WORDS
        flags = int(np.bitwise_or.reduce(records["flags"]))
        return SamplingRows(
            records=on_device[:num_record_words].view(num_padded_rows, RECORD_WORDS),
            edits=on_device[num_record_words:].view(len(edits), -1) if len(edits) else None,
            has_filters=bool(flags & IS_FILTERED),
            has_penalties=bool(flags & IS_PENALIZED),
        )

    def sample(
        self,
        logits: torch.Tensor,
        rows: SamplingRows,
        *,
        positions: torch.Tensor,
        is_active: torch.Tensor | None = None,
    ) -> GpuSample:
        """Queue the draw of one token for each row, and its count where the row has penalties.

        Args:
            logits: [n, >= vocab_size] float32, rows contiguous, n up to num_padded_rows.
                Columns beyond the vocabulary are padding. Biases, bans and penalties are applied
                in place unless log-probabilities are wanted.
            rows: The batch; may serve any number of calls.
            positions: [n] int32 on the device: position of the token being sampled.
            is_active: [n] bool or int32 on the device; a row that is 0 draws and counts nothing.
                None: all rows are active.

        Returns:
            One token per row, in the order of the rows.
        """
        edited = self._edited(logits, rows, positions=positions, is_active=is_active)
        cutoffs = None
        if rows.has_filters:
            cutoffs = find_cutoffs(
                edited, rows.records, is_active=is_active, vocab_size=self._vocab_size
            )
        token_ids, is_nan = draw(
            edited,
            rows.records,
            positions=positions,
            is_active=is_active,
            vocab_size=self._vocab_size,
            cutoffs=cutoffs,
            counts=self._allocated_token_counts() if rows.has_penalties else None,
        )
        logprobs = None
        if self._return_logprobs:
            logprobs = token_logprobs(logits, token_ids, vocab_size=self._vocab_size)
        return GpuSample(token_ids=token_ids, is_nan=is_nan, logprobs=logprobs)

    def _edited(
        self,
        logits: torch.Tensor,
        rows: SamplingRows,
        *,
        positions: torch.Tensor,
        is_active: torch.Tensor | None,
    ) -> torch.Tensor:
        """Apply what changes logits before temperature; log-probabilities are of those before."""
        if rows.edits is None and not rows.has_penalties:
            return logits
        edited = logits.clone() if self._return_logprobs else logits
        if rows.edits is not None:
            edit_tokens(edited, rows.edits, positions=positions, vocab_size=self._vocab_size)
        if rows.has_penalties:
            penalize(edited, rows.records, self._allocated_token_counts(), is_active=is_active)
        return edited

    def _record(self, slot: int) -> npt.NDArray[np.void]:
        """Translate a slot's state for the kernels: [1]."""
        state = self._state.columns[slot]
        is_filtered = not state["is_greedy"] and (
            state["top_k"] < self._vocab_size or state["top_p"] < 1.0 or state["min_p"] > 0.0
        )
        record = np.zeros(1, dtype=ROW_RECORD)
        record["flags"] = IS_ROW | IS_FILTERED * is_filtered | IS_PENALIZED * state["has_penalties"]
        record["slot"] = slot
        record["temperature"] = 0.0 if state["is_greedy"] else state["temperature"]
        record["log_min_p"] = np.log(state["min_p"]) if state["min_p"] > 0.0 else -np.inf
        for name in (
            "sample_index",
            "noise_seed",
            "top_p",
            "top_k",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        ):
            record[name] = state[name]
        return record

    def _token_edits(self, slot: int) -> TokenEdits:
        """List a slot's biases and bans, one entry a token."""
        state = self._state.columns[slot]
        bias = self._state.logit_bias[slot]
        banned = self._state.banned_token_ids[slot] if state["min_tokens"] else ()
        token_ids = list(dict.fromkeys([*bias, *banned]))
        edits = np.zeros(len(token_ids), dtype=TOKEN_EDIT)
        edits["token_id"] = token_ids
        edits["bias"] = [bias.get(token_id, 0.0) for token_id in token_ids]
        banned_before = min(int(state["num_prompt_tokens"] + state["min_tokens"]), INT32_MAX)
        edits["banned_before"] = [banned_before * (token_id in banned) for token_id in token_ids]
        return edits

    def _edits_of(self, slots: npt.NDArray[np.int32]) -> TokenEdits:
        """Join the edits of some slots, each with the row of its slot."""
        num_edits = self._num_edits[slots]
        rows = np.flatnonzero(num_edits)
        if not rows.size:
            return _NO_EDITS
        joined = np.concatenate([self._edits[slot] for slot in slots[rows]])
        joined["row"] = np.repeat(rows, num_edits[rows])
        return joined

    def _allocated_token_counts(self) -> TokenCounts:
        if self._token_counts is None:
            self._token_counts = TokenCounts(
                len(self._records), vocab_size=self._vocab_size, device=self._device
            )
        return self._token_counts
