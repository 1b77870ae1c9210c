"""`OUTPUT.nanobatch/manifest.json`: which job a journal belongs to, while the job is unfinished.

Knows the file and its version, not what a run decides by it (`job.earlier_runs`).
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nanobatch.errors import OutputError, ResumeMismatchError
from nanobatch.io.durable import write_json_atomically
from nanobatch.job.fingerprint import Fingerprint
from nanobatch.job_config import JobConfig

MANIFEST_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is known of an unfinished job.

    Attributes:
        fingerprint: What makes it this job.
        shard: Which part of the rows it answers, as JSON; None for all.
        job: The configuration of the run that wrote the manifest, as JSON.
        overwrites: Whether a run with `--overwrite` began it: then the output that is there is
            an old one.
        retry_before_segment: Error rows in segments with smaller numbers are to be run again;
            None when no `--retry-errors` has begun.
        journal_id: Tells the journal from others of the same output. The summary names the one
            that the output was written from.
        version: Format of the manifest.
    """

    fingerprint: Fingerprint
    shard: Mapping[str, object] | None
    job: Mapping[str, object]
    overwrites: bool = False
    retry_before_segment: int | None = None
    journal_id: str = field(default_factory=lambda: secrets.token_hex(8))
    version: int = MANIFEST_VERSION


def manifest_path(journal_dir: Path) -> Path:
    """Return where the manifest of an unfinished job is."""
    return journal_dir / "manifest.json"


def write_manifest(journal_dir: Path, manifest: Manifest) -> None:
    """Write the manifest of a job.

    Raises:
        StorageError: It cannot be written.
    """
    write_json_atomically(manifest_path(journal_dir), asdict(manifest))


def read_manifest(journal_dir: Path) -> Manifest | None:
    """Return the manifest in a journal's folder, or None if there is none.

    Raises:
        OutputError: It cannot be read.
        ResumeMismatchError: Another version of nanobatch wrote it.
    """
    path = manifest_path(journal_dir)
    stored = read_json_object(path)
    if stored is None:
        return None
    require_known_version(stored, path)
    try:
        return Manifest(**stored)
    except TypeError as error:
        raise OutputError(f"{path} is not a manifest: {error}", hint="remove it") from error


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file of ours, or None if there is no such file.

    Raises:
        OutputError: It cannot be read or is no object.
    """
    try:
        loaded = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot read {path}: {error}", hint="remove it") from error
    if not isinstance(loaded, dict):
        raise OutputError(f"{path} is not a manifest", hint="remove it")
    return loaded


def require_known_version(stored: Mapping[str, object], path: Path) -> None:
    """Check that a manifest or summary is of the version that this nanobatch writes.

    Raises:
        ResumeMismatchError: It is not.
    """
    if stored.get("version") != MANIFEST_VERSION:
        raise ResumeMismatchError(
            f"{path} has version {stored.get('version')}; this nanobatch reads {MANIFEST_VERSION}",
            hint="finish the job with the nanobatch that began it, or choose another output",
        )


def shard_json(config: JobConfig) -> dict[str, object] | None:
    """Return which part of the rows a job answers, as JSON."""
    return None if config.shard is None else asdict(config.shard)
