"""Decode steps over a tree of shared segments, and what they should compute in float64."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import torch

from nanobatch.kernels.decode_plan import plan_decode
from nanobatch.kernels.decode_plan_layout import DecodePlanLayout, most_shared_items
from nanobatch.kernels.gpu.decode_attention import DecodeRows, decode_attention
from nanobatch.kernels.gpu.decode_buffers import DecodeBuffers
from nanobatch.kernels.gpu.decode_tuning import DecodeTuning
from nanobatch.kernels.gpu.shared_attention import SharedTuning
from nanobatch.kernels.shared_items import SharedItems

SCALE = 0.3


@dataclass(frozen=True, kw_only=True)
class Row:
    """Shared segments by name, and then keys of its own at this step; 0: it has ended already."""

    path: str = ""
    own: int = 5


@dataclass(frozen=True, kw_only=True)
class Case:
    """Rows in depth-first order, the blocks of each segment, and the sizes around them."""

    rows: tuple[Row, ...]
    segment_blocks: dict[str, int] = field(default_factory=dict)
    num_heads: int = 2
    num_kv_heads: int = 1
    head_dim: int = 64
    block_size: int = 16
    cut_tokens: int = 32  # longest range of a shared item
    item_rows: int = 3
    split_tokens: int = 64
    steps_ahead: int = 0
    shares: bool = True
    tuning: DecodeTuning = field(default_factory=DecodeTuning)
    tile_queries: int = 16
    dtype: torch.dtype = torch.float32

    def first_tokens(self, row: Row) -> int:
        return sum(self.segment_blocks[name] for name in row.path) * self.block_size


def runs_of(case: Case) -> Iterator[tuple[int, int, int, int]]:
    """Yield first row, number of rows, begin and end of every shared range that is cut to size."""
    for depth in range(max(len(row.path) for row in case.rows)):
        paths = [row.path[: depth + 1] for row in case.rows]
        for path, run in groupby(range(len(paths)), paths.__getitem__):
            members = list(run)
            if len(path) <= depth:
                continue
            begin = case.first_tokens(Row(path=path[:-1]))
            end = case.first_tokens(Row(path=path))
            for first in range(begin, end, case.cut_tokens):
                for start in range(0, len(members), case.item_rows):
                    rows = members[start : start + case.item_rows]
                    yield rows[0], len(rows), first, min(first + case.cut_tokens, end)


def shared_items_of(case: Case) -> SharedItems:
    """Let every segment be read together, in the opposite order of its depth."""
    num_partials = [0] * len(case.rows)
    items = []
    for first_row, num_rows, first, end in runs_of(case) if case.shares else ():
        items.append((first_row, num_rows, first, end, num_partials[first_row]))
        for row in range(first_row, first_row + num_rows):
            num_partials[row] += 1
    columns = np.array(items[::-1], np.int32).reshape(-1, 5).T
    first_tokens = [case.first_tokens(row) if case.shares else 0 for row in case.rows]
    return SharedItems(
        item_first_rows=columns[0],
        item_num_rows=columns[1],
        item_first_tokens=columns[2],
        item_end_tokens=columns[3],
        item_partials=columns[4],
        row_num_partials=np.array(num_partials, np.int32),
        row_first_tokens=np.array(first_tokens, np.int32),
    )


class Step:
    """Random queries, keys and values of a case; the keys lie scattered in a NaN-filled pool."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case, self.device = case, device
        self._rng = torch.Generator().manual_seed(0)
        self._segments = {
            name: self._key_values(blocks * case.block_size)
            for name, blocks in case.segment_blocks.items()
        }
        self.key_values = [self._row_key_values(row) for row in case.rows]
        query = torch.randn(len(case.rows), case.num_heads + 2, case.head_dim, generator=self._rng)
        self.query = query.to(case.dtype).to(device)[:, : case.num_heads]
        self._fill_pool()
        self.buffers = self._plan()

    def run(self, *, has_splits: bool = True, has_shared: bool = True) -> torch.Tensor:
        case = self.case
        return decode_attention(
            self.query,
            *self.pools,
            rows=self.rows,
            buffers=self.buffers,
            scale=SCALE,
            has_splits=has_splits,
            has_shared=has_shared,
            tuning=replace(case.tuning, tile_bytes=16 * 64 * case.dtype.itemsize),
            shared_tuning=SharedTuning(
                tile_queries=case.tile_queries, tile_bytes=16 * 128 * case.dtype.itemsize
            ),
        )

    def expected(self) -> torch.Tensor:
        """Compute each query of each head by itself, in float64."""
        group = self.case.num_heads // self.case.num_kv_heads
        out = torch.zeros(self.query.shape, dtype=torch.float64)
        query = self.query.cpu().double()
        for row, (keys, values) in enumerate(self.key_values):
            for head in range(self.case.num_heads if self.case.rows[row].own else 0):
                scores = keys[:, head // group].double() @ query[row, head] * SCALE
                out[row, head] = torch.softmax(scores, 0) @ values[:, head // group].double()
        return out

    def _key_values(self, num_tokens: int) -> torch.Tensor:
        shape = (2, num_tokens, self.case.num_kv_heads, self.case.head_dim)
        return torch.randn(shape, generator=self._rng).to(self.case.dtype)

    def _row_key_values(self, row: Row) -> torch.Tensor:
        segments = [self._segments[name] for name in row.path]
        return torch.cat([*segments, self._key_values(row.own)], dim=1)

    def _fill_pool(self) -> None:
        case = self.case
        shuffled = iter(np.random.default_rng(0).permutation(400).tolist())
        shape = (400, case.block_size, case.num_kv_heads, case.head_dim)
        pools = torch.full((2, *shape), torch.nan, dtype=case.dtype)
        paths: dict[str, list[int]] = {"": []}
        tables = []
        for row, key_values in zip(case.rows, self.key_values, strict=True):
            for depth, name in enumerate(row.path, start=1):
                if row.path[:depth] not in paths:
                    new = [next(shuffled) for _ in range(case.segment_blocks[name])]
                    paths[row.path[:depth]] = paths[row.path[: depth - 1]] + new
            own = row.own + case.steps_ahead
            table = paths[row.path] + [next(shuffled) for _ in range(-(-own // case.block_size))]
            tables.append(table)
            positions = np.arange(key_values.shape[1])
            blocks = torch.tensor(table, dtype=torch.long)[positions // case.block_size]
            pools[:, blocks, positions % case.block_size] = key_values
        starts = np.cumsum([0, *map(len, tables)])
        self.pools = pools.to(self.device)
        self.seq_lens = [case.first_tokens(row) + row.own if row.own else 0 for row in case.rows]
        self.rows = DecodeRows(
            seq_lens=self._words(self.seq_lens),
            block_ids=self._words(np.concatenate(tables)),
            block_starts=self._words(starts),
        )

    def _words(self, values: object) -> torch.Tensor:
        return torch.from_numpy(np.array(values, np.int32)).to(self.device)

    def _plan(self) -> DecodeBuffers:
        case = self.case
        shared = shared_items_of(case)
        # A row that has ended still was to go on when the plan was made.
        final_lens = [
            max(case.first_tokens(row) + row.own, 1) + case.steps_ahead for row in case.rows
        ]
        self.plan = plan_decode(
            np.array(final_lens, np.int32) + (shared.row_first_tokens >= final_lens),
            split_tokens=case.split_tokens,
            first_tokens=shared.row_first_tokens,
        )
        layout = DecodePlanLayout.for_bucket(
            len(case.rows) + 1,
            split_tokens=case.split_tokens,
            max_model_len=1024,
            max_total_tokens=1 << 14,
            max_shared_items=most_shared_items(len(case.rows) + 1),
        )
        words = np.zeros(layout.num_words, np.int32)
        layout.pack(self.plan, words, shared=shared)
        buffers = DecodeBuffers.allocate(
            layout,
            torch.from_numpy(words).to(self.device),
            num_heads=case.num_heads,
            head_dim=case.head_dim,
            max_shared_rows=len(case.rows),
        )
        for name in ("sums", "maxima", "totals"):
            getattr(buffers, f"partial_{name}").fill_(torch.nan)
            getattr(buffers, f"shared_{name}").fill_(torch.nan)
        return buffers
