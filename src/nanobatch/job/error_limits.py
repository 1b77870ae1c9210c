"""When a run stops because so many rows are errors (promise 19)."""

from nanobatch.errors import TooManyErrorsError
from nanobatch.job.monitor import Monitor
from nanobatch.job_config import JobConfig

NUM_FIRST_ROWS = 1000
"""A run whose first rows are all errors stops after so many: something else is wrong."""


def require_few_errors(config: JobConfig, monitor: Monitor) -> None:
    """Check that going on makes sense; cheap enough for every step.

    Rows of earlier runs count. `--max-errors` with a number above the first rows, or `any`, says
    that errors are expected: then only `--stop-after-errors` stops.

    Raises:
        TooManyErrorsError: It does not; the message says how many rows are errors.
    """
    num_rows, num_errors = monitor.num_rows_done, monitor.num_rows_error
    limit = config.stop_after_errors
    if limit is not None and num_errors >= limit:
        raise TooManyErrorsError(
            f"{num_errors:,} of {num_rows:,} rows are errors ({_commonest(monitor)}); "
            f"--stop-after-errors is {limit:,}",
            hint="the same line with a higher --stop-after-errors goes on; "
            "--retry-errors runs error rows again",
        )
    are_expected = config.max_errors is None or config.max_errors >= NUM_FIRST_ROWS
    if num_rows >= NUM_FIRST_ROWS and num_errors == num_rows and not are_expected:
        raise TooManyErrorsError(
            f"the first {num_rows:,} rows are all errors ({_commonest(monitor)})",
            hint="see `nanobatch validate`; --max-errors any goes on all the same",
        )


def _commonest(monitor: Monitor) -> str:
    (code, count), *_ = monitor.error_counts.most_common(1)
    return f"{count:,} {code}"
