"""How one step's attention is cut into dense problems, planned once and used by every layer.

A step's queries are cut into *pieces*: the one query of a decoding sequence, or a tile of queries
of a prompt chunk; each sees the keys of its own sequence up to its last query. Pieces of similar
size form a *dense group*: their keys and values are gathered into one dense batch; padding
repeats a piece's own last query and key (masked), so that no slot outside a sequence is ever read.
Where keys lie next to each other in the pool, nothing is gathered at all.

Beginnings that sequences share are problems of their own, in which all queries of all of them
attend to the same keys; the groups then start after them, and the results are merged.

Knows positions, blocks and slots, on the host; computes no attention (that is
`kernels.paged_attention`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from nanobatch.kernels.attention_metadata import AttentionMetadata
from nanobatch.kernels.shared_runs import SharedRun, find_shared_runs

IntArray = npt.NDArray[np.int64]

GATHER_TOKENS = 8192
"""Most keys in one group, unless a single piece has more; bounds the scratch memory. Fewer cost
more calls than the processor's cache gains (2,048: 1.4 times the time)."""

QUERY_TILE = 512
"""Most queries of a piece; bounds the mask of a long prompt."""

GROUP_SCORES = 1 << 19
"""Most query-key pairs in a group of several pieces; bounds its mask."""

MIN_FILL = 0.75
"""A group's smallest piece has at least this share of the queries and keys of its largest."""

MIN_CHUNK_RUN_TOKENS = 128
"""Fewest shared keys in a step of prompt chunks, where every query's result is merged. On a Xeon
with AMX, 784 queries of 16 rows take 1.2 times as long with 96 keys shared, 0.9 with 208 and 0.5
with 1,008; 640 queries of 64 rows 0.3 with 1,008."""

Places = torch.Tensor | slice
"""Rows of a tensor, such as slots of the pool: int64 indices to gather, or a range to view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseGroup:
    """Pieces of similar size, padded to one.

    Attributes:
        tokens: The num_pieces * num_queries queries' tokens in the step.
        slots: Of num_pieces * num_keys keys.
        bias: fp32 [num_pieces, num_queries, num_keys], 0 for a key that a query sees and -inf for
            one that it does not; None where every query sees every key.
        num_pieces: Pieces.
        num_queries: Queries per piece, padding included.
        num_keys: Keys per piece, padding included.
        key_lens: [num_pieces] keys of each piece, on the host.
    """

    tokens: Places
    slots: Places
    bias: torch.Tensor | None
    num_pieces: int
    num_queries: int
    num_keys: int
    key_lens: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKeys:
    """Keys that several sequences share, before the queries of all of them.

    Attributes:
        tokens: All tokens of these sequences in the step.
        slots: The keys.
    """

    tokens: Places
    slots: Places

    @property
    def num_saved_keys(self) -> int:
        """Keys that are not read again for each of the tokens."""
        return (_num_places(self.tokens) - 1) * _num_places(self.slots)


def _num_places(places: Places) -> int:
    return places.stop - places.start if isinstance(places, slice) else len(places)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """How one step's attention is computed in every layer with the same window.

    Attributes:
        groups: Each token is in one of them.
        shared: Keys before those of the groups.
    """

    groups: tuple[DenseGroup, ...]
    shared: tuple[SharedKeys, ...]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Queries that are computed together; every array has one entry a piece.

    Attributes:
        rows: Sequence in the step.
        first_tokens: First query in the step.
        num_queries: Queries.
        first_keys: Position of the first key that any query reads here.
        ends: Position after the last query, which is the last key.
    """

    rows: IntArray
    first_tokens: IntArray
    num_queries: IntArray
    first_keys: IntArray
    ends: IntArray

    def __getitem__(self, index: IntArray) -> "_Pieces":
        return _Pieces(
            self.rows[index],
            self.first_tokens[index],
            self.num_queries[index],
            self.first_keys[index],
            self.ends[index],
        )


def plan_paged_attention(
    metadata: AttentionMetadata,
    *,
    block_size: int,
    window: int | None,
    shares_keys: bool = True,
) -> AttentionPlan:
    """Sort a step's sequences into attention problems.

    Args:
        metadata: The step.
        block_size: Tokens per block of the pool.
        window: Keys that a query sees, itself included; None sees all before it.
        shares_keys: Read keys that sequences share once, on a CPU: merging needs an operation that
            torch has for CPUs only.

    Returns:
        The plan, its tensors on the device of `metadata`.
    """
    if shares_keys and metadata.device.type == "cpu":
        runs, num_shared_keys = _shared_runs(metadata, block_size=block_size, window=window)
    else:
        runs, num_shared_keys = [], np.zeros(metadata.num_seqs, dtype=np.int64)
    pieces = _cut(metadata, num_shared_keys, window=window)
    return AttentionPlan(
        groups=tuple(
            _dense_group(pieces[members], metadata, block_size=block_size, window=window)
            for members in _similar_pieces(pieces)
        ),
        shared=tuple(_shared_keys(run, metadata, block_size=block_size) for run in runs),
    )


