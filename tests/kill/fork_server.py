"""Starts the program on the null model in milliseconds: a process that has imported it and forks.

A child is a process of its own, in a session of its own, that goes through the program's `main`
from its first line to its exit functions; only the imports are done. `python -m
tests.kill.fork_server` reads commands from standard input and answers each with a line of JSON;
`forked_run` is the other side.
"""

import atexit
import contextlib
import gc
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from nanobatch.job.process_end import STOP_SIGNALS
from tests.kill.places import Place, TreatedRun, Treatment


def main() -> None:
    """Answer commands until standard input ends."""
    _import_everything()
    gc.freeze()  # a collection in a child would copy every page
    while line := sys.stdin.readline():
        command: dict[str, Any] = json.loads(line)
        answer = _start(command) if "arguments" in command else _reap(**command)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _import_everything() -> None:
    sys.modules["torch"] = None  # type: ignore[assignment]  # transformers would load it
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    from transformers import AutoTokenizer  # noqa: F401

    from nanobatch.cli.app import main as run_program
    from tests.slow_null_model import load_slow_null_runner  # noqa: F401

    # A run that is refused loads what reading a command line loads.
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        run_program(["run", "no-such-input.jsonl", "-o", "no-output.jsonl"])
    # A child would inherit locks held by threads that it lacks. Arrow's allocator has a thread, and
    # knows how to fork.
    threads = {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
    assert len(threads - {"jemalloc_bg_thd"}) == 1, threads


def _start(command: dict[str, Any]) -> int:
    process = os.fork()
    if process == 0:
        _run(command)
    return process


def _reap(process: int) -> int:
    """Return the exit code of a child that has ended."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _run(command: dict[str, Any]) -> NoReturn:
    os.setsid()
    for number in STOP_SIGNALS:  # who runs the tests may ignore some of them (nohup)
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _take_streams(command["stdin"], command["stderr"])
    sys.argv = ["nanobatch", *command["arguments"]]
    treated = TreatedRun(Treatment(**command["treatment"]))
    from nanobatch.__main__ import main as run_program
    from nanobatch.cli import run_job as in_front_of_a_person

    in_front_of_a_person.run_job = treated.run_job(  # type: ignore[attr-defined]
        in_front_of_a_person.run_job  # type: ignore[attr-defined]
    )
    try:
        run_program()
    except SystemExit:
        treated.reach(Place.END)
    finally:
        atexit._run_exitfuncs()  # the first to be registered, the last to run, ends the process
        os._exit(os.EX_SOFTWARE)


def _take_streams(stdin: str, stderr: str) -> None:
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(stdin, os.O_RDONLY), 0)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode) for number, mode in enumerate("rww")
    )


if __name__ == "__main__":
    main()
