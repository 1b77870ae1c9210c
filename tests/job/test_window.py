"""The look-ahead window: bounded, and never waiting for the end of the input."""

import json
import os
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from nanobatch.job import generation
from nanobatch.job.stats import JobStats, Phase
from tests.job.null_jobs import PROMPTS, null_config, read_rows, run_null, write_lines


@pytest.mark.parametrize("window_rows", [1, 3, 10])
def test_no_more_rows_wait_than_the_window_holds(
    window_rows: int, null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    waiting: list[int] = []
    config = null_config(
        null_model,
        source,
        tmp_path / "out.jsonl",
        window_rows=window_rows,
        engine={"max_num_seqs": 2},
    )
    result = run_null(config, on_stats=lambda stats: waiting.append(stats.num_rows_waiting))
    assert result.exit_code == 0
    assert 0 < max(waiting) <= window_rows


def test_the_window_grows_while_its_first_rows_are_answered(
    null_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "FIRST_ROWS_AHEAD", 5)
    monkeypatch.setattr(generation, "MORE_ROWS_AHEAD", 2)
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": f"row {row}"} for row in range(60)])
    waiting: list[int] = []

    def on_stats(stats: JobStats) -> None:
        if stats.num_rows_running:
            waiting.append(stats.num_rows_waiting)

    config = null_config(
        null_model,
        source,
        tmp_path / "out.jsonl",
        window_rows=20,
        engine={"max_num_seqs": 2},
    )
    assert run_null(config, on_stats=on_stats).exit_code == 0
    assert waiting[0] <= 5 + 2
    steps = [after - before for before, after in pairwise(waiting)]
    assert max(steps) <= 2 + 2, "a few more than have left, from step to step"
    assert max(waiting) == 20


def test_long_prompts_fill_the_window_by_their_tokens(null_model: Path, tmp_path: Path) -> None:
    rows = [{"input_ids": [40 + index % 50] * 400, "max_tokens": 20} for index in range(120)]
    source = write_lines(tmp_path / "in.jsonl", rows)
    waiting: list[int] = []
    running: list[int] = []

    def on_stats(stats: JobStats) -> None:
        waiting.append(stats.num_rows_waiting)
        running.append(stats.num_rows_running)

    config = null_config(
        null_model,
        source,
        tmp_path / "out.jsonl",
        window_rows=40,
        window_tokens=4000,
        engine={"max_num_seqs": 20},
    )
    assert run_null(config, on_stats=on_stats).exit_code == 0
    assert max(running) == 20, "rows that run take no place in the window"
    # The first portion is read before anything is known of the rows' lengths.
    assert 0 < max(waiting[len(waiting) // 2 :]) <= 4000 // 400


def test_a_short_row_does_not_wait_for_all_longer_ones_of_a_job(
    null_model: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The longest of the last rows go first, but not of those that a small window shows."""
    lengths = [2 if row % 10 == 5 else 12 for row in range(100)]
    rows = [
        {"prompt": f"row {row}", "max_tokens": length, "ignore_eos": True}
        for row, length in enumerate(lengths)
    ]
    source = write_lines(tmp_path / "in.jsonl", rows)
    config = null_config(null_model, source, Path("-"), window_rows=6, engine={"max_num_seqs": 4})
    assert run_null(config).exit_code == 0
    ended = [json.loads(line)["row_index"] for line in capfdbinary.readouterr().out.splitlines()]
    assert sorted(ended) == list(range(100))
    is_late = [ended.index(row) > row + 10 for row in range(5, 80, 10)]
    assert not any(is_late)


def test_rows_of_a_pipe_are_answered_while_it_is_still_being_written(
    null_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_end = os.pipe()
    done: list[int] = []
    all_first_done = threading.Event()

    def write_slowly() -> None:
        lines = [json.dumps(row).encode() + b"\n" for row in PROMPTS]
        os.write(write_end, b"".join(lines[:20]))
        all_first_done.wait(timeout=30)
        os.write(write_end, b"".join(lines[20:]))
        os.close(write_end)

    def on_stats(stats: JobStats) -> None:
        done.append(stats.num_rows_done)
        if stats.num_rows_done == 20:
            all_first_done.set()

    writer = threading.Thread(target=write_slowly)
    writer.start()
    with os.fdopen(read_end, "rb") as pipe:
        monkeypatch.setattr("sys.stdin", _TextOver(pipe))
        config = null_config(null_model, Path("-"), tmp_path / "out.jsonl")
        started = time.monotonic()
        result = run_null(config, on_stats=on_stats)
    writer.join()
    assert result.exit_code == 0
    assert time.monotonic() - started < 30, "the second half was only written after a time-out"
    assert len(read_rows(tmp_path / "out.jsonl")) == len(PROMPTS)


class _TextOver:
    """A text stream over a binary one, as sys.stdin is."""

    def __init__(self, buffer: object) -> None:
        self.buffer = buffer

    def fileno(self) -> int:
        number: int = self.buffer.fileno()  # type: ignore[attr-defined]
        return number


def test_progress_goes_by_the_bytes_of_rows_that_are_done(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    seen: list[JobStats] = []
    config = null_config(
        null_model, source, tmp_path / "out.jsonl", engine={"max_num_seqs": 2}, window_rows=4
    )
    run_null(config, on_stats=seen.append)
    running = [stats for stats in seen if stats.phase is Phase.RUNNING and stats.num_rows_done]
    line_bytes = [len(line) + 1 for line in source.read_bytes().splitlines()]
    for stats in running:
        lowest = sum(sorted(line_bytes)[: stats.num_rows_done]) / sum(line_bytes)
        highest = sum(sorted(line_bytes)[-stats.num_rows_done :]) / sum(line_bytes)
        assert lowest <= stats.input_fraction <= highest
    assert any(stats.eta_s is not None and stats.eta_s > 0 for stats in running)
    assert seen[-1].input_fraction == 1.0
