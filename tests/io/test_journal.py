import os
import random
from pathlib import Path

import pytest

from nanobatch.errors import JournalError
from nanobatch.io.journal import open_journal
from nanobatch.io.journal_record import JournalRecord, encode_record
from nanobatch.io.journal_segment import SEGMENT_HEADER, segment_numbers, segment_path
from nanobatch.io.journal_writer import JournalWriter
from nanobatch.request import ErrorCode, FinishReason, RequestOutput, RowIndex
from tests.io.output_strategies import answer, fault, record

TEXTS = ["Paris.", "", "naïve 日本 \U0001f600", "\ud83d lone", "a\u2028b\n\x00"]


def small_journal() -> list[JournalRecord]:
    """Records of one and of several samples, answers and errors, in order of completion."""
    rows = [record(row_index, text) for row_index, text in enumerate(TEXTS)]
    samples = tuple(
        RequestOutput(
            row_index=RowIndex(5),
            sample_index=place,
            text=text,
            finish_reason=FinishReason.LENGTH,
            stop_reason=place if place else "###",
            logprobs=(-0.1, -1e-12),
        )
        for place, text in enumerate(TEXTS[:3])
    )
    rows.append(JournalRecord(RowIndex(5), 2**64 - 1, samples))
    rows.append(JournalRecord(RowIndex(6), 0, (fault(6, ErrorCode.PROMPT_TOO_LONG),)))
    return [rows[place] for place in (1, 0, 6, 3, 2, 5, 4)]


