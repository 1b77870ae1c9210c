"""An output folder: part files over fixed row ranges, each complete when it appears.

Parts are written while the run goes on, as soon as the next row in order is recorded, so that
readers can begin with the first. `_SUCCESS` comes last. Which parts are there is kept in the
journal's folder: a run that continues begins with the first that is not.
"""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from nanobatch.errors import Stopped
from nanobatch.io.durable import (
    AtomicFile,
    remove_stale_temporaries_in,
    storage_error,
    write_json_atomically,
)
from nanobatch.io.input_row import InputRow
from nanobatch.io.input_source import total_bytes
from nanobatch.job.complete_output import output_layout
from nanobatch.job.finalize import PORTION_ROWS, OnFraction, OrderedOutput
from nanobatch.job.manifest import read_json_object
from nanobatch.job.output_place import (
    SUCCESS_NAME,
    is_output_name,
    part_number,
    part_path,
    part_paths,
)
from nanobatch.job.plan import JobPlan

_STATE_NAME = "parts.json"


class PartFiles:
    """Writes the part files of one run, in order. A context manager: an exception aborts a part.

    Args:
        ordered: The run's rows.
        plan: The run.
        is_final: Whether the record that a row has now is its last.
    """

    def __init__(
        self, ordered: OrderedOutput, plan: JobPlan, *, is_final: Callable[[int], bool]
    ) -> None:
        self._ordered = ordered
        self._plan = plan
        self._folder = Path(plan.config.output)
        remove_stale_temporaries_in(self._folder, is_ours=is_output_name)
        self._is_final = is_final
        self._rows = ordered.rows()
        self._next_row_index = plan.rows.first
        self._offset_bytes = 0
        self._num_there, self._num_bytes = _parts_there(plan)
        self._number = 0
        self._part = ExitStack()
        self._add: Callable[[InputRow], None] | None = None

    def advance(self, max_rows: int) -> None:
        """Write up to max_rows of the rows that come next, as far as they are recorded.

        Raises:
            NanobatchError: See `OrderedOutput.open`.
        """
        for _ in range(max_rows):
            if not self._is_final(self._next_row_index) or not self._write_next():
                return

    def finish(self, *, on_fraction: OnFraction) -> None:
        """Write all rows that are left, then `_SUCCESS`.

        Args:
            on_fraction: Called now and then with the share that is written, 0 to 1; may raise.

        Raises:
            NanobatchError: See `OrderedOutput.open`.
        """
        num_bytes = total_bytes(self._plan.sources) or 1
        while self._write_next():
            if self._next_row_index % PORTION_ROWS == 0:
                on_fraction(min(1.0, self._offset_bytes / num_bytes))
        if self._next_row_index == self._plan.rows.first:
            self._begin_part()  # without rows one file has the columns
        self._end_part()
        for path in part_paths(self._folder):
            number = part_number(path)
            if number >= self._number and path == part_path(self._folder, number):
                path.unlink()  # an older output had more of them
        with AtomicFile(self._folder / SUCCESS_NAME):
            pass
        on_fraction(1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._add is not None:  # a part that is not finished must not appear
            stopped = exception or Stopped("stopped while writing a part")
            with suppress(Stopped):
                self._part.__exit__(type(stopped), stopped, traceback)

    def _write_next(self) -> bool:
        """Write the next row; return False if there is none."""
        row = next(self._rows, None)
        if row is None:
            return False
        number = (row.row_index - self._plan.rows.first) // self._plan.config.rows_per_part
        if number != self._number:
            self._end_part()
        if number >= self._num_there:
            if self._add is None:
                self._begin_part()
            assert self._add is not None
            self._add(row)
        self._next_row_index = row.row_index + 1
        self._offset_bytes = row.offset_bytes
        return True

    def _begin_part(self) -> None:
        path = part_path(self._folder, self._number)
        if self._number == 0:
            forget_parts(self._plan.config.journal_dir)  # what they say of is replaced from now on
        (self._folder / SUCCESS_NAME).unlink(missing_ok=True)
        self._add = self._part.enter_context(self._ordered.open(path))

    def _end_part(self) -> None:
        """Make the part appear, unless it was there; go on to the next."""
        if self._add is not None:
            self._add = None
            self._part.close()
            self._num_there = self._number + 1
            self._num_bytes += part_path(self._folder, self._number).stat().st_size
            state = {
                "layout": _layout(self._plan),
                "num_parts": self._num_there,
                "num_bytes": self._num_bytes,
            }
            write_json_atomically(self._plan.config.journal_dir / _STATE_NAME, state)
        self._number += 1


def forget_parts(journal_dir: Path) -> None:
    """Let the next run write every part again, for rows in them are to be answered anew.

    Raises:
        StorageError: The journal's folder cannot be written.
    """
    path = journal_dir / _STATE_NAME
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(path, error) from error


def _parts_there(plan: JobPlan) -> tuple[int, int]:
    """Return how many parts, from the first, earlier runs of the same job wrote, and their bytes.

    If one is not as it was written, all are written again.
    """
    state = read_json_object(plan.config.journal_dir / _STATE_NAME)
    if state is None or state.get("layout") != _layout(plan):
        return 0, 0
    num_parts: int = state["num_parts"]
    paths = [part_path(Path(plan.config.output), number) for number in range(num_parts)]
    num_bytes = sum(path.stat().st_size for path in paths if path.is_file())
    return (num_parts, num_bytes) if num_bytes == state.get("num_bytes") else (0, 0)


def _layout(plan: JobPlan) -> dict[str, object]:
    """Return what decides on the bytes of a part whose rows are answered."""
    config = plan.config
    return {**output_layout(config), "long_prompts": config.engine.long_prompts}
