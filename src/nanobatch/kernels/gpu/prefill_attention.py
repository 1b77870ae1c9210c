"""Attention of prompt chunks in Triton: keys from the paged pool or from the step itself.

Chunks that share a beginning may attend to it together first, as if their queries were those of
one sequence (`shared_prefill_attention`), and then go on, each with its own keys
(`continued_prefill_attention`): the first leaves a finished softmax and the log of its sum, from
which the second starts instead of from nothing, so merging costs no pass of its own.

Tiles come from `kernels.prefill_plan`; this module knows no sequences.
"""

import torch
import triton

from nanobatch.kernels.gpu.prefill_kernel import prefill_kernel
from nanobatch.kernels.gpu.prefill_tiling import PrefillTiling

LOG2_E = 1.4426950408889634


def paged_prefill_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    tiles: torch.Tensor,
    block_ids: torch.Tensor,
    scale: float,
    window: int | None,
    tiling: PrefillTiling,
    out: torch.Tensor,
) -> None:
    """Attend to keys in the pool.

    Args:
        query: [num_tokens, num_heads, head_dim], last dimension contiguous.
        key_cache: [num_blocks, block_size, num_kv_heads, head_dim], last dimension contiguous.
        value_cache: [num_blocks, block_size, num_kv_heads, head_dim], likewise.
        tiles: [num_tiles, 5] int32 of `plan_tiles`; the column before the last is where the
            sequence's table begins in `block_ids`, the last one is 0.
        block_ids: [n] int32.
        scale: Multiplies the scores before softmax, above 0.
        window: Keys that a query sees, itself included; None sees all before it.
        tiling: How the kernel is compiled; its tiles hold at least the queries of each tile.
        out: [num_tokens, num_heads, head_dim], contiguous; written where a tile has a query.
    """
    _launch(
        query, key_cache, value_cache, tiles, block_ids, scale, tiling, out,
        window=window, block_size=key_cache.shape[1],
    )  # fmt: skip


def contiguous_prefill_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    tiles: torch.Tensor,
    scale: float,
    window: int | None,
    tiling: PrefillTiling,
    out: torch.Tensor,
) -> None:
    """Attend to keys that stand one after the other, a sequence's first key first.

    Args:
        query: [num_tokens, num_heads, head_dim], last dimension contiguous.
        key: [num_keys, num_kv_heads, head_dim], last dimension contiguous.
        value: [num_keys, num_kv_heads, head_dim], likewise.
        tiles: [num_tiles, 5] int32 of `plan_tiles`; the column before the last is the sequence's
            first key, the last one is 0.
        scale: As in `paged_prefill_attention`, like the rest.
        window: See there.
        tiling: See there.
        out: See there.
    """
    _launch(
        query, key[:, None], value[:, None], tiles, tiles, scale, tiling, out, window=window
    )  # fmt: skip


def shared_prefill_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    tiles: torch.Tensor,
    block_ids: torch.Tensor,
    scale: float,
    tiling: PrefillTiling,
    out: torch.Tensor,
    log_sums: torch.Tensor,
) -> None:
    """Attend to keys that all queries of a tile see, which share them with other sequences.

    Args:
        query: As in `paged_prefill_attention`, like what is not listed.
        key_cache: See there.
        value_cache: See there.
        tiles: [num_tiles, 5] int32 of `plan_shared_tiles`.
        block_ids: See there.
        scale: See there.
        tiling: See there.
        out: See there.
        log_sums: [num_heads, num_tokens] fp32, contiguous; gets the logarithm of the sum of
            exponentials of each row's scaled scores, where a tile has a query.
    """
    _launch(
        query, key_cache, value_cache, tiles, block_ids, scale, tiling, out,
        block_size=key_cache.shape[1], log_sums=log_sums, is_shared=True,
    )  # fmt: skip


def continued_prefill_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    tiles: torch.Tensor,
    block_ids: torch.Tensor,
    scale: float,
    tiling: PrefillTiling,
    out: torch.Tensor,
    log_sums: torch.Tensor,
) -> None:
    """Go on from what was attended to before, with the keys that follow.

    Args:
        query: As in `paged_prefill_attention`, like what is not listed.
        key_cache: See there.
        value_cache: See there.
        tiles: [num_tiles, 5] int32 of `plan_tiles`; the last column, how many leading keys were
            attended to before, is a multiple of the tiling's `tile_keys`.
        block_ids: See there.
        scale: See there.
        tiling: See there.
        out: [num_tokens, num_heads, head_dim], contiguous: the attention over the keys before,
            replaced by that over all keys where a tile has a query.
        log_sums: [num_heads, num_tokens] fp32, contiguous: the natural logarithm of the sum of
            exponentials of each row's scaled scores over the keys before.
    """
    _launch(
        query, key_cache, value_cache, tiles, block_ids, scale, tiling, out,
        block_size=key_cache.shape[1], log_sums=log_sums, continues=True,
    )  # fmt: skip


def _launch(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tiles: torch.Tensor,
    block_ids: torch.Tensor,
    scale: float,
    tiling: PrefillTiling,
    out: torch.Tensor,
    *,
    window: int | None = None,
    block_size: int | None = None,
    log_sums: torch.Tensor | None = None,
    is_shared: bool = False,
    continues: bool = False,
) -> None:
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[2]
    assert scale > 0, "the maximum is taken before scores are scaled"
    assert out.is_contiguous() and query.stride(2) == keys.stride(3) == values.stride(3) == 1
    assert log_sums is None or log_sums.is_contiguous()
    if len(tiles) == 0:
        return
    prefill_kernel[(len(tiles) * num_kv_heads,)](
        query, keys, values, out, log_sums, tiles, block_ids,
        scale * LOG2_E, num_tokens,
        query.stride(0), query.stride(1),
        keys.stride(0), keys.stride(1), keys.stride(2),
        values.stride(0), values.stride(1), values.stride(2),
        NUM_KV_HEADS=num_kv_heads,
        GROUP_SIZE=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=max(16, triton.next_power_of_2(head_dim)),
        WINDOW=window or 0,
        BLOCK_SIZE=block_size or 1,
        IS_PAGED=block_size is not None,
        IS_SHARED=is_shared,
        CONTINUES=continues,
        TILE_ROWS=tiling.tile_rows,
        TILE_KEYS=tiling.tile_keys,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )  # fmt: skip
