"""Which rows of the inputs are a job's: all, the first few, or a shard of either.

Knows numbers of rows only. A row keeps the index that it has in the whole job, and with it the
seed of its sampling: the shards of a job answer as the whole job would.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from nanobatch.errors import ConfigError
from nanobatch.io.input_source import InputSource
from nanobatch.io.readers import count_rows
from nanobatch.job_config import JobConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRows:
    """A range of the rows of all inputs.

    Attributes:
        first: Index of the first row.
        stop: Index after the last row, at most; None goes on to the end of the inputs.
        num_job_rows: Rows of the whole job, where they were counted (shards), else None.
    """

    first: int = 0
    stop: int | None = None
    num_job_rows: int | None = None

    @property
    def num_rows(self) -> int | None:
        """Rows of this run where they were counted, else None."""
        return None if self.num_job_rows is None or self.stop is None else self.stop - self.first

    @property
    def max_rows(self) -> int | None:
        """Most rows of this run, None if nothing bounds them."""
        return None if self.stop is None else self.stop - self.first


def find_job_rows(config: JobConfig, sources: Sequence[InputSource]) -> JobRows:
    """Return the job's rows; those of a shard are counted in a pass over the inputs.

    Raises:
        ConfigError: Standard input is to be split into shards.
        InputReadError: An input failed while its rows were counted.
    """
    if config.shard is None:
        return JobRows(stop=config.limit)
    if any(source.spool is not None for source in sources):
        raise ConfigError(
            "standard input cannot be split into shards", hint="write it to a file first"
        )
    num_rows = count_rows(sources)
    if config.limit is not None:
        num_rows = min(num_rows, config.limit)
    rows = config.shard.rows(num_rows)
    logger.info(
        "shard %d of %d: rows %s to %s of %s",
        config.shard.index,
        config.shard.num_shards,
        f"{rows.start:,}",
        f"{rows.stop:,}",
        f"{num_rows:,}",
    )
    return JobRows(first=rows.start, stop=rows.stop, num_job_rows=num_rows)