def _shared_runs(
    metadata: AttentionMetadata, *, block_size: int, window: int | None
) -> tuple[list[SharedRun], IntArray]:
    """Return the runs that rows share, and how many keys of each row they cover."""
    lens = metadata.seq_lens.astype(np.int64)
    num_past_keys = lens - np.diff(metadata.query_start_loc)  # which every query of a row sees
    if window is not None:
        num_past_keys[lens > window] = 0
    runs, num_covered = find_shared_runs(
        metadata.block_tables,
        num_past_keys // block_size,
        block_size=block_size,
        min_run_tokens=1 if metadata.num_tokens == metadata.num_seqs else MIN_CHUNK_RUN_TOKENS,
    )
    return runs, num_covered * block_size


def _cut(metadata: AttentionMetadata, num_shared_keys: IntArray, *, window: int | None) -> _Pieces:
    starts = metadata.query_start_loc.astype(np.int64)
    query_lens, lens = np.diff(starts), metadata.seq_lens.astype(np.int64)
    num_tiles = -(-query_lens // QUERY_TILE)
    rows = np.repeat(np.arange(len(lens)), num_tiles)
    tiles = np.arange(len(rows)) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)
    offsets = tiles * QUERY_TILE  # of a piece's first query in its chunk
    num_queries = np.minimum(query_lens[rows] - offsets, QUERY_TILE)
    first_positions = lens[rows] - query_lens[rows] + offsets
    first_keys = num_shared_keys[rows]
    if window is not None:
        first_keys = np.maximum(first_keys, first_positions + 1 - window)
    return _Pieces(
        rows=rows,
        first_tokens=starts[rows] + offsets,
        num_queries=num_queries,
        first_keys=first_keys,
        ends=first_positions + num_queries,
    )


def _similar_pieces(pieces: _Pieces) -> Iterator[IntArray]:
    """Yield groups of pieces of similar size, largest first."""
    all_num_keys = pieces.ends - pieces.first_keys
    order = np.lexsort((-all_num_keys, -pieces.num_queries))
    sizes = zip(pieces.num_queries[order].tolist(), all_num_keys[order].tolist(), strict=True)
    start, most_queries, most_keys = 0, 0, 0
    for place, (num_queries, num_keys) in enumerate(sizes):
        num_members = place - start + 1
        padded_keys = max(num_keys, most_keys)
        fits = (
            num_members * padded_keys <= GATHER_TOKENS
            and num_members * padded_keys * most_queries <= GROUP_SCORES
            and num_queries >= MIN_FILL * most_queries
            and num_keys >= MIN_FILL * most_keys
        )
        if place > start and not fits:
            yield np.sort(order[start:place])  # in the order of tokens, often without a gap
            start, padded_keys = place, num_keys
        if place == start:
            most_queries = num_queries
        most_keys = padded_keys
    if len(order):
        yield np.sort(order[start:])


def _dense_group(
    pieces: _Pieces, metadata: AttentionMetadata, *, block_size: int, window: int | None
) -> DenseGroup:
    key_lens = pieces.ends - pieces.first_keys
    num_queries, num_keys = int(pieces.num_queries.max()), int(key_lens.max())
    last = pieces.ends[:, None] - 1
    queries = np.minimum(np.arange(num_queries), pieces.num_queries[:, None] - 1)
    tokens = pieces.first_tokens[:, None] + queries  # [num_pieces, num_queries]
    positions = (pieces.ends - pieces.num_queries)[:, None] + queries
    keys = pieces.first_keys[:, None] + np.arange(num_keys)  # [num_pieces, num_keys]
    slots = _slots_of(
        metadata.block_tables, pieces.rows, np.minimum(keys, last), block_size=block_size
    )
    distances = positions[:, :, None] - keys[:, None, :]
    is_seen = distances >= 0
    if window is not None:
        is_seen &= distances < window
    bias = np.where(is_seen, np.float32(0), np.float32(-np.inf))
    return DenseGroup(
        tokens=_places(tokens.ravel(), metadata.device),
        slots=_places(slots.ravel(), metadata.device),
        bias=None if is_seen.all() else torch.from_numpy(bias).to(metadata.device),
        num_pieces=len(pieces.rows),
        num_queries=num_queries,
        num_keys=num_keys,
        key_lens=key_lens,
    )


def _shared_keys(run: SharedRun, metadata: AttentionMetadata, *, block_size: int) -> SharedKeys:
    starts = metadata.query_start_loc.astype(np.int64)
    num_tokens = np.diff(starts)[run.rows]
    ends = np.cumsum(num_tokens)
    tokens = np.arange(ends[-1]) + np.repeat(starts[run.rows] - ends + num_tokens, num_tokens)
    slots = run.block_ids[:, None] * block_size + np.arange(block_size)
    return SharedKeys(
        tokens=_places(tokens, metadata.device),
        slots=_places(slots.ravel(), metadata.device),
    )


def _slots_of(
    block_tables: npt.NDArray[np.int32], rows: IntArray, positions: IntArray, *, block_size: int
) -> IntArray:
    """Return the slots of positions [n, k] of n rows of the tables."""
    blocks = block_tables[rows[:, None], positions // block_size].astype(np.int64)
    return blocks * block_size + positions % block_size


def _places(indices: IntArray, device: torch.device) -> Places:
    """Return indices as a range where they follow one another."""
    if (np.diff(indices) == 1).all():
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return torch.from_numpy(indices).to(device)
