"""Whether an output is there already, complete, and of which job.

`OUTPUT.summary.json` says so from the moment a job is complete; its size of the output tells
whether it is still the file that the job wrote.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanobatch.errors import OutputError, ResumeMismatchError
from nanobatch.io.input_source import InputSource
from nanobatch.job.fingerprint import Fingerprint, stdin_digest
from nanobatch.job.manifest import (
    read_json_object,
    read_manifest,
    require_known_version,
    shard_json,
)
from nanobatch.job.output_place import SUCCESS_NAME, part_paths
from nanobatch.job.same_job import RETRY_MAY_CHANGE, require_same_job
from nanobatch.job_config import JobConfig

_OVERWRITE_HINT = "choose another output, or replace this one with --overwrite"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteJob:
    """A job whose output is there already.

    Attributes:
        exit_code: What the run that finished it earned.
        num_rows: Rows of the job.
        num_rows_error: Of those, error rows.
        stdin: Hash of the standard input that it answers; None where that is no input.
        journal_id: The journal that the output was written from; None where nobody knows.
    """

    exit_code: int
    num_rows: int
    num_rows_error: int
    stdin: str | None
    journal_id: str | None


def find_complete_job(
    config: JobConfig, fingerprint: Fingerprint, sources: Sequence[InputSource]
) -> CompleteJob | None:
    """Return the finished job that the output belongs to, None if it has yet to be written.

    Standard input is read to its end where the output was made from one, unless its errors are to
    be run again: that needs it kept, and so the lock.

    Raises:
        OutputError: The output exists and nothing says where it comes from.
        ResumeMismatchError: The output belongs to another job.
    """
    if config.start_over.overwrite or not _holds_something(Path(config.output)):
        return None
    summary = read_json_object(config.summary_path)
    if summary is None or not _is_whole(config, summary):
        _require_begun(config, fingerprint, summary or {})
        return None
    require_known_version(summary, config.summary_path)
    _require_this_job(config, fingerprint, sources, summary)
    rows = summary["rows"]
    return CompleteJob(
        exit_code=summary["exit_code"],
        num_rows=rows["total"],
        num_rows_error=rows["error"],
        stdin=summary.get("stdin"),
        journal_id=summary.get("journal_id"),
    )


def output_bytes(config: JobConfig) -> int:
    """Return the bytes of an output that exists, of all its part files if it is a folder."""
    output = Path(config.output)
    if not output.is_dir():
        return output.stat().st_size
    return sum(path.stat().st_size for path in part_paths(output))


def output_layout(config: JobConfig) -> dict[str, object]:
    """Return what of the flags shapes the output and no answer, as JSON."""
    return {
        "columns": None if config.columns is None else list(config.columns),
        "shape": config.output_shape,
        "rows_per_part": config.rows_per_part if config.writes_to_folder else None,
        "shard": shard_json(config),
    }


def other_stdin_error(config: JobConfig) -> ResumeMismatchError:
    """Return the error for an output that answers another standard input than the one given."""
    return ResumeMismatchError(
        f"{config.output} answers another standard input", hint=_OVERWRITE_HINT
    )


def _holds_something(output: Path) -> bool:
    """Whether there is a file, or a folder with more in it than hidden files."""
    if not output.is_dir():
        return output.exists()
    return any(not entry.name.startswith(".") for entry in output.iterdir())


def _is_whole(config: JobConfig, summary: Mapping[str, Any]) -> bool:
    """Whether the output is the one that a summary is of."""
    output = Path(config.output)
    if output.is_dir() and not (output / SUCCESS_NAME).exists():
        return False  # another run has begun to replace its parts
    return bool(summary.get("output_bytes") == output_bytes(config))


def _require_begun(config: JobConfig, fingerprint: Fingerprint, summary: Mapping[str, Any]) -> None:
    """Check that an unfinished run of the job wrote what is there.

    It may be the first parts of a folder, or a file after whose rename the run was killed.
    """
    manifest = read_manifest(config.journal_dir)
    if manifest is None or manifest.overwrites:
        raise OutputError(
            f"{config.output} exists and is not the result of a finished run",
            hint=_OVERWRITE_HINT,
        )
    is_unfinished = summary.get("journal_id") != manifest.journal_id
    if config.start_over.restart and config.writes_to_folder and is_unfinished:
        return  # its first parts go with its journal
    require_same_job(
        {**manifest.fingerprint, "shard": manifest.shard},
        {**fingerprint, "shard": shard_json(config)},
        where=config.output,
        hint="choose another output, or begin anew with --overwrite --restart",
        ignored=RETRY_MAY_CHANGE if config.start_over.retry_errors else (),
    )


def _require_this_job(
    config: JobConfig,
    fingerprint: Fingerprint,
    sources: Sequence[InputSource],
    summary: Mapping[str, Any],
) -> None:
    output = config.output
    require_same_job(
        summary["fingerprint"],
        fingerprint,
        where=output,
        hint=_OVERWRITE_HINT,
        ignored=RETRY_MAY_CHANGE if config.start_over.retry_errors else (),
    )
    is_read_again = config.start_over.retry_errors and summary["rows"]["error"]
    if not is_read_again and summary.get("stdin") != stdin_digest(sources, is_kept=False):
        raise other_stdin_error(config)
    layout = output_layout(config)
    for name, written in summary["layout"].items():
        if written != layout[name]:
            flag = {"shape": "output-shape"}.get(name, name).replace("_", "-")
            raise ResumeMismatchError(
                f"{output} was written with other --{flag}", hint=_OVERWRITE_HINT
            )
