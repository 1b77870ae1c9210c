"""`nanobatch merge`: the shards of a split job become the output that the whole job would write.

    names ─ find_shards ▶ merge_shard ─ prove_coverage ▶ io/output_concat ▶ output, merge_summary

Nothing appears unless every row is there once: what the shards say is proven before anything is
written, what their files hold while they are copied.
"""

import glob
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanobatch.errors import InputError, OutputError
from nanobatch.io.durable import (
    remove_stale_temporaries,
    require_free_bytes,
    write_json_atomically,
)
from nanobatch.io.output_concat import concat_jsonl, concat_parquet
from nanobatch.job.lock import output_lock
from nanobatch.job.manifest import manifest_path, read_json_object
from nanobatch.job.merge_coverage import common_schema, prove_coverage
from nanobatch.job.merge_shard import SHARD_KEY, ShardOutput, is_parquet, read_shards
from nanobatch.job.merge_summary import merged_summary, shard_entries
from nanobatch.job.output_place import check_output
from nanobatch.job_config import JobConfig

SIDE_SUFFIXES = (".nanobatch", ".summary.json")
"""Ends of the names of what lies beside an output; a glob over outputs matches them, too."""

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """How a merge ended.

    Attributes:
        num_shards: Shards that were merged.
        num_rows: Rows of the job.
        num_errors: Of those, error rows.
        was_complete: Whether the output was there already, made of these shards.
    """

    num_shards: int
    num_rows: int
    num_errors: int
    was_complete: bool


def merge_shards(
    inputs: Sequence[str],
    output: str,
    *,
    overwrite: bool = False,
    on_progress: OnProgress = lambda _num_rows, _total: None,
) -> MergeResult:
    """Write the outputs of a job's shards as the one output of the job.

    Args:
        inputs: Paths and globs of shards, in any order.
        output: Where the merged file appears.
        overwrite: Replace an output that is there; it stays until the new one is complete.
        on_progress: Called with the rows copied so far and those of the job; may raise.

    Raises:
        UsageError: The merge is refused; nothing was read.
        CoverageError: The shards do not make up a whole job; nothing appears.
        StorageError: The output cannot be written; nothing appears.
    """
    paths = find_shards(inputs, output)
    config = JobConfig(inputs=tuple(map(str, paths)), output=output)
    if config.writes_to_folder:
        raise OutputError(f"{output} is a folder", hint="name the one file to merge into")
    check_output(config)
    _check_formats(paths, Path(output))
    shards = prove_coverage(read_shards(paths))
    with output_lock(config.journal_dir):
        if manifest_path(config.journal_dir).exists():
            raise OutputError(
                f"{config.journal_dir} is the journal of an unfinished run",
                hint="finish that run or remove its journal, or choose another output",
            )
        try:
            return _merge(shards, config, overwrite=overwrite, on_progress=on_progress)
        finally:
            shutil.rmtree(config.journal_dir, ignore_errors=True)


def find_shards(inputs: Sequence[str], output: str) -> list[Path]:
    """Return the outputs that paths and globs name; what lies beside outputs is left out.

    A glob does not mean the merged output, should it match that, too.

    Raises:
        InputError: A glob matches nothing, or no shard is named.
    """
    found: list[Path] = []
    for name in inputs:
        if Path(name).exists() or not glob.has_magic(name):
            found.append(Path(name))
            continue
        # Path.glob takes no absolute pattern.
        matches = [Path(match) for match in sorted(glob.glob(name))]  # noqa: PTH207
        matches = [match for match in matches if match.resolve() != Path(output).resolve()]
        if not matches:
            raise InputError(f"{name} matches no file", hint="check the path of the shards")
        found += matches
    shards = [path for path in found if not path.name.endswith(SIDE_SUFFIXES)]
    if not shards:
        raise InputError("no shard is given", hint="name the outputs of all shards")
    return shards


def _check_formats(paths: Sequence[Path], output: Path) -> None:
    present = [path for path in paths if path.is_file() or path.is_dir()]
    for path in present:
        if is_parquet(path) != is_parquet(present[0]):
            raise InputError(
                f"{present[0]} and {path} have different formats",
                hint="merge the shards of one run line",
            )
    if present and is_parquet(output) != is_parquet(present[0]):
        raise OutputError(
            f"{output} is in another format than {present[0]}",
            hint="Parquet is merged into .parquet, JSONL into .jsonl, .jsonl.gz or .jsonl.zst",
        )


def _merge(
    shards: Sequence[ShardOutput], config: JobConfig, *, overwrite: bool, on_progress: OnProgress
) -> MergeResult:
    output = Path(config.output)
    summary = _earlier_summary(config) if output.exists() else None
    entries = shard_entries(shards)
    was_complete = summary is not None and summary.get("shards") == entries
    if summary is None or not was_complete:
        begun = config.journal_dir / "merge.json"
        is_begun = read_json_object(begun) == {"shards": entries}
        if output.exists() and not overwrite and not is_begun:
            raise OutputError(
                f"{output} exists and is not made of these shards",
                hint="choose another output, or replace this one with --overwrite",
            )
        # Killed between the file and its summary, the same line must end what it began.
        write_json_atomically(begun, {"shards": entries})
        _write_output(shards, output, on_progress)
        summary = merged_summary(shards, output)
        write_json_atomically(config.summary_path, summary)
    rows = summary["rows"]
    return MergeResult(
        num_shards=len(shards),
        num_rows=rows["total"],
        num_errors=rows["error"],
        was_complete=was_complete,
    )


def _earlier_summary(config: JobConfig) -> dict[str, Any] | None:
    """Return the summary of the output that is there, None if it describes another file."""
    summary = read_json_object(config.summary_path)
    if summary is None or summary.get("output_bytes") != Path(config.output).stat().st_size:
        return None
    return summary


def _write_output(shards: Sequence[ShardOutput], output: Path, on_progress: OnProgress) -> None:
    pieces = [shard.piece for shard in shards]
    total = shards[-1].num_job_rows
    num_copied = 0

    def on_rows(num_rows: int) -> None:
        nonlocal num_copied
        num_copied += num_rows
        on_progress(num_copied, total)

    remove_stale_temporaries(output)
    require_free_bytes(output, sum(shard.num_bytes for shard in shards))
    if is_parquet(output):
        schema = common_schema(shards)
        metadata = {key: value for key, value in schema.metadata.items() if key != SHARD_KEY}
        concat_parquet(pieces, output, schema=schema.with_metadata(metadata), on_rows=on_rows)
    else:
        concat_jsonl(pieces, output, on_rows=on_rows)
