"""How one step's attention is cut into dense problems, planned once and used by every layer.

A step mixes decoding sequences (one query) and chunks of prompts (many queries, possibly with
a cached beginning):

* Decoding sequences of similar length form a group. Their keys and values are gathered into
  one dense batch; padding repeats a sequence's own last key (masked), so that no slot outside
  a sequence is ever read.
* A chunk of a prompt is one problem per tile of queries, over no more keys than the tile sees.

Knows positions, blocks and slots; computes no attention (that is `kernels.paged_attention`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch

from nanobatch.kernels.attention_metadata import AttentionMetadata

GATHER_TOKENS = 4096
"""Most tokens in one decode gather, unless a single sequence is longer (measured on CPU: 2,048
to 8,192 are equal, above that the scratch leaves the cache)."""

QUERY_TILE = 512
"""Most queries of a prompt chunk that are computed at once; bounds the mask."""

MIN_FILL = 0.75
"""A decode group's shortest sequence has at least this share of the longest one's length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeGroup:
    """Sequences with one query each and a similar number of visible keys.

    Attributes:
        token_indices: [n] int64, the sequences' tokens in the step.
        slots: [n * num_keys] int64, slots of the keys, padded with each sequence's last slot.
        mask: [n, 1, 1, num_keys] bool, keys that exist; None where nothing is padded.
        num_keys: Keys per sequence, padding included.
    """

    token_indices: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor | None
    num_keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTile:
    """Queries of a prompt chunk that are computed at once.

    Attributes:
        tokens: The queries in the step.
        keys: The part of the chunk's gathered keys that any of these queries sees.
        mask: [num_queries, num_keys] bool, which query sees which key.
    """

    tokens: slice
    keys: slice
    mask: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChunk:
    """The queries that one sequence has in this step, and every key that any of them sees.

    Attributes:
        slots: [num_keys] int64.
        tiles: The queries in portions.
    """

    slots: torch.Tensor
    tiles: tuple[QueryTile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """How one step's attention is computed in every layer with the same window."""

    decode_groups: tuple[DecodeGroup, ...]
    prefill_chunks: tuple[PrefillChunk, ...]

    @property
    def num_scratch_tokens(self) -> int:
        """Keys of the largest gather."""
        gathers = [group.slots.numel() for group in self.decode_groups]
        gathers += [chunk.slots.numel() for chunk in self.prefill_chunks]
        return max(gathers, default=0)


def plan_paged_attention(
    metadata: AttentionMetadata, *, block_size: int, window: int | None
) -> AttentionPlan:
    """Sort a step's sequences into attention problems.

    Args:
        metadata: The step.
        block_size: Tokens per block of the pool.
        window: Keys that a query sees, itself included; None sees all before it.

    Returns:
        The plan, its tensors on the device of `metadata`.
    """
    first_tokens = list(accumulate(metadata.host_query_lens, initial=0))[:-1]
    return AttentionPlan(
        decode_groups=tuple(
            _plan_decode_group(rows, metadata, block_size=block_size, window=window)
            for rows in _similar_decode_rows(metadata, window)
        ),
        prefill_chunks=tuple(
            _plan_prefill_chunk(
                row, metadata, first_token=first_token, block_size=block_size, window=window
            )
            for row, first_token in enumerate(first_tokens)
            if metadata.host_query_lens[row] > 1
        ),
    )


def _similar_decode_rows(metadata: AttentionMetadata, window: int | None) -> Iterator[list[int]]:
    """Yield groups of rows with one query each, longest first."""

    def num_visible(row: int) -> int:
        seq_len = metadata.host_seq_lens[row]
        return seq_len if window is None else min(seq_len, window)

    rows = [row for row, query_len in enumerate(metadata.host_query_lens) if query_len == 1]
    rows.sort(key=num_visible, reverse=True)
    group: list[int] = []
    for row in rows:
        if group:
            longest = num_visible(group[0])
            is_full = (len(group) + 1) * longest > GATHER_TOKENS
            if is_full or num_visible(row) < MIN_FILL * longest:
                yield group
                group = []
        group.append(row)
    if group:
        yield group


def _plan_decode_group(
    rows: list[int], metadata: AttentionMetadata, *, block_size: int, window: int | None
) -> DecodeGroup:
    device = metadata.block_tables.device
    ends = [metadata.host_seq_lens[row] for row in rows]
    starts = [0 if window is None else max(0, end - window) for end in ends]
    num_keys = max(end - start for start, end in zip(starts, ends, strict=True))
    row_indices = torch.tensor(rows, device=device)
    first = torch.tensor(starts, device=device)[:, None]
    last = torch.tensor(ends, device=device)[:, None] - 1
    positions = first + torch.arange(num_keys, device=device)  # [n, num_keys]
    is_real = positions <= last
    slots = _slots_of(
        metadata.block_tables[row_indices], positions.minimum(last), block_size=block_size
    )
    is_padded = any(end - start < num_keys for start, end in zip(starts, ends, strict=True))
    return DecodeGroup(
        token_indices=metadata.query_start_loc[row_indices].long(),
        slots=slots.flatten(),
        mask=is_real[:, None, None, :] if is_padded else None,
        num_keys=num_keys,
    )


def _plan_prefill_chunk(
    row: int,
    metadata: AttentionMetadata,
    *,
    first_token: int,
    block_size: int,
    window: int | None,
) -> PrefillChunk:
    device = metadata.block_tables.device
    query_len, seq_len = metadata.host_query_lens[row], metadata.host_seq_lens[row]
    first_position = seq_len - query_len
    first_key = 0 if window is None else max(0, first_position + 1 - window)
    key_positions = torch.arange(first_key, seq_len, device=device)
    tiles = []
    for start in range(0, query_len, QUERY_TILE):
        stop = min(start + QUERY_TILE, query_len)
        positions = torch.arange(first_position + start, first_position + stop, device=device)
        low = 0 if window is None else max(0, first_position + start + 1 - window)
        keys = slice(low - first_key, first_position + stop - first_key)
        tiles.append(
            QueryTile(
                tokens=slice(first_token + start, first_token + stop),
                keys=keys,
                mask=_visible(positions, key_positions[keys], window=window),
            )
        )
    slots = _slots_of(metadata.block_tables[row : row + 1], key_positions, block_size=block_size)
    return PrefillChunk(slots=slots.flatten(), tiles=tuple(tiles))


def _visible(
    query_positions: torch.Tensor, key_positions: torch.Tensor, *, window: int | None
) -> torch.Tensor:
    """Return [num_queries, num_keys] bool: causal, and inside the window."""
    distance = query_positions[:, None] - key_positions[None, :]
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def _slots_of(
    block_tables: torch.Tensor, positions: torch.Tensor, *, block_size: int
) -> torch.Tensor:
    """Return the slots of positions [n, k] (or [k] for all) of sequences [n, max_blocks]."""
    positions = positions.expand(len(block_tables), -1)
    blocks = block_tables.long().gather(1, positions // block_size)
    return blocks * block_size + positions % block_size
