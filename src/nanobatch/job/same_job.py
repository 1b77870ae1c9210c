"""Whether what is on disk belongs to the job that is asked for, and in what it differs if not.

Knows fingerprints (`job.fingerprint` makes them), not where they are stored.
"""

import json
from collections.abc import Collection, Mapping, Sequence

from nanobatch.errors import ResumeMismatchError
from nanobatch.io.input_row import InputRow
from nanobatch.job.fingerprint import Fingerprint

RETRY_MAY_CHANGE = ("long_prompts", "row_timeout_s")
"""What may differ when error rows are run again: rows that are finished did not meet it."""

_MAX_VALUE_CHARS = 24
_MAX_FILES = 3


def require_same_job(
    stored: Fingerprint,
    wanted: Fingerprint,
    *,
    where: str,
    hint: str,
    ignored: Collection[str] = (),
) -> None:
    """Check that what is on disk belongs to the job that is asked for.

    Args:
        stored: Fingerprint on disk.
        wanted: Fingerprint of the job that is asked for.
        where: What is on disk, for the message.
        hint: What to do if it does not.
        ignored: Keys that may differ.

    Raises:
        ResumeMismatchError: It does not; the message names the keys that differ and how.
    """
    keys = sorted({*stored, *wanted} - {*ignored})
    different = [key for key in keys if stored.get(key) != wanted.get(key)]
    if not different:
        return
    described = [_describe(key, stored.get(key), wanted.get(key)) for key in different]
    raise ResumeMismatchError(
        f"{where} belongs to another job: {', '.join(described)} "
        f"{'differ' if len(different) > 1 else 'differs'}",
        hint=hint,
    )


def changed_row_error(row: InputRow) -> ResumeMismatchError:
    """Return the error for a row whose payload is not the one that was answered."""
    return ResumeMismatchError(
        f"{row.location} has changed since the run that finished it",
        hint="restore the input, or choose another output",
    )


def _describe(key: str, stored: object, wanted: object) -> str:
    """Return a key with what became of its value, where that is short enough to help."""
    if key == "inputs" and isinstance(stored, list) and isinstance(wanted, list):
        return f"inputs ({_changed_inputs(stored, wanted)})"
    if isinstance(stored, dict) and isinstance(wanted, dict):
        names = [name for name in {**stored, **wanted} if stored.get(name) != wanted.get(name)]
        return f"{key} ({_listed(names)})"
    before, after = json.dumps(stored), json.dumps(wanted)
    if max(len(before), len(after)) > _MAX_VALUE_CHARS:
        return key
    return f"{key} ({before} before, {after} now)"


def _changed_inputs(
    stored: Sequence[Mapping[str, object]], wanted: Sequence[Mapping[str, object]]
) -> str:
    if len(stored) != len(wanted):
        files = "file" if len(stored) == 1 else "files"
        return f"{len(stored)} {files} before, {len(wanted)} now"
    changes = []
    for before, after in zip(stored, wanted, strict=True):
        if before["name"] != after["name"]:
            changes.append(f"{before['name']} before, {after['name']} now")
        elif before.get("bytes") != after.get("bytes"):
            changes.append(f"{after['name']}: {before['bytes']} bytes before, {after['bytes']} now")
        elif before != after:
            changes.append(f"{after['name']}: its content")
    return _listed(changes)


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _MAX_FILES
    return "; ".join(names[:_MAX_FILES]) + (f"; {rest} more" if rest > 0 else "")
