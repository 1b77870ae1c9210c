"""When a run stops because so many rows are errors (promise 19)."""

from collections import Counter

from nanobatch.errors import TooManyErrorsError
from nanobatch.job.monitor import Monitor
from nanobatch.job.recorder import Recorder
from nanobatch.job_config import JobConfig

NUM_FIRST_ROWS = 1000
"""A run whose first rows are all errors stops after so many: something else is wrong."""


class ErrorLimits:
    """Says whether going on makes sense.

    Rows of earlier runs count, unless their errors are being run again: what came before says
    nothing then of what comes. `--max-errors` with a number above the first rows, or `any`, says
    that errors are expected: then only `--stop-after-errors` stops.

    Args:
        config: The job.
        monitor: The run's counts.
        recorder: Which of the rows that were read are finished.
        is_retry: Whether the run runs error rows again.
    """

    def __init__(
        self, config: JobConfig, monitor: Monitor, *, recorder: Recorder, is_retry: bool
    ) -> None:
        self._stop_after_errors = config.stop_after_errors
        self._are_expected = config.max_errors is None or config.max_errors >= NUM_FIRST_ROWS
        self._monitor = monitor
        self._recorder = recorder
        self._is_retry = is_retry

    def check(self) -> None:
        """Check the rows so far; cheap enough for every step.

        Raises:
            TooManyErrorsError: Going on makes no sense; the message says how many rows are errors.
        """
        monitor = self._monitor
        num_rows, errors = monitor.num_rows_done, monitor.error_counts
        if self._is_retry:
            num_rows -= monitor.num_rows_resumed
            errors = errors - monitor.resumed_error_counts
        num_errors = errors.total()
        limit = self._stop_after_errors
        if limit is not None and num_errors >= limit:
            raise TooManyErrorsError(
                f"{num_errors:,} of {num_rows:,} rows are errors ({_commonest(errors)}); "
                f"--stop-after-errors is {limit:,}",
                hint="the same line with a higher --stop-after-errors goes on; "
                "--retry-errors runs error rows again",
            )
        if num_rows >= NUM_FIRST_ROWS and num_errors == num_rows and not self._are_expected:
            self._require_first_row_pending(num_rows, errors)

    def _require_first_row_pending(self, num_rows: int, errors: Counter[str]) -> None:
        """Check that of the first rows one may still turn out well: it takes longer than errors."""
        num_settled = self._recorder.num_settled
        if not self._is_retry:
            num_settled += self._monitor.num_rows_resumed
        if num_settled >= NUM_FIRST_ROWS:
            raise TooManyErrorsError(
                f"the first {num_rows:,} rows are all errors ({_commonest(errors)})",
                hint="see `nanobatch validate`; --max-errors any goes on all the same",
            )


def _commonest(errors: Counter[str]) -> str:
    (code, count), *_ = errors.most_common(1)
    return f"{count:,} {code}"
