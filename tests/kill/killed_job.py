"""A job that is killed and run again, and what must be true of it then."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.job.null_jobs import read_rows, without_cached_tokens
from tests.kill.forked_run import ForkedRun, ForkServer, Marks, finished_rows
from tests.kill.places import Treatment

Result = TypeVar("Result")
MAX_NUM_SEQS = 8
NUM_ROWS = 60
ROWS_PER_PART = 16
ROWS: list[dict[str, Any]] = [
    {"id": index, "prompt": f"question {index} is", "tags": list(range(300 + index))}
    for index in range(NUM_ROWS)
]
"""Rows whose pass-through values take some time to write."""
ALL_KILLS = bool(os.environ.get("NANOBATCH_ALL_KILLS"))
"""Whether the tests kill at every place that they know, which takes minutes."""
LOAD_S, STEP_S, RENAME_S = 0.05, 0.003, 0.04
STOPPED_CODE = dict.fromkeys((signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP), 75) | {
    signal.SIGINT: -signal.SIGINT,
    signal.SIGKILL: -signal.SIGKILL,
}
"""The exit code of a run that a signal ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledJob:
    """A line that is run again and again.

    Attributes:
        server: Starts its runs.
        folder: Folder of its own, with nothing in it at first.
        model: Folder of the null model.
        source: Input; a pipe's bytes where `is_piped`.
        output_name: File, or with a / at its end folder, that the job writes in `folder`.
        is_piped: Whether the input comes through standard input.
        flags: More of the line.
    """

    server: ForkServer
    folder: Path
    model: Path
    source: Path
    output_name: str
    is_piped: bool = False
    flags: tuple[str, ...] = ()

    @property
    def output(self) -> Path:
        """What the job writes."""
        return self.folder / self.output_name

    @property
    def journal(self) -> Path:
        """Folder of its journal, while it is not finished."""
        return self.folder / f"{self.output_name.rstrip('/')}.nanobatch"

    @property
    def log(self) -> Path:
        """Standard error of all its runs."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def line(self) -> list[str]:
        """The arguments of every run."""
        parts = ["--rows-per-part", str(ROWS_PER_PART)] if self.output_name.endswith("/") else []
        return [
            *("run", "-" if self.is_piped else str(self.source)),
            *("-o", f"{self.folder}/{self.output_name}", "--model", str(self.model)),
            *("--temperature", "0", "--max-tokens", "12", "--max-num-seqs", str(MAX_NUM_SEQS)),
            *("--debug", "--no-progress", *parts, *self.flags),
        ]

    @contextmanager
    def started(self, **treatment: Any) -> Iterator[tuple[ForkedRun, Marks]]:
        """Run the line inside the block.

        Args:
            **treatment: Fields of `Treatment`.

        Yields:
            The run, and where it tells of itself.
        """
        pipe = self.folder.with_name(f"{self.folder.name}.marks")
        pipe.unlink(missing_ok=True)
        marks = Marks(pipe)
        whole = Treatment(output=str(self.output), marks=str(pipe), **treatment)
        try:
            with self._stdin() as stdin:
                yield self.server.start(self.line, whole, log=self.log, stdin=stdin), marks
        finally:
            marks.close()

    def finish(self) -> None:
        """Run the line to its end and check all that must be true then."""
        with self.started() as (run, _):
            code = run.code()
        assert code == 0, self.log.read_text()[-3000:]
        assert not run.leaves_processes()
        assert self.files() == self.whole_files()

    def rows(self) -> list[dict[str, Any]]:
        """Return the output's rows without the one value in which a resumed run may differ.

        Of an output folder that is not complete, those of the parts that are there.
        """
        parts = [self.output] if self.output.is_file() else sorted(self.output.glob("part-*"))
        return without_cached_tokens([row for part in parts for row in read_rows(part)])

    def files(self) -> set[str]:
        """Return all files and folders that the job left, by their names."""
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}

    def whole_files(self) -> set[str]:
        """Return what a finished job leaves, and nothing else."""
        name = self.output_name.rstrip("/")
        left = {name, f"{name}.summary.json"}
        if self.output_name.endswith("/"):
            num_parts = -(-NUM_ROWS // ROWS_PER_PART)
            suffix = Path(name).suffix or ".parquet"
            left |= {f"{name}/part-{number:05d}{suffix}" for number in range(num_parts)}
            left.add(f"{name}/_SUCCESS")
        return left

    def finished_rows(self) -> list[int]:
        """Return the rows that all runs together generated, in order of completion."""
        return finished_rows(self.log)

    @contextmanager
    def _stdin(self) -> Iterator[Path]:
        if not self.is_piped:
            yield Path("/dev/null")
            return
        with fed_pipe(self.folder.with_name(f"{self.folder.name}.pipe"), self.source) as pipe:
            yield pipe


def two_at_once(do: Callable[[int], Result], count: int) -> list[Result]:
    """Return what a function gives for 0, 1, ... when it is called in two threads."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(do, range(count)))


@contextmanager
def fed_pipe(path: Path, source: Path) -> Iterator[Path]:
    """Make a named pipe through which a file comes line by line, as far as somebody reads it."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)

    def feed() -> None:
        try:
            with path.open("wb", buffering=0) as pipe:
                for line in source.read_bytes().splitlines(keepends=True):
                    pipe.write(line)
        except BrokenPipeError:  # the reader was killed
            return

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    yield path
    thread.join()
