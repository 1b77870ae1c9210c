"""Turn logits into token ids, each slot by its own sequence's sampling parameters.

Runs on any device: it is what CPUs use and the reference of `gpu_sampler`. Knows the state that
sampling needs between steps, by slot: parameters and noise keys (`sampling_state`), token counts.
Does not know the model, the scheduler, or when a sequence ends. What a row draws depends on its
logits, parameters, noise key and position alone, never on who else is in the batch.

The order of effects is vLLM's: logit bias, ban of end-of-sequence tokens before min_tokens,
repetition, presence and frequency penalties, temperature, min-p, top-k, top-p, then the draw. Each
touches only the rows that ask for it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from nanobatch.engine.sampling_state import SamplingState
from nanobatch.engine.sequence import SlotAssignment
from nanobatch.kernels.sampling_draw import NoiseKeys, argmax_rows, draw_dense, draw_pruned
from nanobatch.kernels.sampling_filters import apply_min_p, apply_top_k, apply_top_p
from nanobatch.kernels.sampling_penalties import IntArray, TokenCounts

RowArray = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleResult:
    """What one call sampled; its tensors are on the sampler's device.

    Attributes:
        token_ids: [n] int64; 0 where is_nan.
        is_nan: [n] bool: the logits held NaN or +inf, or left no token to draw.
        logprobs: [n] float32 natural log of each token's probability in the softmax of the logits
            as they came, or None if not asked for; meaningless where is_nan.
    """

    token_ids: torch.Tensor
    is_nan: torch.Tensor
    logprobs: torch.Tensor | None


class Sampler:
    """Samples the next token of many sequences, each in its slot.

    Small per-slot values stay on the host, where they choose the rows of each effect; only what a
    step needs of them goes to the device. Token counts for penalties take
    5 bytes * max_num_seqs * vocab_size there, from the first slot with penalties on.
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
        self._token_counts: TokenCounts | None = None

    def assign(self, assignment: SlotAssignment) -> None:
        """Give a slot to a sequence: all state of the slot's previous sequence is replaced.

        Args:
            assignment: The sequence; its token ids are counted here if it has penalties.
        """
        self._state.assign(assignment)
        if assignment.params.has_penalties:
            self._allocated_token_counts().assign(
                assignment.slot,
                prompt_token_ids=assignment.prompt_token_ids,
                output_token_ids=assignment.output_token_ids,
            )

    def takes_best(self, slots: IntArray, positions: IntArray) -> npt.NDArray[np.bool_]:
        """Return which rows get the token of their largest logit and need nothing else of them.

        Args:
            slots: [n] slot of each row.
            positions: [n] position in its sequence of the token being sampled.
        """
        state = self._state.columns[slots]
        num_output_tokens = positions - state["num_prompt_tokens"]
        is_edited = state["has_logit_bias"] | state["has_penalties"]
        is_edited |= num_output_tokens < state["min_tokens"]
        return np.asarray(state["is_greedy"] & ~is_edited & (not self._return_logprobs))

    def sample(self, logits: torch.Tensor, slots: IntArray, positions: IntArray) -> SampleResult:
        """Draw one token for each row and count it where its sequence has penalties.

        Args:
            logits: [n, >= vocab_size] float32 or float64 on the sampler's device, not changed.
                Columns beyond the vocabulary are padding.
            slots: [n] slot of each row, on the host; no slot twice.
            positions: [n] position in its sequence of the token being sampled, on the host.

        Returns:
            One token per row, in the order of the rows.
        """
        logits = logits[:, : self._vocab_size]
        state = self._state.columns[slots]
        is_nan = ~logits.amax(dim=-1).isfinite()  # NaN and +inf win a maximum
        edited = self._edited(
            logits, np.asarray(slots), num_output_tokens=positions - state["num_prompt_tokens"]
        )
        if edited is not logits:
            is_nan |= ~edited.amax(dim=-1).isfinite()  # bans can leave nothing to draw
        token_ids = self._chosen(edited, state, positions).masked_fill_(is_nan, 0)
        self._count(token_ids, slots, has_penalties=state["has_penalties"])
        logprobs = _chosen_logprobs(logits, token_ids) if self._return_logprobs else None
        return SampleResult(token_ids=token_ids, is_nan=is_nan, logprobs=logprobs)

    def _edited(
        self, logits: torch.Tensor, slots: IntArray, *, num_output_tokens: IntArray
    ) -> torch.Tensor:
        """Apply what changes logits before temperature, to a copy if any row has such."""
        state = self._state.columns[slots]
        biased = np.flatnonzero(state["has_logit_bias"])
        banned = np.flatnonzero(num_output_tokens < state["min_tokens"])
        penalized = np.flatnonzero(state["has_penalties"])
        if not (biased.size or banned.size or penalized.size):
            return logits
        edited = logits.clone()
        for row in biased:
            bias = self._state.logit_bias[slots[row]]
            edited[row, list(bias)] += torch.tensor(
                list(bias.values()), dtype=edited.dtype, device=edited.device
            )
        for row in banned:
            edited[row, list(self._state.banned_token_ids[slots[row]])] = -torch.inf
        if penalized.size:
            self._penalize(edited, penalized, slots=slots[penalized])
        return edited

    def _penalize(self, logits: torch.Tensor, rows: RowArray, *, slots: IntArray) -> None:
        """Apply repetition, presence and frequency penalties to some rows, in place."""
        state, counts = self._state.columns[slots], self._allocated_token_counts()
        repetition, presence, frequency = (
            _column(state[name], logits)
            for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
        )
        selected = _rows_of(logits, rows)
        if (state["repetition_penalty"] != 1.0).any():
            counts.apply_repetition(selected, repetition, slots=slots)
        if state["presence_penalty"].any() or state["frequency_penalty"].any():
            counts.apply_generated(selected, presence=presence, frequency=frequency, slots=slots)
        _write_rows(logits, rows, selected)

    def _chosen(
        self, logits: torch.Tensor, state: npt.NDArray[np.void], positions: IntArray
    ) -> torch.Tensor:
        """Take the best token of greedy rows and draw one for the others: [n] int64."""
        sampled = np.flatnonzero(~state["is_greedy"])
        if not sampled.size:
            return argmax_rows(logits)
        if sampled.size == len(state):
            return self._drawn(logits, state, positions)
        token_ids = argmax_rows(logits)
        index = torch.from_numpy(sampled).to(logits.device)
        token_ids[index] = self._drawn(logits[index], state[sampled], positions[sampled])
        return token_ids

    def _drawn(
        self, logits: torch.Tensor, state: npt.NDArray[np.void], positions: IntArray
    ) -> torch.Tensor:
        """Draw from the softmax of each row's logits / temperature, filtered: [n] int64."""
        scaled = logits
        if (state["temperature"] != 1.0).any():
            scaled = logits / _column(state["temperature"], logits)
        scaled = self._filtered(scaled, state)
        keys = NoiseKeys(
            seeds=state["noise_seed"],
            samples=state["sample_index"],
            positions=positions.astype(np.int64),
        )
        draw = draw_pruned if self._device.type == "cpu" else draw_dense
        return draw(scaled, keys)

    def _filtered(self, scaled: torch.Tensor, state: npt.NDArray[np.void]) -> torch.Tensor:
        """Drop unlikely tokens of the rows that ask for it, in a copy if any does."""
        has_min_p, has_top_p = state["min_p"] > 0.0, state["top_p"] < 1.0
        has_top_k = state["top_k"] < self._vocab_size
        if not (has_min_p | has_top_k | has_top_p).any():
            return scaled
        filtered = scaled.clone()
        for is_asked, apply, name in (
            (has_min_p, apply_min_p, "min_p"),
            (has_top_k, apply_top_k, "top_k"),
            (has_top_p, apply_top_p, "top_p"),
        ):
            rows = np.flatnonzero(is_asked)
            if rows.size:
                selected = _rows_of(filtered, rows)
                apply(selected, torch.from_numpy(state[name][rows]).to(self._device))
                _write_rows(filtered, rows, selected)
        return filtered

    def _count(
        self, token_ids: torch.Tensor, slots: IntArray, *, has_penalties: npt.NDArray[np.bool_]
    ) -> None:
        rows = np.flatnonzero(has_penalties)
        if rows.size:
            index = torch.from_numpy(rows).to(token_ids.device)
            self._allocated_token_counts().add(token_ids[index], slots=slots[rows])

    def _allocated_token_counts(self) -> TokenCounts:
        if self._token_counts is None:
            self._token_counts = TokenCounts(
                len(self._state.columns), vocab_size=self._vocab_size, device=self._device
            )
        return self._token_counts


def _column(values: npt.NDArray[np.float64], like: torch.Tensor) -> torch.Tensor:
    """Upload one value per row as [n, 1] in the dtype and on the device of `like`."""
    return torch.from_numpy(values).to(like)[:, None]


def _rows_of(matrix: torch.Tensor, rows: RowArray) -> torch.Tensor:
    """Take some rows to work on: the matrix itself if it is all of them, else a copy."""
    if rows.size == len(matrix):
        return matrix
    return matrix[torch.from_numpy(rows).to(matrix.device)]


def _write_rows(matrix: torch.Tensor, rows: RowArray, changed: torch.Tensor) -> None:
    """Put rows from `_rows_of` back."""
    if changed is not matrix:
        matrix[torch.from_numpy(rows).to(matrix.device)] = changed


def _chosen_logprobs(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Take log_softmax at one token per row: [n] float32.

    The sum is in float64, so that its order (torch splits a single row among threads) cannot show.
    """
    maxima = logits.amax(dim=-1, keepdim=True)
    total = (logits - maxima).exp_().sum(dim=-1, dtype=torch.float64)
    chosen = (logits.gather(1, token_ids[:, None]) - maxima).squeeze(1)
    return (chosen - total.log()).to(torch.float32)
