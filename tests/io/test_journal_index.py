import random
import tracemalloc
from array import array
from pathlib import Path

import pytest

from nanobatch.errors import JournalError
from nanobatch.io.journal import open_journal
from nanobatch.io.journal_counts import JournalCounts
from nanobatch.io.journal_index import JournalIndex
from nanobatch.io.journal_record import JournalRecord, RecordHeader
from nanobatch.io.journal_segment import segment_path
from nanobatch.io.journal_writer import JournalWriter
from nanobatch.request import KV_CAPACITY, ErrorCode, FinishReason, RequestOutput, RowIndex
from tests.io.output_strategies import answer, fault, record


def append_all(index: JournalIndex, rows: list[JournalRecord]) -> None:
    with JournalWriter(index) as writer:
        for row in rows:
            writer.append(row)


def row_of(output: RequestOutput) -> JournalRecord:
    return JournalRecord(output.row_index, 0, (output,))


def test_the_index_holds_8_bytes_a_row(tmp_path: Path) -> None:
    num_rows = 1_000_000
    step = 16  # tracing is slow; an object kept per row would still show
    header = RecordHeader(0, 0, 0, 1, 1, 1, 0)
    index = JournalIndex(tmp_path)
    found = ((200 * row, header._replace(row_index=row), b"") for row in range(0, num_rows, step))
    tracemalloc.start()
    try:
        index.add_all(1, found)
        num_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(index) == num_rows // step
    assert 8.0 <= num_bytes / num_rows <= 8.5
    assert peak_bytes / num_rows <= 8.5


def test_a_row_without_a_record_is_unknown(tmp_path: Path) -> None:
    index = open_journal(tmp_path)
    append_all(index, [record(3)])
    assert [index.has(row) for row in (2, 3, 4, 10**9)] == [False, True, False, False]
    for read in (index.read, index.payload_hash, index.is_error):
        with pytest.raises(KeyError):
            read(2)


def test_payload_hash_and_status_are_read_without_the_outputs(tmp_path: Path) -> None:
    index = open_journal(tmp_path)
    append_all(index, [record(0, payload_hash=2**64 - 1), row_of(fault(1))])
    assert index.payload_hash(0) == 2**64 - 1
    assert [index.is_error(row) for row in (0, 1)] == [False, True]


def test_counts_are_those_of_the_records_live_and_reopened(tmp_path: Path) -> None:
    outgrown = RequestOutput(
        row_index=RowIndex(4),
        finish_reason=FinishReason.LENGTH,
        stop_reason=KV_CAPACITY,
        num_completion_tokens=9,
    )
    rows = [
        row_of(answer(0)),
        row_of(answer(1, finish_reason=FinishReason.LENGTH)),
        row_of(fault(2, ErrorCode.INVALID_JSON)),
        row_of(fault(3, ErrorCode.INVALID_JSON)),
        row_of(outgrown),
        JournalRecord(RowIndex(5), 0, (answer(5), fault(5, ErrorCode.NAN_LOGITS))),
    ]
    index = open_journal(tmp_path)
    append_all(index, rows)
    expected = JournalCounts(
        num_rows=6,
        num_rows_error=3,
        error_counts={ErrorCode.INVALID_JSON: 2, ErrorCode.NAN_LOGITS: 1},
        num_rows_stop=2,
        num_rows_max_tokens=1,
        num_rows_kv_capacity=1,
        num_prompt_tokens=36,
        num_cached_tokens=12,
        num_completion_tokens=15,
    )
    assert index.counts == expected
    assert open_journal(tmp_path).counts == expected


def test_of_a_row_recorded_twice_the_last_record_counts_and_is_read(tmp_path: Path) -> None:
    append_all(open_journal(tmp_path), [row_of(fault(0)), row_of(answer(1))])
    index = open_journal(tmp_path)
    append_all(index, [row_of(answer(0, "second"))])
    for each in (index, open_journal(tmp_path)):
        assert each.read(0).outputs[0].text == "second"
        assert (each.counts.num_rows, each.counts.num_rows_error) == (2, 0)
        assert each.counts.error_counts == {}
        assert each.counts.num_completion_tokens == 4


def test_rows_finished_out_of_order_are_read_in_row_order(tmp_path: Path) -> None:
    rng = random.Random(0)
    order = list(range(3000))
    for start in range(0, 3000, 1000):
        window = order[start : start + 1000]
        rng.shuffle(window)
        order[start : start + 1000] = window
    texts = {row: f"{row} " * rng.randrange(60) for row in order}
    index = open_journal(tmp_path)
    append_all(index, [record(row, texts[row]) for row in order])
    for each in (index, open_journal(tmp_path)):
        assert [each.read(row).outputs[0].text for row in range(3000)] == [
            texts[row] for row in range(3000)
        ]


def test_records_of_many_segments_are_read_together(tmp_path: Path) -> None:
    for row in range(40):
        append_all(open_journal(tmp_path), [record(row, str(row))])
    with open_journal(tmp_path) as index:
        for _ in range(2):
            assert [index.read(row).outputs[0].text for row in range(40)] == [
                str(row) for row in range(40)
            ]


def test_a_record_that_changed_since_the_journal_was_opened_is_an_error(tmp_path: Path) -> None:
    append_all(open_journal(tmp_path), [record(0), record(1)])
    index = open_journal(tmp_path)
    path = segment_path(tmp_path, 1)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert index.read(0) == record(0)
    with pytest.raises(JournalError, match=r"segment-000001\.journal is damaged at byte"):
        index.read(1)
    path.write_bytes(content[:40])
    with pytest.raises(JournalError, match="is damaged at byte 20"):
        open_index_without_scan(tmp_path).read(0)


def open_index_without_scan(folder: Path) -> JournalIndex:
    index = JournalIndex(folder)
    index.add_all(1, [(20, RecordHeader(0, 0, 0, 0, 0, 0, 0), b"")])
    return index


def test_sparse_rows_cost_only_their_chunks(tmp_path: Path) -> None:
    index = JournalIndex(tmp_path)
    rows = array("q", [0, 10**8, 10**12])
    index.add_all(1, [(20, RecordHeader(0, row, 0, 0, 0, 0, 0), b"") for row in rows])
    assert [index.has(row) for row in rows] == [True, True, True]
