"""What fits: context length, KV capacity and vocabulary, and what they do to a request.

Pure arithmetic over numbers that are fixed once the model is loaded.
"""

from dataclasses import dataclass

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
    """

    max_model_len: int
    kv_capacity_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]

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
        wanted = DEFAULT_MAX_TOKENS if params.max_tokens is None else params.max_tokens
        return min(wanted, self._context_room(num_prompt_tokens), self._kv_room(num_prompt_tokens))

    def is_kv_bound(self, sequence: Sequence) -> bool:
        """Whether it is the KV pool, not the request or the context, that ends a sequence."""
        num_prompt_tokens = len(sequence.prompt_token_ids)
        params = sequence.params
        wanted = DEFAULT_MAX_TOKENS if params.max_tokens is None else params.max_tokens
        return self._kv_room(num_prompt_tokens) < min(wanted, self._context_room(num_prompt_tokens))

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
        if request.params.n != 1:
            return RowError(
                code=ErrorCode.UNSUPPORTED, message=f"n is {request.params.n}; only 1 is supported"
            )
        # Text is looked at too: some tokenizers have tokens that their model was not resized for.
        where = "the prompt" if request.input_ids is None else "input_ids"
        params = request.params
        for name, token_ids in (
            (where, (int(prompt_token_ids.min()), int(prompt_token_ids.max()))),
            ("logit_bias", [token_id for token_id, _ in params.logit_bias]),
            ("stop_token_ids", params.stop_token_ids),
        ):
            for token_id in token_ids:
                if not 0 <= token_id < self.vocab_size:
                    return self._outside_vocabulary(name, token_id)
        return None

    def _outside_vocabulary(self, where: str, token_id: int) -> RowError:
        return RowError(
            code=ErrorCode.BAD_PARAMS,
            message=(
                f"{where} holds token id {token_id}; the vocabulary has {self.vocab_size:,} tokens"
            ),
        )
