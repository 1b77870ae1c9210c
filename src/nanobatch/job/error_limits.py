"""When a run stops because so many rows are errors (promise 19)."""

from collections import Counter

from nanobatch.errors import TooManyErrorsError
from nanobatch.job.monitor import Monitor
from nanobatch.job.recorder import NUM_WATCHED_ROWS, Recorder
from nanobatch.job_config import JobConfig

NUM_FIRST_ROWS = NUM_WATCHED_ROWS
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
        num_rows, errors = self._counts()
        num_errors = errors.total()
        limit = self._stop_after_errors
        if limit is not None and num_errors >= limit:
            raise TooManyErrorsError(
                f"{num_errors:,} of {num_rows:,} rows are errors ({_commonest(errors)}); "
                f"--stop-after-errors is {limit:,}",
                hint="the same line with a higher --stop-after-errors goes on; "
                "--retry-errors runs error rows again",
            )
        self.require_good_first_row()

    def require_good_first_row(self) -> None:
        """Check that one of the first rows is good, or may still turn out well.

        Raises:
            TooManyErrorsError: All of them are errors.
        """
        if self._are_expected:
            return
        num_first = NUM_FIRST_ROWS
        if not self._is_retry:
            monitor = self._monitor
            if monitor.resumed_error_counts.total() < monitor.num_rows_resumed:
                return
            num_first = max(0, num_first - monitor.num_rows_resumed)
        if self._recorder.num_settled < num_first or self._recorder.has_good_row_among(num_first):
            return
        _, errors = self._counts()
        raise TooManyErrorsError(
            f"the first {NUM_FIRST_ROWS:,} rows are all errors ({_commonest(errors)} so far)",
            hint="see `nanobatch validate`; --max-errors any goes on all the same",
        )

    def _counts(self) -> tuple[int, Counter[str]]:
        """Return the rows that count, and the errors among them."""
        num_rows, errors = self._monitor.num_rows_done, self._monitor.error_counts
        if self._is_retry:
            num_rows -= self._monitor.num_rows_resumed
            errors = errors - self._monitor.resumed_error_counts
        return num_rows, errors


def _commonest(errors: Counter[str]) -> str:
    (code, count), *_ = errors.most_common(1)
    return f"{count:,} {code}"
