"""`nanobatch run` on a tiny real model: what it prints where, and how it ends."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.program import Ended, Program, start, wait
from tests.null_model import write_null_model

PROMPTS = [{"id": f"row-{number}", "prompt": f"the answer of {number} is"} for number in range(12)]
FAST = ("--max-tokens", "5", "--temperature", "0", "--device", "cpu", "--dtype", "float32")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "in.jsonl", PROMPTS)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_rows(lines: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines()]


def test_a_run_writes_its_file_and_prints_a_summary_to_standard_error(
    program: Program, source: Path, checkpoint: Path, tmp_path: Path
) -> None:
    output = tmp_path / "new" / "folder" / "out.jsonl"
    ended = program("run", source, "-o", output, "-m", checkpoint, *FAST)
    assert (ended.code, ended.out) == (0, b"")
    assert "sampling: max_tokens 5, temperature 0" in ended.err
    assert "12 ok, 0 errors" in ended.err
    assert str(output) in ended.err
    rows = read_rows(output.read_bytes())
    assert [row["id"] for row in rows] == [row["id"] for row in PROMPTS]
    assert {row["status"] for row in rows} == {"ok"}
    assert sorted(path.name for path in output.parent.iterdir()) == [
        "out.jsonl",
        "out.jsonl.summary.json",
    ]


def test_the_longest_name_that_is_not_refused_can_be_written(
    program: Program, source: Path, checkpoint: Path, tmp_path: Path
) -> None:
    output = tmp_path / ("a" * 236 + ".jsonl")
    ended = program("run", source, "-o", output, "-m", checkpoint, *FAST)
    assert ended.code == 0, ended.err
    assert len(read_rows(output.read_bytes())) == 12


def test_the_same_line_again_has_nothing_to_do_and_ends_alike(
    program: Program, checkpoint: Path, tmp_path: Path
) -> None:
    rows = [*PROMPTS[:3], {"prompt": ""}]
    line = ("run", write_rows(tmp_path / "in.jsonl", rows), "-o", tmp_path / "out.parquet")
    first = program(*line, "-m", checkpoint, *FAST)
    again = program(*line, "-m", checkpoint, *FAST)
    assert (first.code, again.code) == (3, 3)
    assert again.out == b""
    assert again.err.splitlines()[-1] == (
        f"nothing to do: {tmp_path / 'out.parquet'} is complete "
        "(4 rows, 1 of them errors; --retry-errors runs those again)"
    )
    other = program(*line, "-m", checkpoint, *FAST, "--seed", "5")
    assert other.code == 2
    assert "another job: seed (0 before, 5 now) differs" in other.error_and_hint[0]


@pytest.mark.parametrize(("max_errors", "code"), [("0", 3), ("1", 3), ("2", 0), ("any", 0)])
def test_error_rows_end_with_3_unless_allowed(
    max_errors: str, code: int, program: Program, checkpoint: Path, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "a"}, {"prompt": ""}, {"prompt": "b", "top_p": 7}]
    source = write_rows(tmp_path / "in.jsonl", rows)
    line = ("run", source, "-o", tmp_path / "out.jsonl", "-m", checkpoint, *FAST)
    ended = program(*line, "--max-errors", max_errors)
    assert ended.code == code
    assert "1 ok, 2 errors (1 bad_params, 1 empty_prompt)" in ended.err


def test_dash_prints_answers_and_nothing_else_on_standard_output(
    program: Program, source: Path, checkpoint: Path, tmp_path: Path
) -> None:
    ended = program("run", source, "-o", "-", "-m", checkpoint, *FAST)
    assert ended.code == 0
    rows = read_rows(ended.out)
    assert sorted(row["row_index"] for row in rows) == list(range(12))
    assert {row["completion_tokens"] for row in rows} == {5}
    assert "12 ok" in ended.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


def test_progress_that_is_no_terminal_is_plain_lines(
    program: Program,
    source: Path,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = ("run", source, "-m", checkpoint, *FAST)
    loud = program(*line, "-o", tmp_path / "loud.jsonl")
    monkeypatch.setenv("NO_COLOR", "1")
    colourless = program(*line, "-o", tmp_path / "colourless.jsonl")
    silent = program(*line, "-o", tmp_path / "silent.jsonl", "--no-progress")
    for ended in (loud, colourless, silent):
        assert ended.code == 0
        assert "\x1b" not in ended.err
        assert "\r" not in ended.err
    assert has_progress_line(loud)
    assert has_progress_line(colourless)
    assert not has_progress_line(silent)
    assert silent.err.splitlines()[0].startswith("sampling: ")
    assert silent.err.splitlines()[1].startswith("finished: 12")


def has_progress_line(ended: Ended) -> bool:
    """Whether a line of standard error begins with a time of day."""
    return any(line[2:3] == ":" and line[5:6] == ":" for line in ended.err.splitlines())


def test_unknown_parameters_are_warned_of_once(
    program: Program, checkpoint: Path, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"custom_id": str(number), "body": {"prompt": "a", "mood": "dry"}} for number in range(3)
    ]
    source = write_rows(tmp_path / "in.jsonl", rows)
    ended = program("run", source, "-o", tmp_path / "out.jsonl", "-m", checkpoint, *FAST)
    assert ended.code == 0
    assert ended.err.count("mood") == 1
    assert f"{source}:1: unknown parameter mood is ignored" in ended.err


def test_flags_reach_the_rows(program: Program, checkpoint: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", [{"text": "the capital", "keep": 1, "drop": 2}])
    (tmp_path / "chat.jinja").write_text("{{ tone }}: {{ messages[-1].content }}")
    line = ("run", source, "-m", checkpoint, *FAST, "--token-ids", "--logprobs")
    chat, raw = tmp_path / "chat.parquet", tmp_path / "raw.parquet"
    ended = program(
        *(*line, "-o", chat, "--template", "about {{ text }}", "--columns", "keep"),
        *("--chat-template", tmp_path / "chat.jinja", "--stop", "\n"),
        *("--chat-template-kwargs", '{"tone": "dry"}'),
    )
    assert ended.code == 0, ended.err
    assert "stop ['\\n']" in ended.err
    row = pq.read_table(chat).to_pylist()[0]
    assert row["keep"] == 1
    assert "drop" not in row
    assert len(row["token_ids"]) == len(row["logprobs"]) == row["completion_tokens"] <= 5
    program(*line, "-o", raw, "--template", "dry: about {{ text }}", "--raw", "--stop", "\n")
    same = pq.read_table(raw).to_pylist()[0]
    assert [same[name] for name in ("prompt_tokens", "token_ids")] == [
        row[name] for name in ("prompt_tokens", "token_ids")
    ]


def test_no_prompt_text_is_logged_unless_debugging(
    program: Program, checkpoint: Path, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "a secret question"}]
    source = write_rows(tmp_path / "in.jsonl", [*rows, {**rows[0], "top_p": 9}])
    line = ("run", source, "-m", checkpoint, *FAST)
    ended = program(*line, "-o", tmp_path / "out.jsonl")
    assert ended.code == 3
    assert "secret" not in ended.err
    debugged = program(*line, "-o", tmp_path / "debug.jsonl", "--debug")
    assert "finished row 0" in debugged.err


NUM_SLOW_ROWS = 64
SLOW = ("--max-tokens", "6", "--max-num-seqs", "4", "--no-progress")


@pytest.fixture
def slow_line(tmp_path: Path) -> list[str]:
    """A job on the null model whose rows finish a few at a time."""
    source = write_rows(
        tmp_path / "in.jsonl", [{"prompt": f"row {n}"} for n in range(NUM_SLOW_ROWS)]
    )
    model = write_null_model(tmp_path / "null-model")
    return ["run", str(source), "-o", str(tmp_path / "out.jsonl"), "-m", str(model), *SLOW]


def stop_with(number: signal.Signals, line: list[str], output: Path) -> Ended:
    """Run a job until it has recorded rows, then send it a signal."""
    process = start(*line, module="tests.null_program", NULL_STEP_S="0.1")
    journal = Path(f"{output}.nanobatch")
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size > 200 for path in journal.glob("*.journal")):
        assert time.monotonic() < deadline, "no row finished in a minute"
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    signalled_at = time.monotonic()
    ended = wait(process)
    assert time.monotonic() - signalled_at < 10
    assert "Traceback" not in ended.err
    assert f"stopped by {number.name}: run the same line again to continue" in ended.err
    assert f"finished rows are in {journal}" in ended.err
    assert not output.exists()
    return ended


@pytest.mark.slow
def test_ctrl_c_ends_by_the_signal_and_the_same_line_continues(
    slow_line: list[str], tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    assert stop_with(signal.SIGINT, slow_line, output).code == -signal.SIGINT
    again = wait(start(*slow_line, module="tests.null_program"))
    assert again.code == 0, again.err
    assert "resuming: " in again.err
    rows = read_rows(output.read_bytes())
    assert [row["row_index"] for row in rows] == list(range(NUM_SLOW_ROWS))


@pytest.mark.slow
def test_sigterm_ends_with_75(slow_line: list[str], tmp_path: Path) -> None:
    assert stop_with(signal.SIGTERM, slow_line, tmp_path / "out.jsonl").code == 75


LONG = ("--max-tokens", "400", "--device", "cpu", "--dtype", "float32", "--max-num-seqs", "2")


def long_rows(folder: Path) -> Path:
    rows = [{"prompt": f"row {number}", "ignore_eos": True} for number in range(60)]
    return write_rows(folder / "in.jsonl", rows)


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_run_without_a_traceback(
    checkpoint: Path, tmp_path: Path
) -> None:
    process = start("run", long_rows(tmp_path), "-o", "-", "-m", checkpoint, *LONG)
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    process.stdout.close()
    process.stdout = None
    ended = wait(process)
    assert first["status"] == "ok"
    assert ended.code == 1
    assert "Traceback" not in ended.err
    assert "Exception ignored" not in ended.err
    assert "error: cannot write standard output: Broken pipe\n" in ended.err


@pytest.mark.slow
@pytest.mark.parametrize("blocked_on", ["chat.jinja", "model/config.json"])
def test_ctrl_c_before_anything_is_begun_ends_by_the_signal_too(
    blocked_on: str, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    fifo = tmp_path / blocked_on
    fifo.unlink(missing_ok=True)
    os.mkfifo(fifo)
    output = tmp_path / "out.jsonl"
    process = start(
        *("run", source, "-o", output, "-m", tmp_path / "model"),
        *("--chat-template", tmp_path / "chat.jinja"),
    )
    writer = open_once_it_is_read(fifo)
    process.send_signal(signal.SIGINT)
    ended = wait(process)
    os.close(writer)
    assert ended.code == -signal.SIGINT
    assert "Traceback" not in ended.err
    assert "run the same line again to continue" in ended.err
    assert not list(tmp_path.glob("out.*"))


def open_once_it_is_read(fifo: Path) -> int:
    """Open a FIFO for writing as soon as somebody opens it for reading."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            assert time.monotonic() < deadline, "nobody reads the FIFO"
            time.sleep(0.05)
