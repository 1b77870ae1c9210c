"""The files that say which job a journal or an output belongs to.

`OUTPUT.nanobatch/manifest.json` exists while a job is unfinished, `OUTPUT.summary.json` from the
moment it is complete.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanobatch.errors import OutputError, ResumeMismatchError
from nanobatch.io.durable import write_json_atomically
from nanobatch.io.input_source import InputSource
from nanobatch.job.fingerprint import Fingerprint, require_same_job, stdin_digest
from nanobatch.job_config import JobConfig

MANIFEST_VERSION = 1


def manifest_path(config: JobConfig) -> Path:
    """Return where the manifest of an unfinished job is."""
    return config.journal_dir / "manifest.json"


def open_manifest(config: JobConfig, fingerprint: Fingerprint, *, has_records: bool) -> None:
    """Begin or continue the job's journal folder.

    Args:
        config: The job.
        fingerprint: What makes it this job.
        has_records: Whether an earlier run finished a row. While there is none nothing can be
            mixed, so a run that failed at the start does not hold up the corrected one.

    Raises:
        ResumeMismatchError: The folder belongs to another job.
        StorageError: The manifest cannot be written.
    """
    path = manifest_path(config)
    stored = _read(path)
    if stored is not None and has_records:
        _require_known_version(stored, path)
        require_same_job(stored["fingerprint"], fingerprint, where=str(config.journal_dir))
    else:
        write_json_atomically(path, {"version": MANIFEST_VERSION, "fingerprint": fingerprint})


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteJob:
    """A job whose output is there already.

    Attributes:
        exit_code: What the run that finished it earned.
        num_rows: Rows in the output.
    """

    exit_code: int
    num_rows: int


def find_complete_job(
    config: JobConfig, fingerprint: Fingerprint, sources: Sequence[InputSource]
) -> CompleteJob | None:
    """Return the finished job that the output belongs to, None if there is no output yet.

    Standard input is read to its end where the output was made from one.

    Raises:
        OutputError: The output exists and nothing says where it comes from.
        ResumeMismatchError: The output belongs to another job.
    """
    output = Path(config.output)
    summary = _read(config.summary_path)
    if not output.exists():
        return None
    if summary is None or summary.get("output_bytes") != output.stat().st_size:
        stored = _read(manifest_path(config))
        if stored is not None and stored.get("fingerprint") == fingerprint:
            return None  # killed between the rename and the summary: the journal finishes it
        raise OutputError(
            f"{output} exists and is not the result of a finished run",
            hint="choose another output, or remove it",
        )
    _require_known_version(summary, config.summary_path)
    require_same_job(summary["fingerprint"], fingerprint, where=str(output))
    if summary.get("stdin") != stdin_digest(sources, is_kept=False):
        raise ResumeMismatchError(
            f"{output} answers another standard input", hint="choose another output"
        )
    if summary["columns"] != (None if config.columns is None else list(config.columns)):
        raise ResumeMismatchError(
            f"{output} was written with other --columns", hint="choose another output"
        )
    return CompleteJob(exit_code=summary["exit_code"], num_rows=summary["rows"]["total"])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        loaded = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot read {path}: {error}", hint="remove it") from error
    if not isinstance(loaded, dict):
        raise OutputError(f"{path} is not a manifest", hint="remove it")
    return loaded


def _require_known_version(stored: Mapping[str, object], path: Path) -> None:
    if stored.get("version") != MANIFEST_VERSION:
        raise ResumeMismatchError(
            f"{path} has version {stored.get('version')}; this nanobatch reads {MANIFEST_VERSION}",
            hint="finish the job with the nanobatch that began it, or choose another output",
        )
