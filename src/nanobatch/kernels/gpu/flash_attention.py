"""FlashAttention-3 and -2 where they are installed: prompt chunks of several sequences in a call.

FA3 (Shah et al. 2024; module `flash_attn_interface`, PyPI `tokenspeed-fa3`) runs on Hopper and
reads contiguous or paged keys. FA2 (Dao 2023; module `flash_attn`) runs from Ampere on and reads
contiguous keys only: its pages are multiples of 256 tokens, ours have 16. Both are imported when
they are asked for, not before. Knows no plan: callers say which rows a call computes.
"""

import importlib
from dataclasses import dataclass

import torch

MAX_HEAD_DIM = 256
HEAD_DIM_MULTIPLE = 8
DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashRows:
    """Sequences of one call, on the device, with what the host must know of them.

    Attributes:
        query_starts: [n + 1] int32, first query of each sequence, and the end of the last.
        query_lens: [n] int32, queries of each sequence; None where each ends at the next start.
        key_lens: [n] int32, keys of each sequence.
        max_query_len: Most queries of one sequence.
        max_key_len: Most keys of one sequence.
    """

    query_starts: torch.Tensor
    query_lens: torch.Tensor | None
    key_lens: torch.Tensor
    max_query_len: int
    max_key_len: int


def fa3_obstacle(device: torch.device) -> str | None:
    """Say why FA3 cannot be used on a device, or return None where it can."""
    major = _compute_capability(device)[0]
    if major != 9:
        return "it needs a GPU of compute capability 9.x (Hopper)"
    reason = _import_failure("flash_attn_interface")
    if reason is None and not hasattr(torch.ops.flash_attn_3, "fwd"):
        return "flash_attn_interface registers no operator flash_attn_3::fwd"
    return reason


def fa2_obstacle(device: torch.device) -> str | None:
    """Say why FA2 cannot be used on a device, or return None where it can."""
    if _compute_capability(device)[0] < 8:
        return "it needs a GPU of compute capability 8.0 (Ampere) or higher"
    return _import_failure("flash_attn")


def flash_shape_obstacle(*, dtype: torch.dtype, head_dim: int) -> str | None:
    """Say why neither version computes heads like these, or return None."""
    if dtype not in DTYPES:
        return f"it computes bfloat16 and float16 only, not {str(dtype).removeprefix('torch.')}"
    if head_dim > MAX_HEAD_DIM or head_dim % HEAD_DIM_MULTIPLE:
        return (
            f"it computes head dimensions up to {MAX_HEAD_DIM} that are multiples of "
            f"{HEAD_DIM_MULTIPLE}, not {head_dim}"
        )
    return None


def fa3_paged(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    rows: FlashRows,
    page_table: torch.Tensor,
    scale: float,
    window: int | None,
    out: torch.Tensor,
) -> None:
    """Attend to keys in the pool; a sequence's last query stands at its last key.

    Args:
        query: [num_tokens, num_heads, head_dim].
        key_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        value_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        rows: Sequences.
        page_table: [n, max_blocks] int32; entries past a sequence's end are any block.
        scale: Multiplies the scores before softmax.
        window: Keys that a query sees, itself included; None sees all before it.
        out: [num_tokens, num_heads, head_dim], written where `rows` have queries.
    """
    _fa3_forward(
        query,
        key_cache,
        value_cache,
        page_table=page_table,
        seqused_k=rows.key_lens,
        **_fa3_arguments(rows, scale=scale, window=window, out=out),
    )


def fa3_shared(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    rows: FlashRows,
    page_table: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> torch.Tensor:
    """Attend to keys in the pool, every query to all keys of its sequence.

    Args:
        query: As in `fa3_paged`, like the rest.
        key_cache: See there.
        value_cache: See there.
        rows: See there.
        page_table: See there.
        scale: See there.
        out: See there.

    Returns:
        [num_heads, num_tokens] fp32: the natural logarithm of each row's sum of exponentials of
        scaled scores, where `rows` have queries.
    """
    arguments = _fa3_arguments(rows, scale=scale, window=None, out=out)
    return _fa3_forward(
        query,
        key_cache,
        value_cache,
        page_table=page_table,
        seqused_k=rows.key_lens,
        # A right window of 0 would be causal, whatever is said of causality.
        **arguments | {"is_causal": False, "window_size_right": -1},
    )


def fa2_fresh(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    rows: FlashRows,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Attend to a step's own keys, causally: all sequences of the step, each over its new keys.

    Args:
        query: [num_tokens, num_heads, head_dim].
        key: [num_tokens, num_kv_heads, head_dim], the keys of the same tokens.
        value: [num_tokens, num_kv_heads, head_dim].
        rows: All sequences of the step.
        scale: Multiplies the scores before softmax.
        window: Keys that a query sees, itself included; None sees all before it.

    Returns:
        [num_tokens, num_heads, head_dim].
    """
    attended: torch.Tensor = importlib.import_module("flash_attn").flash_attn_varlen_func(
        query,
        key,
        value,
        cu_seqlens_q=rows.query_starts,
        cu_seqlens_k=rows.query_starts,
        max_seqlen_q=rows.max_query_len,
        max_seqlen_k=rows.max_query_len,
        softmax_scale=scale,
        causal=True,
        window_size=(_window_left(window), 0 if window else -1),
    )
    return attended


def _fa3_forward(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **arguments: object
) -> torch.Tensor:
    """Return the logarithms of the softmax's sums."""
    # The operator behind the functions of `flash_attn_interface`. Those take neither `out` nor
    # `seqused_q` (two calls of a step write one tensor), and wrap it in autograd, which costs the
    # host more than the launch.
    log_sums: torch.Tensor = torch.ops.flash_attn_3.fwd(query, keys, values, **arguments)[1]
    return log_sums


def _fa3_arguments(
    rows: FlashRows, *, scale: float, window: int | None, out: torch.Tensor
) -> dict[str, object]:
    return {
        "out": out,
        "cu_seqlens_q": rows.query_starts,
        "seqused_q": rows.query_lens,
        "max_seqlen_q": rows.max_query_len,
        "softmax_scale": scale,
        "is_causal": True,
        "window_size_left": _window_left(window),
        "window_size_right": 0,
        # 0 would let the kernel choose by the whole step: rows would depend on their neighbours.
        "num_splits": 1,
    }


def _window_left(window: int | None) -> int:
    """Return how many keys before its own a query sees, -1 for all."""
    return -1 if window is None else window - 1


def _compute_capability(device: torch.device) -> tuple[int, int]:
    if device.type != "cuda":
        return (0, 0)
    return torch.cuda.get_device_capability(device)


def _import_failure(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            return f"the Python module {module} is not installed"
        return f"the Python module {module} needs {error.name}, which is not installed"
    except (ImportError, OSError, RuntimeError) as error:  # built for another torch or CUDA
        reason = str(error).strip() or type(error).__name__
        return f"the Python module {module} does not load: {reason.splitlines()[0]}"
    return None
