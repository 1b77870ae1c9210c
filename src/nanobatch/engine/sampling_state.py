"""What sampling must know of each slot's sequence, on the host: parameters and noise keys.

Knows slots and `SamplingParams`, and settles once what they mean for a vocabulary. Shared by the
samplers of both devices; knows no logits, no device and no token counts.
"""

from typing import Final

import numpy as np

from nanobatch.engine.sequence import SlotAssignment

_SLOT_STATE: Final = np.dtype(
    [
        ("temperature", np.float64),
        ("is_greedy", np.bool_),
        ("top_k", np.int64),  # the vocabulary's size keeps all
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("has_penalties", np.bool_),
        ("repetition_penalty", np.float64),
        ("presence_penalty", np.float64),
        ("frequency_penalty", np.float64),
        ("has_logit_bias", np.bool_),
        ("min_tokens", np.int64),
        ("num_prompt_tokens", np.int64),
        ("noise_seed", np.uint64),
        ("sample_index", np.int64),
    ],
    align=True,  # torch reads a column in place
)


class SamplingState:
    """Sampling parameters by slot.

    Attributes:
        columns: [max_num_seqs] one record a slot; rows of a batch are `columns[slots]`.
        logit_bias: [max_num_seqs] bias of each token that has one, summed over its mentions.
        banned_token_ids: [max_num_seqs] tokens that are banned before min_tokens.
    """

    def __init__(self, *, max_num_seqs: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.columns = np.zeros(max_num_seqs, dtype=_SLOT_STATE)
        self.columns["is_greedy"] = True  # until a slot has a sequence; a profiling run needs none
        self.logit_bias: list[dict[int, float]] = [{} for _ in range(max_num_seqs)]
        self.banned_token_ids: list[tuple[int, ...]] = [()] * max_num_seqs

    def assign(self, assignment: SlotAssignment) -> None:
        """Give a slot to a sequence: all state of the slot's previous sequence is replaced."""
        params, slot = assignment.params, assignment.slot
        self.columns[slot] = (
            params.temperature,
            params.is_greedy,
            min(params.top_k or self._vocab_size, self._vocab_size),
            params.top_p,
            params.min_p,
            params.has_penalties,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
            bool(params.logit_bias),
            params.min_tokens if assignment.eos_token_ids else 0,
            len(assignment.prompt_token_ids),
            assignment.noise_seed % 2**64,
            assignment.sample_index,
        )
        self.logit_bias[slot] = _sum_by_token(params.logit_bias)
        self.banned_token_ids[slot] = assignment.eos_token_ids


def _sum_by_token(logit_bias: tuple[tuple[int, float], ...]) -> dict[int, float]:
    summed: dict[int, float] = {}
    for token_id, bias in logit_bias:
        summed[token_id] = summed.get(token_id, 0.0) + bias
    return summed
