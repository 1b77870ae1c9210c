"""A journal's folder and its end: emptied in an order that a crash may cut short anywhere.

Knows which files lie in it and which of them must go last, not what they say.
"""

import contextlib
import shutil
from pathlib import Path

from nanobatch.errors import OutputError, StorageError
from nanobatch.io.durable import fsync_folder, storage_error
from nanobatch.job.lock import LOCK_NAME, OutputLock, output_lock
from nanobatch.job.manifest import manifest_path, read_json_object, read_manifest
from nanobatch.job_config import JobConfig


def discard_journal(folder: Path, *, keep: tuple[str, ...]) -> None:
    """Remove everything in a journal's folder but the files to keep.

    Raises:
        StorageError: Something cannot be removed.
    """
    if not folder.is_dir():
        return
    # The last segment first and the manifest at the end: whatever a crash leaves is the beginning
    # of a journal that says whose it is.
    names = sorted((entry.name for entry in folder.iterdir()), reverse=True)
    names.sort(key=lambda name: name == manifest_path(folder).name)
    try:
        for name in names:
            if name not in keep:
                _remove(folder / name)
        fsync_folder(folder)
    except OSError as error:
        raise storage_error(folder, error) from error


def remove_journal(lock: OutputLock) -> None:
    """Remove a finished job's journal with its folder, and release the lock.

    What cannot be removed stays: the output is complete.
    """
    with contextlib.suppress(StorageError):
        discard_journal(lock.path.parent, keep=(LOCK_NAME,))
    lock.remove_folder()


def remove_finished_journal(config: JobConfig) -> None:
    """Remove the journal that a killed run left beside its complete output.

    Only the one that the output was written from: another is work in progress (its errors are
    being run again, or the output is to be overwritten). What has no manifest is the rest of a
    removal. One that another run holds stays too.
    """
    if config.keep_journal or not config.journal_dir.is_dir():
        return
    manifest = read_manifest(config.journal_dir)
    summary = read_json_object(config.summary_path) or {}
    if manifest is not None and manifest.journal_id != summary.get("journal_id"):
        return
    with contextlib.suppress(OutputError), output_lock(config.journal_dir) as lock:
        remove_journal(lock)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
