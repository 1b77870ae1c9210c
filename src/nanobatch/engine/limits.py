"""What fits: context length, KV capacity and vocabulary, and what they do to a request.

Pure arithmetic over numbers that are fixed once the model is loaded.

**Long prompts.** Unless they are errors, prompts of the context length or more are cut to leave
the answer room for its max_tokens, but for no more than a quarter of the context, and for one
token at least. Only the context decides: a prompt is never cut to the KV pool, as the size of a
machine's memory must not change a text.
"""

from dataclasses import dataclass

import numpy as np

from nanobatch.config import LongPrompts
from nanobatch.engine.long_prompts import cut_prompt
from nanobatch.engine.sequence import Sequence
from nanobatch.engine.tokenizer import TokenIds
from nanobatch.request import DEFAULT_MAX_TOKENS, ErrorCode, Request, RowError, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The bounds of one engine.

    Attributes:
        max_model_len: Longest prompt plus output, in tokens.
        kv_capacity_tokens: Tokens that the whole KV pool holds.
        vocab_size: Token ids run from 0 to this, exclusive.
        eos_token_ids: The model's end-of-sequence ids, all in the vocabulary.
        long_prompts: What becomes of a prompt that does not fit the context.
        bos_token_id: The tokenizer's beginning-of-sequence id, if it has one.
    """

    max_model_len: int
    kv_capacity_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    long_prompts: LongPrompts = "error"
    bos_token_id: int | None = None

    @property
    def max_encoded_tokens(self) -> int | None:
        """Tokens from which on a prompt need not be encoded, as it is an error; None never."""
        return self.max_model_len if self.long_prompts == "error" else None

    def fitted(self, params: SamplingParams, prompt_token_ids: TokenIds) -> TokenIds:
        """Return the prompt, cut if it is too long for the context and may be cut."""
        if len(prompt_token_ids) < self.max_model_len or self.long_prompts == "error":
            return prompt_token_ids
        room = max(1, min(_wanted_tokens(params), self.max_model_len // 4))
        num_kept = self.max_model_len - room
        if num_kept == 0:
            return prompt_token_ids
        return cut_prompt(
            prompt_token_ids, num_kept, policy=self.long_prompts, bos_token_id=self.bos_token_id
        )

    def check(self, request: Request, prompt_token_ids: TokenIds) -> RowError | None:
        """Return why a request can never run, or None if it can."""
        num_tokens = len(prompt_token_ids)
        if num_tokens >= self.max_model_len:
            return RowError(
                code=ErrorCode.PROMPT_TOO_LONG,
                message=(
                    f"prompt has {num_tokens:,} tokens; "
                    f"the model's context is {self.max_model_len:,}"
                ),
            )
        if num_tokens + 1 > self.kv_capacity_tokens:
            return RowError(
                code=ErrorCode.EXCEEDS_KV_CAPACITY,
                message=(
                    f"prompt has {num_tokens:,} tokens; "
                    f"the KV cache holds {self.kv_capacity_tokens:,} with the answer's first"
                ),
            )
        return self._check_token_ids(request, prompt_token_ids)

    def max_tokens(self, params: SamplingParams, num_prompt_tokens: int) -> int:
        """Return how many tokens a request may generate, clipped to context and KV pool."""
        return min(
            _wanted_tokens(params),
            self._context_room(num_prompt_tokens),
            self._kv_room(num_prompt_tokens),
        )

    def is_kv_bound(self, sequence: Sequence) -> bool:
        """Whether it is the KV pool, not the request or the context, that ends a sequence."""
        num_prompt_tokens = sequence.num_prompt_tokens
        return self._kv_room(num_prompt_tokens) < min(
            _wanted_tokens(sequence.params), self._context_room(num_prompt_tokens)
        )

    def stop_token_ids(self, params: SamplingParams) -> tuple[int, ...]:
        """Return the token ids that end a request's sequences."""
        eos = () if params.ignore_eos else self.eos_token_ids
        return tuple(dict.fromkeys((*eos, *params.stop_token_ids)))

    def _context_room(self, num_prompt_tokens: int) -> int:
        return self.max_model_len - num_prompt_tokens

    def _kv_room(self, num_prompt_tokens: int) -> int:
        # The last generated token is never attended to, so it needs no place in the pool.
        return self.kv_capacity_tokens + 1 - num_prompt_tokens

    def _check_token_ids(self, request: Request, prompt_token_ids: TokenIds) -> RowError | None:
        # Text is looked at too: some tokenizers have tokens that their model was not resized for.
        # Of unsigned numbers the greatest tells all: what was negative is above any vocabulary.
        if prompt_token_ids.view(np.uint32).max() >= self.vocab_size:
            where = "the prompt" if request.input_ids is None else "input_ids"
            lowest, highest = int(prompt_token_ids.min()), int(prompt_token_ids.max())
            return self._outside_vocabulary(where, lowest if lowest < 0 else highest)
        for token_id, _ in request.params.logit_bias:
            if not 0 <= token_id < self.vocab_size:
                return self._outside_vocabulary("logit_bias", token_id)
        for token_id in request.params.stop_token_ids:
            if not 0 <= token_id < self.vocab_size:
                return self._outside_vocabulary("stop_token_ids", token_id)
        return None

    def _outside_vocabulary(self, where: str, token_id: int) -> RowError:
        return RowError(
            code=ErrorCode.BAD_PARAMS,
            message=(
                f"{where} holds token id {token_id}; the vocabulary has {self.vocab_size:,} tokens"
            ),
        )


def _wanted_tokens(params: SamplingParams) -> int:
    return DEFAULT_MAX_TOKENS if params.max_tokens is None else params.max_tokens
