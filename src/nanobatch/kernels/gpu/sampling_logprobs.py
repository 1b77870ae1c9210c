"""Log-probabilities of drawn tokens under the softmax of the logits as they came.

Knows logits and token ids. Sums are taken per tile of the vocabulary and then in the order of
tiles, whatever the batch.
"""

import torch
import triton
import triton.language as tl

_TILE = 8192


def token_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, *, vocab_size: int
) -> torch.Tensor:
    """Take log_softmax at one token per row.

    Args:
        logits: [n, >= vocab_size] float32, rows contiguous.
        token_ids: [n] int32.
        vocab_size: Columns that are no padding.

    Returns:
        [n] float32 natural logarithms; meaningless for rows with NaN or +inf.
    """
    num_rows, num_tiles = len(logits), triton.cdiv(vocab_size, _TILE)
    tiles = torch.empty(num_rows, 2, num_tiles, dtype=torch.float32, device=logits.device)
    logprobs = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    _tile_sums_kernel[(num_tiles, num_rows)](
        tiles, logits, logits.stride(0), vocab_size, TILE=_TILE, num_warps=8
    )
    _token_logprobs_kernel[(num_rows,)](
        logprobs,
        tiles,
        logits,
        logits.stride(0),
        token_ids,
        num_tiles,
        NUM_TILES=triton.next_power_of_2(num_tiles),
        num_warps=1,
    )
    return logprobs


@triton.jit
def _tile_sums_kernel(
    tiles_ptr,  # [num_rows, 2, num_tiles] float32: largest logit, sum of exponentials above it
    logits_ptr,
    logits_stride,
    vocab_size,
    TILE: tl.constexpr,
):
    tile, row = tl.program_id(0), tl.program_id(1)
    ids = tile * TILE + tl.arange(0, TILE)
    row_logits = logits_ptr + row.to(tl.int64) * logits_stride
    logits = tl.load(row_logits + ids, mask=ids < vocab_size, other=-float("inf"))
    largest = tl.max(logits, axis=0)
    offset = tl.where(tl.abs(largest) < float("inf"), largest, 0.0)
    num_tiles = tl.num_programs(0)
    tl.store(tiles_ptr + row * 2 * num_tiles + tile, largest)
    total = tl.sum(tl.exp(logits - offset), axis=0)
    tl.store(tiles_ptr + (row * 2 + 1) * num_tiles + tile, total)


@triton.jit
def _token_logprobs_kernel(
    logprobs_ptr,
    tiles_ptr,
    logits_ptr,
    logits_stride,
    token_ids_ptr,
    num_tiles,
    NUM_TILES: tl.constexpr,
):
    row = tl.program_id(0)
    tiles = tl.arange(0, NUM_TILES)
    is_tile = tiles < num_tiles
    row_tiles = tiles_ptr + row * 2 * num_tiles + tiles
    maxima = tl.load(row_tiles, mask=is_tile, other=-float("inf"))
    sums = tl.load(row_tiles + num_tiles, mask=is_tile, other=0.0)
    largest = tl.max(maxima, axis=0)
    offset = tl.where(tl.abs(largest) < float("inf"), largest, 0.0)
    total = tl.sum(sums * tl.exp(maxima - offset), axis=0)
    token_id = tl.load(token_ids_ptr + row)
    logit = tl.load(logits_ptr + row.to(tl.int64) * logits_stride + token_id)
    total = tl.where(total > 0.0, total, 1.0)  # a row of -inf alone
    tl.store(logprobs_ptr + row, logit - offset - tl.log(total))
