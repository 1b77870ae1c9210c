"""The look-ahead: rows of the inputs become requests, a portion at a time.

Rows that an earlier run finished are compared with their record and skipped; rows that cannot
become requests are recorded as errors. Knows no engine.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from nanobatch.errors import InputReadError
from nanobatch.io.duplicate_ids import DuplicateIds
from nanobatch.io.input_row import InputRow, decode_together
from nanobatch.io.rows import RowParser
from nanobatch.job.earlier_runs import EarlierRuns
from nanobatch.job.monitor import Monitor
from nanobatch.job.recorder import Recorder
from nanobatch.job.row_stream import RowStream
from nanobatch.job.same_job import changed_row_error
from nanobatch.request import ErrorCode, Request, RequestOutput, RequestOutputs, RowError

PORTION_ROWS = 256


@dataclass(slots=True, kw_only=True)
class Feeder:
    """Makes requests of the job's rows, a portion at a time.

    Attributes:
        rows: The run's rows, from the first.
        parser: Turns a row into a request or an error.
        earlier: What earlier runs finished; None when nothing is resumed.
        duplicate_ids: custom_ids seen so far; None when they may repeat.
        recorder: Takes rows and the errors of those that are refused.
        monitor: Counts.
    """

    rows: RowStream
    parser: RowParser
    earlier: EarlierRuns | None
    duplicate_ids: DuplicateIds | None
    recorder: Recorder
    monitor: Monitor
    _num_rows: int = 0
    _offset_bytes: int | None = None

    @property
    def is_exhausted(self) -> bool:
        """Whether no more rows come: all were taken, or an input failed."""
        return self.rows.is_exhausted

    @property
    def failure(self) -> InputReadError | None:
        """What failed of the inputs; the rows before it became requests."""
        return self.rows.failure

    def next_requests(self, num_rows: int, *, wait: bool) -> tuple[list[Request], bool]:
        """Read up to num_rows rows and make requests of them.

        Args:
            num_rows: Most rows to read.
            wait: Whether to wait a moment for a row where none is there yet.

        Returns:
            The requests among the rows, and whether there was any row.

        Raises:
            ResumeMismatchError: A finished row's input has changed.
            StorageError: A refused row could not be recorded.
        """
        rows = self.rows.take(num_rows, wait=wait)
        self._num_rows += len(rows)
        if self.is_exhausted and self.failure is None:
            self.monitor.num_rows_total = self._num_rows
        return self._take(rows), bool(rows)

    def _take(self, rows: list[InputRow]) -> list[Request]:
        """Return the requests among rows; record why others are none."""
        decode_together(rows)
        finished = self._finished(rows)
        requests = [] if finished else self._plain_requests(rows)
        sizes_bytes = self._sizes_bytes(rows)
        expected, refused = rows[: len(requests)], list[RequestOutputs]()
        expected_bytes = sizes_bytes[: len(requests)]
        num_surrogates = sum([row.num_surrogates for row in expected])
        # One after the other: an id belongs to the first row that has it.
        for row, num_bytes in islice(zip(rows, sizes_bytes, strict=True), len(requests), None):
            if row.row_index in finished and not self._is_retried(row):
                self._skip(row, num_bytes)
                continue
            expected.append(row)
            expected_bytes.append(num_bytes)
            parsed = parse_row(row, self.parser, self.duplicate_ids)
            num_surrogates += row.num_surrogates
            if isinstance(parsed, RowError):
                refused.append((RequestOutput(row_index=row.row_index, error=parsed),))
            else:
                requests.append(parsed)
        self.monitor.num_surrogates += num_surrogates
        self.recorder.expect(expected, sizes_bytes=expected_bytes)
        self.recorder.record_all(refused)
        return requests

    def _plain_requests(self, rows: list[InputRow]) -> list[Request]:
        """Return the requests of the first rows, as far as they can be made together."""
        requests: list[Request] = []
        while len(requests) < len(rows):
            more = self.parser.parse_together(rows[len(requests) :])
            if not more:
                break
            requests += more
        return requests

    def _finished(self, rows: list[InputRow]) -> frozenset[int]:
        """Return which of some rows have a record of an earlier run, by their index."""
        if self.earlier is None or not rows:
            return frozenset()
        index = self.earlier.index
        if not index.has_any(rows[0].row_index, rows[-1].row_index):
            return frozenset()
        return frozenset(row.row_index for row in rows if index.has(row.row_index))

    def _is_retried(self, row: InputRow) -> bool:
        """Return whether a finished row runs again; it then counts as one that is not finished."""
        assert self.earlier is not None, "only resumed rows are run again"
        self._require_unchanged(row)
        if not self.earlier.is_retried(row.row_index):
            return False
        self.monitor.uncount_resumed(self.earlier.index.read(row.row_index).outputs)
        return True

    def _skip(self, row: InputRow, num_bytes: int) -> None:
        row.fields()  # finds lone surrogates, which the summary counts over all runs
        find_duplicate_id(row, self.parser, self.duplicate_ids)
        self.monitor.num_surrogates += row.num_surrogates
        self.monitor.count_resumed_bytes(num_bytes)

    def _sizes_bytes(self, rows: list[InputRow]) -> list[int]:
        """Return the share of its input that each row takes, blank lines before it included."""
        ends = [row.offset_bytes for row in rows]
        if not ends:
            return []
        start = self._offset_bytes
        if start is None:  # what lies before a shard's first row is none of its work
            start = 0 if rows[0].row_index == 0 else ends[0]
        self._offset_bytes = ends[-1]
        return [end - before for before, end in zip([start, *ends], ends, strict=False)]

    def _require_unchanged(self, row: InputRow) -> None:
        assert self.earlier is not None, "only resumed rows are compared"
        if self.earlier.index.payload_hash(row.row_index) != row.payload_hash:
            raise changed_row_error(row)


def parse_row(
    row: InputRow, parser: RowParser, duplicate_ids: DuplicateIds | None
) -> Request | RowError:
    """Return the request that a row is, or why it is none."""
    return find_duplicate_id(row, parser, duplicate_ids) or parser.parse(row)


def find_duplicate_id(
    row: InputRow, parser: RowParser, duplicate_ids: DuplicateIds | None
) -> RowError | None:
    """Remember a batch line's custom_id; return an error if an earlier line used it.

    Args:
        row: Any row; only batch lines have ids that must be unique.
        parser: Knows where a row's id is.
        duplicate_ids: Ids seen so far; None accepts every id.
    """
    if duplicate_ids is None or not parser.is_batch_line(row):
        return None
    custom_id = parser.row_id(row)
    if custom_id is None:
        return None
    first = duplicate_ids.first_use(custom_id, row.row_index, location=row.location)
    if first is None:
        return None
    return RowError(
        code=ErrorCode.DUPLICATE_ID,
        message=f"custom_id {custom_id!r} was used before at {first}",
    )


def remember_ids(rows: Iterable[InputRow], parser: RowParser, duplicate_ids: DuplicateIds) -> None:
    """Remember the custom_ids of rows that another shard answers.

    Without them a shard would accept an id that an earlier shard has used.
    """
    for row in rows:
        find_duplicate_id(row, parser, duplicate_ids)
