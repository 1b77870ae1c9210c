"""`nanobatch merge`: the shards of a split job become the output that the whole job would write.

    names ─ find_shards ▶ merge_shard ─ prove_coverage ▶ io/output_concat ▶ output, merge_summary

Nothing appears unless every row is there once: what the shards say is proven before anything is
written, what their files hold while they are copied.
"""

import glob
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanobatch.errors import InputError, OutputError
from nanobatch.io.durable import (
    remove_stale_temporaries,
    require_free_bytes,
    write_json_atomically,
)
from nanobatch.io.output_concat import concat_jsonl, concat_parquet
from nanobatch.job.lock import OutputLock, output_lock
from nanobatch.job.manifest import manifest_path, read_json_object
from nanobatch.job.merge_coverage import common_schema, prove_coverage
from nanobatch.job.merge_shard import SHARD_KEY, ShardOutput, is_parquet, read_shards
from nanobatch.job.merge_summary import merged_summary, shard_entries
from nanobatch.job.output_place import check_output
from nanobatch.job.process_memory import set_process_memory
from nanobatch.job_config import JobConfig

MARKER_NAME = "merge.json"
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
    set_process_memory()
    paths = find_shards(inputs, output)
    config = JobConfig(inputs=tuple(map(str, paths)), output=output)
    if config.writes_to_folder:
        raise OutputError(f"{output} is a folder", hint="name the one file to merge into")
    check_output(config)
    _check_formats(paths, Path(output))
    shards = prove_coverage(read_shards(paths))
    with output_lock(config.journal_dir) as lock:
        if manifest_path(config.journal_dir).exists():
            raise OutputError(
                f"{config.journal_dir} is the journal of an unfinished run",
                hint="finish that run or remove its journal, or choose another output",
            )
        merge = _Merge(shards, config, lock)
        if merge.is_done():
            lock.remove_folder()
            return merge.result(was_complete=True)
        if not overwrite and not merge.is_begun() and merge.output.exists():
            lock.remove_folder()
            raise OutputError(
                f"{output} exists and is not made of these shards",
                hint="choose another output, or replace this one with --overwrite",
            )
        merge.write(on_progress)
        return merge.result(was_complete=False)


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


class _Merge:
    """A merge of shards that are proven to be a job, into an output that is locked."""

    def __init__(self, shards: Sequence[ShardOutput], config: JobConfig, lock: OutputLock) -> None:
        self.output = Path(config.output)
        self._shards = shards
        self._summary_path = config.summary_path
        self._lock = lock
        self._marker = config.journal_dir / MARKER_NAME
        self._marked = {"shards": shard_entries(shards)}

    def is_done(self) -> bool:
        """Whether the output is there and was made of these shards as they are."""
        summary = read_json_object(self._summary_path)
        if summary is None or not self.output.exists():
            return False
        is_this_file = summary.get("output_bytes") == self.output.stat().st_size
        return is_this_file and summary.get("shards") == self._marked["shards"]

    def is_begun(self) -> bool:
        """Whether the same merge was killed when the output may have appeared already."""
        return read_json_object(self._marker) == self._marked

    def write(self, on_progress: OnProgress) -> None:
        """Write the output, then its summary; leave nothing where the output cannot be written."""
        write_json_atomically(self._marker, self._marked)
        try:
            self._copy(on_progress)
        except BaseException:
            self._lock.remove_folder()
            raise
        write_json_atomically(self._summary_path, merged_summary(self._shards, self.output))
        self._lock.remove_folder()

    def result(self, *, was_complete: bool) -> MergeResult:
        """Return how the merge ended, from the summary beside the output."""
        summary = read_json_object(self._summary_path)
        assert summary is not None, "it was just read or written"
        return MergeResult(
            num_shards=len(self._shards),
            num_rows=summary["rows"]["total"],
            num_errors=summary["rows"]["error"],
            was_complete=was_complete,
        )

    def _copy(self, on_progress: OnProgress) -> None:
        pieces = [shard.piece for shard in self._shards]
        num_copied = 0

        def on_rows(num_rows: int) -> None:
            nonlocal num_copied
            num_copied += num_rows
            self._lock.require_held()
            on_progress(num_copied, self._shards[-1].num_job_rows)

        remove_stale_temporaries(self.output)
        require_free_bytes(self.output, sum(shard.num_bytes for shard in self._shards))
        if not is_parquet(self.output):
            concat_jsonl(pieces, self.output, on_rows=on_rows)
            return
        schema = common_schema(self._shards)
        metadata = {key: value for key, value in schema.metadata.items() if key != SHARD_KEY}
        concat_parquet(pieces, self.output, schema=schema.with_metadata(metadata), on_rows=on_rows)