def write_segment(folder: Path, number: int, content: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    path = segment_path(folder, number)
    path.write_bytes(content)
    return path


def segment_bytes(rows: list[JournalRecord]) -> bytes:
    return SEGMENT_HEADER + b"".join(encode_record(row) for row in rows)


def append_all(folder: Path, rows: list[JournalRecord]) -> None:
    with open_journal(folder) as index, JournalWriter(index) as writer:
        for row in rows:
            writer.append(row)


def read_all(folder: Path, *, repair: bool = False) -> dict[int, JournalRecord]:
    with open_journal(folder, repair=repair) as index:
        found = {row: index.read(row) for row in range(100) if index.has(row)}
        assert len(index) == len(found)
        return found


def by_row(rows: list[JournalRecord]) -> dict[int, JournalRecord]:
    return {int(row.row_index): row for row in rows}


def test_a_folder_that_does_not_exist_holds_no_rows(tmp_path: Path) -> None:
    assert read_all(tmp_path / "out.jsonl.nanobatch") == {}


def test_what_was_appended_comes_back(tmp_path: Path) -> None:
    append_all(tmp_path / "journal", small_journal())
    assert read_all(tmp_path / "journal") == by_row(small_journal())


def test_each_run_writes_a_segment_of_its_own(tmp_path: Path) -> None:
    append_all(tmp_path, [record(0)])
    before = segment_path(tmp_path, 1).read_bytes()
    append_all(tmp_path, [record(1)])
    assert segment_numbers(tmp_path) == [1, 2]
    assert segment_path(tmp_path, 1).read_bytes() == before
    assert read_all(tmp_path) == by_row([record(0), record(1)])


def test_other_files_of_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    append_all(tmp_path, [record(0)])
    assert read_all(tmp_path) == by_row([record(0)])
    assert (tmp_path / "manifest.json").read_text() == "{}"


def test_cut_at_every_byte_a_journal_gives_the_whole_records_before_the_cut(
    tmp_path: Path,
) -> None:
    rows = small_journal()
    whole = segment_bytes(rows)
    ends = [len(segment_bytes(rows[:count])) for count in range(len(rows) + 1)]
    for cut in range(len(whole) + 1):
        path = write_segment(tmp_path, 1, whole[:cut])
        survivors = rows[: sum(end <= cut for end in ends[1:])]
        assert read_all(tmp_path) == by_row(survivors)
        assert path.exists() == bool(survivors)


def test_after_any_cut_the_next_run_appends_and_all_comes_back(tmp_path: Path) -> None:
    rows = small_journal()
    whole = segment_bytes(rows)
    for cut in range(0, len(whole) + 1, 7):
        folder = tmp_path / str(cut)
        write_segment(folder, 1, whole[:cut])
        survivors = read_all(folder)
        append_all(folder, [record(50)])
        assert read_all(folder) == survivors | by_row([record(50)])


@pytest.mark.parametrize("seed", range(20))
def test_killed_and_resumed_at_random_no_whole_record_is_lost(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    expected: dict[int, JournalRecord] = {}
    for run in range(6):
        rows = [
            record(rng.randrange(40), f"run {run} " + rng.choice(TEXTS), payload_hash=run)
            for _ in range(rng.randrange(8))
        ]
        append_all(tmp_path, rows)
        newest = segment_path(tmp_path, segment_numbers(tmp_path)[-1])
        cut = rng.randrange(newest.stat().st_size + 1)
        os.truncate(newest, cut)
        ends = [len(segment_bytes(rows[:count])) for count in range(1, len(rows) + 1)]
        expected |= by_row(rows[: sum(end <= cut for end in ends)])
        if rng.random() < 0.5:
            with newest.open("ab") as stream:
                stream.write(rng.randbytes(rng.randrange(60)))
        assert read_all(tmp_path) == expected


def test_a_torn_tail_is_cut_from_the_file(tmp_path: Path) -> None:
    whole = segment_bytes([record(0), record(1)])
    path = write_segment(tmp_path, 1, whole + encode_record(record(2))[:-1])
    read_all(tmp_path)
    assert path.read_bytes() == whole


def test_a_flipped_byte_in_the_last_record_is_a_tail(tmp_path: Path) -> None:
    content = bytearray(segment_bytes([record(0), record(1)]))
    content[-1] ^= 1
    write_segment(tmp_path, 1, bytes(content))
    assert read_all(tmp_path) == by_row([record(0)])


def test_any_flipped_byte_in_the_middle_is_an_error_and_repair_keeps_all_others(
    tmp_path: Path,
) -> None:
    rows = small_journal()
    whole = segment_bytes(rows)
    start, end = len(segment_bytes(rows[:3])), len(segment_bytes(rows[:4]))
    for place in range(start, end):
        content = bytearray(whole)
        content[place] ^= 0xFF
        path = write_segment(tmp_path, 1, bytes(content))
        with pytest.raises(JournalError) as caught:
            open_journal(tmp_path)
        assert caught.value.message == (
            f"{path} is damaged at byte {start:,} ({end - start:,} bytes), "
            "with valid records after it"
        )
        assert "--repair-journal" in str(caught.value.hint)
        assert path.read_bytes() == bytes(content)
        assert read_all(tmp_path, repair=True) == by_row(rows[:3] + rows[4:])
        assert read_all(tmp_path) == by_row(rows[:3] + rows[4:])


def test_a_damaged_segment_header_is_an_error_while_records_follow(tmp_path: Path) -> None:
    content = bytearray(segment_bytes([record(0)]))
    content[3] ^= 1
    write_segment(tmp_path, 1, bytes(content))
    with pytest.raises(JournalError, match="is damaged at byte 0 "):
        open_journal(tmp_path)
    assert read_all(tmp_path, repair=True) == by_row([record(0)])


def test_damage_at_the_end_of_an_older_segment_is_not_a_tail(tmp_path: Path) -> None:
    first = segment_bytes([record(0), record(1)])
    write_segment(tmp_path, 1, first[:-3])
    write_segment(tmp_path, 2, segment_bytes([record(2)]))
    with pytest.raises(JournalError, match="segment-000001"):
        open_journal(tmp_path)
    assert read_all(tmp_path, repair=True) == by_row([record(0), record(2)])


def test_a_tail_may_reach_over_segments_that_hold_no_record(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, segment_bytes([record(0)]) + b"torn")
    write_segment(tmp_path, 2, SEGMENT_HEADER[:5])
    assert read_all(tmp_path) == by_row([record(0)])
    assert segment_numbers(tmp_path) == [1]


def test_a_missing_segment_is_an_error_and_repair_goes_on_without_it(tmp_path: Path) -> None:
    for row in range(3):
        append_all(tmp_path, [record(row)])
    segment_path(tmp_path, 2).unlink()
    with pytest.raises(JournalError, match=r"segment-000002\.journal is missing"):
        open_journal(tmp_path)
    assert read_all(tmp_path, repair=True) == by_row([record(0), record(2)])
    assert segment_numbers(tmp_path) == [1, 2]


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, b"nanobatch journal 1\n" + encode_record(record(0)))
    with pytest.raises(JournalError, match="version 1; this nanobatch reads version 2"):
        open_journal(tmp_path)


def test_a_record_inside_a_models_text_is_not_mistaken_for_one(tmp_path: Path) -> None:
    planted = encode_record(record(77)).decode("latin-1")
    rows = [record(0, planted), record(1)]
    content = bytearray(segment_bytes(rows))
    content[len(SEGMENT_HEADER)] ^= 1
    write_segment(tmp_path, 1, bytes(content))
    assert read_all(tmp_path, repair=True) == by_row([record(1)])


def test_damage_larger_than_a_read_is_crossed(tmp_path: Path) -> None:
    rng = random.Random(1)
    hole = rng.randbytes(3 << 20)
    content = segment_bytes([record(0)]) + hole + encode_record(record(1))
    write_segment(tmp_path, 1, content)
    with pytest.raises(JournalError, match=r"\(3,145,728 bytes\)"):
        open_journal(tmp_path)
    assert read_all(tmp_path, repair=True) == by_row([record(0), record(1)])


def test_a_record_larger_than_a_read_comes_back(tmp_path: Path) -> None:
    rows = [record(0), record(1, "long " * (1 << 19)), record(2)]
    append_all(tmp_path, rows)
    assert read_all(tmp_path) == by_row(rows)


def test_samples_of_a_row_stay_together(tmp_path: Path) -> None:
    row = JournalRecord(RowIndex(0), 1, (answer(0), fault(0), answer(0)))
    append_all(tmp_path, [row])
    assert read_all(tmp_path) == {0: row}


def test_a_journal_that_cannot_be_opened_leaves_no_file_open(tmp_path: Path) -> None:
    for _ in range(2):  # rows that were recorded before are read while the journal is opened
        append_all(tmp_path, small_journal())
    segment = segment_path(tmp_path, 2)
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(JournalError):
        open_journal(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open
