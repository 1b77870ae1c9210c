"""From a request and its encoded prompt to the sequences that answer it, one a sample."""

import struct

import xxhash

from nanobatch.engine.limits import EngineLimits
from nanobatch.engine.sequence import Sequence
from nanobatch.engine.tokenizer import TokenIds
from nanobatch.request import Request


def make_samples(
    request: Request,
    prompt: TokenIds,
    *,
    limits: EngineLimits,
    first_id: int,
    run_seed: int,
    num_truncated_tokens: int,
) -> list[Sequence]:
    """Return a request's sequences, which differ in nothing but id and sample index.

    Args:
        request: The request.
        prompt: Its prompt, cut where it had to be.
        limits: What fits the model and the KV pool.
        first_id: Id of the first sequence; the others follow.
        run_seed: Key from which a request without a seed draws its own.
        num_truncated_tokens: Tokens that were cut from the prompt.
    """
    noise_seed = _noise_seed(request, run_seed)
    max_tokens = limits.max_tokens(request.params, len(prompt))
    stop_token_ids = limits.stop_token_ids(request.params)
    return [
        Sequence(
            first_id + sample_index,
            prompt,
            row_index=request.row_index,
            sample_index=sample_index,
            params=request.params,
            max_tokens=max_tokens,
            noise_seed=noise_seed,
            eos_token_ids=stop_token_ids,
            priority=request.priority,
            num_truncated_tokens=num_truncated_tokens,
        )
        for sample_index in range(request.params.n)
    ]


def _noise_seed(request: Request, run_seed: int) -> int:
    if request.params.seed is not None:
        return request.params.seed % 2**64
    return xxhash.xxh3_64_intdigest(struct.pack("=QQ", run_seed % 2**64, request.row_index))
