"""A real run in a process of its own, seen by `status` and `export`: running, killed, finished."""

import json
import signal
import time
from pathlib import Path
from typing import Any

from tests.cli.program import Program, start, wait
from tests.job.null_jobs import PROMPTS, read_rows, write_lines
from tests.job.test_observe import touch_all
from tests.null_model import write_null_model

NULL_PROGRAM = "tests.null_program"
TIMEOUT_S = 60


def shown(program: Program, output: Path) -> dict[str, Any]:
    """Return what status says; before the run has written anything, that nothing is done."""
    ended = program("status", output, "--json")
    if ended.code == 2:
        return {"state": None, "rows_done": 0}
    status: dict[str, Any] = json.loads(ended.out)
    return status


def test_a_run_is_seen_while_it_runs_after_a_kill_and_at_its_end(
    program: Program, tmp_path: Path
) -> None:
    model = write_null_model(tmp_path / "model")
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    output, file = tmp_path / "out.jsonl", tmp_path / "part.jsonl"
    line: list[str | Path] = ["run", source, "-o", output, "--model", model]
    line += ["--max-num-seqs", "2", "--max-tokens", "8"]
    process = start(*line, module=NULL_PROGRAM, NULL_STEP_S="0.05")
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while (status := shown(program, output))["rows_done"] == 0:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert (status["state"], status["pid"]) == ("running", process.pid)
        exported = program("export", output, "--partial", "-o", file)
        assert exported.code == 0, exported.err
    finally:
        process.send_signal(signal.SIGKILL)
    assert wait(process).code == -signal.SIGKILL
    journal = Path(f"{output}.nanobatch")
    touch_all(journal, tmp_path.stat().st_mtime - 60)
    assert shown(program, output)["state"] == "dead"
    ended = wait(start(*line, module=NULL_PROGRAM))
    assert ended.code == 0, ended.err
    status = shown(program, output)
    assert (status["state"], status["rows_done"], status["rows_total"]) == ("finished", 40, 40)
    part, whole = read_rows(file), read_rows(output)
    assert part == [whole[row["row_index"]] for row in part]
    assert 0 < len(part) < 40
