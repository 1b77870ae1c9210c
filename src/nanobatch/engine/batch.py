"""From a scheduled step to the arrays that a model runner takes. Plain numpy, no torch."""

from collections.abc import Iterable

import numpy as np

from nanobatch.engine.copy_sources import BlockCopy
from nanobatch.engine.scheduler_output import ScheduledDecode, ScheduledPrefill, SchedulerOutput
from nanobatch.engine.sequence import Sequence
from nanobatch.engine.step_batch import (
    BlockTables,
    DecodeBatch,
    Int32Array,
    Int64Array,
    PrefillBatch,
    StepBatch,
)


def build_batch(output: SchedulerOutput) -> StepBatch:
    """Turn a step into arrays; to be called before the scheduler makes another step."""
    if isinstance(output, ScheduledDecode):
        return _decode_batch(output)
    return _prefill_batch(output)


def _decode_batch(output: ScheduledDecode) -> DecodeBatch:
    return DecodeBatch(
        row_ids=output.row_ids,
        positions=output.positions,
        num_steps_of_rows=output.num_steps_of_rows,
        num_steps=output.num_steps,
        block_tables=_join_block_tables(output.sampled),
        num_shared_blocks=output.num_shared_blocks,
    )


def _prefill_batch(output: ScheduledPrefill) -> PrefillBatch:
    chunks = output.chunks
    seqs = [chunk.sequence for chunk in chunks]
    num_scheduled = _int32(chunk.num_tokens for chunk in chunks)
    seq_lens = _int32(chunk.start + chunk.num_tokens for chunk in chunks)
    query_start_loc = _starts(num_scheduled)
    token_rows = np.repeat(np.arange(len(seqs), dtype=np.int32), num_scheduled)  # [num_tokens]
    offsets = (seq_lens - query_start_loc[1:])[token_rows]
    positions = np.arange(len(token_rows), dtype=np.int32) + offsets
    block_tables = _join_block_tables(seqs)
    logits_rows = _int32(row for row, chunk in enumerate(chunks) if chunk.is_last)
    return PrefillBatch(
        input_ids=np.concatenate(
            [chunk.sequence.tokens(chunk.start, chunk.start + chunk.num_tokens) for chunk in chunks]
        ),
        positions=positions,
        slot_mapping=_slot_mapping(
            block_tables, token_rows, positions, block_size=output.block_size
        ),
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        block_tables=block_tables,
        row_ids=_int32(seq.slot for seq in seqs if seq.slot is not None),
        logits_indices=query_start_loc[logits_rows + 1] - 1,
        logits_rows=logits_rows,
        slot_assignments=tuple(seq.slot_assignment() for seq in output.admitted),
        slot_copies=_slot_copies(output.block_copies, block_size=output.block_size),
    )


def _int32(values: Iterable[int]) -> Int32Array:
    return np.fromiter(values, dtype=np.int32)


def _starts(lengths: Int32Array) -> Int32Array:
    """Return in [len(lengths) + 1] where each of some pieces begins, and the end."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _join_block_tables(seqs: list[Sequence]) -> BlockTables:
    tables = [seq.block_table for seq in seqs]
    return BlockTables(
        block_ids=np.frombuffer(b"".join(tables), dtype=np.intc),
        starts=_starts(np.fromiter(map(len, tables), dtype=np.int32, count=len(tables))),
    )


def _slot_mapping(
    block_tables: BlockTables, rows: Int32Array, positions: Int32Array, *, block_size: int
) -> Int64Array:
    """Return [num_tokens]: where the pool stores the token at each row's position."""
    places = block_tables.starts[rows] + positions // block_size
    block_ids: Int64Array = block_tables.block_ids[places].astype(np.int64)
    return np.add(block_ids * block_size, positions % block_size)


def _slot_copies(copies: list[BlockCopy], *, block_size: int) -> Int64Array:
    """Return [2, num_copies]: sources and destinations, all to be copied at once."""
    if not copies:
        return np.empty((2, 0), dtype=np.int64)
    source_blocks, destination_blocks, num_tokens = np.array(copies, dtype=np.int64).T
    ends = np.cumsum(num_tokens)
    offsets = np.arange(ends[-1]) - np.repeat(ends - num_tokens, num_tokens)
    sources = np.repeat(source_blocks * block_size, num_tokens) + offsets
    destinations = np.repeat(destination_blocks * block_size, num_tokens) + offsets
    order = np.argsort(destinations)
    while True:
        # What is itself copied in this step is taken from where that comes from.
        places = order[np.searchsorted(destinations, sources, sorter=order) % len(order)]
        is_copied = destinations[places] == sources
        if not is_copied.any():
            return np.stack((sources, destinations))
        sources = np.where(is_copied, sources[places], sources)
