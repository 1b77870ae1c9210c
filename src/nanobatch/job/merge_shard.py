"""One shard of a split job, as its files say themselves.

Knows where a finished output keeps what it is: `OUTPUT.summary.json` beside it, else the
metadata of a Parquet file. Whether shards fit together is `merge_coverage`'s question.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanobatch.errors import CoverageError, InputError, OutputError, UsageError
from nanobatch.io.output_concat import OutputPiece, read_schema
from nanobatch.io.writers import OutputFormat, output_format
from nanobatch.job.manifest import read_json_object, require_known_version
from nanobatch.job.output_place import SUCCESS_NAME, part_paths
from nanobatch.job_config import JobConfig

MAX_NAMED_FAULTS = 8
SHARD_KEY, JOB_KEY, MODEL_KEY = b"nanobatch.shard", b"nanobatch.job", b"nanobatch.model"

_BRING = "run its shard again, or bring the file that its run wrote"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOutput:
    """A finished output of `nanobatch run --shard`.

    Attributes:
        path: The output as it was named.
        files: Its files, in the order of their rows: itself, or a folder's parts.
        index: Which shard it is, from 0.
        num_shards: How many there are.
        rows: The rows of the job that it holds.
        num_job_rows: Rows of the whole job.
        identity: What all shards of a job have in common, by name.
        num_bytes: Size of its files.
        summary: What its run wrote about it; None where only the Parquet metadata is left.
    """

    path: Path
    files: tuple[Path, ...]
    index: int
    num_shards: int
    rows: range
    num_job_rows: int
    identity: Mapping[str, object]
    num_bytes: int
    summary: Mapping[str, Any] | None

    @property
    def piece(self) -> OutputPiece:
        """The shard as a stretch of the job's rows."""
        return OutputPiece(paths=self.files, rows=self.rows)

    @property
    def fingerprint(self) -> Mapping[str, object]:
        """What makes another run the same job, whatever its shard."""
        if self.summary is None:  # the metadata hold nothing else of it
            return self.identity
        fingerprint: Mapping[str, object] = self.summary["fingerprint"]
        return fingerprint


def output_files(path: Path) -> tuple[Path, ...]:
    """Return the files of an output, which is a file or a folder of parts."""
    return tuple(part_paths(path)) if path.is_dir() else (path,)


def is_parquet(path: Path) -> bool:
    """Return whether an output is Parquet; the alternative is JSONL, compressed or not.

    Raises:
        InputError: It is neither.
    """
    files = output_files(path)
    if not files:
        raise InputError(f"{path} is a folder without part files", hint="name shards of one job")
    try:
        return output_format(files[0]) is OutputFormat.PARQUET
    except OutputError as error:
        raise InputError(f"{path} is no output of nanobatch", hint=error.hint) from error


def read_shards(paths: Sequence[Path]) -> list[ShardOutput]:
    """Return what shards say of themselves.

    Raises:
        CoverageError: Some are missing, unfinished, changed or no shards; each is named.
    """
    shards, faults = [], []
    for path in paths:
        try:
            shards.append(read_shard(path))
        except CoverageError as error:
            faults.append(error)
    raise_faults(faults)
    return shards


def read_shard(path: Path) -> ShardOutput:
    """Return what a shard says of itself.

    Raises:
        CoverageError: It is missing, unfinished, changed since, or no shard.
    """
    config = JobConfig(inputs=(), output=str(path))
    try:
        summary = read_json_object(config.summary_path)
        if summary is not None:
            require_known_version(summary, config.summary_path)
    except UsageError as error:
        raise CoverageError(error.message, hint=error.hint) from error
    _require_finished(config, summary)
    files = output_files(path)
    if summary is None:
        shard, identity = _from_metadata(path, files)
    else:
        shard, identity = summary.get("shard"), _identity(summary)
    if shard is None:
        raise CoverageError(
            f"{path} is the output of a whole job, not of a shard", hint="leave it out"
        )
    return _shard_output(path, files, shard, identity=identity, summary=summary)


def raise_faults(faults: Sequence[CoverageError]) -> None:
    """Raise one error for all faults that were found, if any.

    Raises:
        CoverageError: Its message names them all, up to eight.
    """
    if not faults:
        return
    texts = [fault.message for fault in faults[:MAX_NAMED_FAULTS]]
    if len(faults) > MAX_NAMED_FAULTS:
        texts.append(f"{len(faults) - MAX_NAMED_FAULTS:,} more")
    raise CoverageError("; ".join(texts), hint=faults[0].hint)


def _require_finished(config: JobConfig, summary: Mapping[str, Any] | None) -> None:
    path = Path(config.output)
    is_whole = path.exists() and (not path.is_dir() or (path / SUCCESS_NAME).exists())
    if is_whole and summary is not None and summary.get("output_bytes") == _num_bytes(path):
        return
    if config.journal_dir.exists():
        raise CoverageError(
            f"{path} is not finished: its journal {config.journal_dir} is still there",
            hint="run its line again until it ends, then merge",
        )
    if not path.exists():
        raise CoverageError(f"{path} does not exist", hint="run its shard first")
    if not is_whole:
        raise CoverageError(f"{path} has no {SUCCESS_NAME}: parts of it are missing", hint=_BRING)
    if summary is not None:
        raise CoverageError(
            f"{path} has {_num_bytes(path):,} bytes; its run wrote {summary.get('output_bytes'):,}",
            hint=_BRING,
        )
    if not is_parquet(path):
        raise CoverageError(
            f"{config.summary_path} is missing, which says what rows {path} holds",
            hint="bring the summary that its run wrote beside it",
        )


def _num_bytes(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(entry.stat().st_size for entry in path.iterdir() if entry.is_file())


def _from_metadata(path: Path, files: Sequence[Path]) -> tuple[Any, dict[str, object]]:
    metadata = read_schema(files[0]).metadata or {}
    if JOB_KEY not in metadata:
        raise CoverageError(f"{path} is no output of nanobatch", hint="leave it out")
    return json.loads(metadata.get(SHARD_KEY, b"null")), json.loads(metadata[JOB_KEY])


def _identity(summary: Mapping[str, Any]) -> dict[str, object]:
    """Return what a shard has in common with the others: what decides on answers and lines."""
    layout = {
        name: value
        for name, value in summary["layout"].items()
        if name not in ("shard", "rows_per_part")
    }
    return {**summary["fingerprint"], **layout, "stdin": summary["stdin"]}


def _shard_output(
    path: Path,
    files: tuple[Path, ...],
    shard: Mapping[str, Any],
    *,
    identity: Mapping[str, object],
    summary: Mapping[str, Any] | None,
) -> ShardOutput:
    rows = range(shard["first_row"], shard["first_row"] + shard["num_rows"])
    if summary is not None and summary["rows"]["total"] != len(rows):
        raise CoverageError(
            f"{path} has {summary['rows']['total']:,} rows; its shard has {len(rows):,}",
            hint=_BRING,
        )
    return ShardOutput(
        path=path,
        files=files,
        index=shard["index"],
        num_shards=shard["num_shards"],
        rows=rows,
        num_job_rows=shard["num_job_rows"],
        identity=identity,
        num_bytes=_num_bytes(path),
        summary=summary,
    )
