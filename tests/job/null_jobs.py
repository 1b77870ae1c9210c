"""Runs whole jobs on the null model: everything real but the model runner."""

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nanobatch.config import EngineConfig
from nanobatch.job.run import JobResult, run_job
from nanobatch.job.stats import JobStats, Phase
from nanobatch.job.stop_signal import StopSignal
from nanobatch.job_config import JobConfig, RowConfig
from tests.null_model import load_null_runner

PROMPTS = [
    {"id": f"row-{index}", "prompt": f"the answer of {index} is", "score": index / 2}
    for index in range(40)
]
"""Rows whose answers differ."""


class StopAfter:
    """Asks a run to stop, as SIGTERM does, once a number of rows is done."""

    def __init__(self, num_rows: int, stop: StopSignal) -> None:
        self._num_rows = num_rows
        self._stop = stop

    def __call__(self, stats: JobStats) -> None:
        if stats.num_rows_done >= self._num_rows and stats.phase is Phase.RUNNING:
            self._stop.received = signal.SIGTERM


def null_config(
    model: Path, inputs: Path | Sequence[Path], output: Path, **options: Any
) -> JobConfig:
    """Return the configuration of a job on the null model.

    Args:
        model: Folder that `write_null_model` wrote.
        inputs: Input files.
        output: Output file.
        **options: Fields of JobConfig; `engine` and `rows` are dicts of their own fields.
    """
    paths = [inputs] if isinstance(inputs, Path) else inputs
    engine = EngineConfig(model=str(model), **options.pop("engine", {}))
    rows = RowConfig(**options.pop("rows", {}))
    sampling = options.pop("sampling", {"temperature": 0.0, "max_tokens": 12})
    return JobConfig(
        inputs=tuple(map(str, paths)),
        output=str(output),
        engine=engine,
        rows=rows,
        sampling=sampling,
        **options,
    )


def run_null(
    config: JobConfig,
    *,
    stop: StopSignal | None = None,
    on_stats: Callable[[JobStats], None] = lambda _stats: None,
) -> JobResult:
    """Run a job on the null model."""
    return run_job(config, stop=stop, on_stats=on_stats, load_runner=load_null_runner)


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows as JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read an output, whatever its format."""
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        return rows
    content = path.read_bytes()
    if path.suffix in (".gz", ".zst"):
        content = pa.input_stream(
            path, compression={".gz": "gzip", ".zst": "zstd"}[path.suffix]
        ).read()
    return [json.loads(line) for line in content.splitlines()]


def without_cached_tokens(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the one column in which a resumed run may differ."""
    return [{key: row[key] for key in row if key != "cached_tokens"} for row in rows]
