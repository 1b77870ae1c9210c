"""What writing a job's output takes, model and sampling aside.

A run knows it because it planned the job, an export because the manifest says so.
"""

from dataclasses import dataclass

from nanobatch.io.input_source import InputSource
from nanobatch.job.job_rows import JobRows
from nanobatch.job_config import JobConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPlan:
    """The rows of a job and how its output shows them.

    Attributes:
        config: What was asked for.
        sources: Inputs, opened and sniffed.
        rows: Which rows of the inputs are the job's.
        model_name: What the user called the model that answers.
        fingerprint: What makes another run the same job, whatever its shard.
        is_partial: Rows without an answer are left out.
    """

    config: JobConfig
    sources: tuple[InputSource, ...]
    rows: JobRows
    model_name: str
    fingerprint: dict[str, object]
    is_partial: bool = False

    def shard_rows(self) -> dict[str, object] | None:
        """Return which rows of the whole job a shard answers, as JSON; None for a whole job."""
        shard, rows = self.config.shard, self.rows
        if shard is None:
            return None
        return {
            "index": shard.index,
            "num_shards": shard.num_shards,
            "first_row": rows.first,
            "num_rows": rows.num_rows,
            "num_job_rows": rows.num_job_rows,
        }
