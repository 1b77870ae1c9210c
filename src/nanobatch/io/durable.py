"""Writing so that a crash leaves the old file or the new one, never half of one.

Knows temporary files, fsync and rename, and how to tell a user that a disk is full; nothing of
what is written. Every failed write becomes a `StorageError` that names the final path.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from nanobatch.errors import OutputError, StorageError

BUFFER_BYTES = 1 << 18
_MAX_NAME_BYTES = 255
_TEMPORARY_NAME = re.compile(r"\.(.+)\.\d+-[0-9a-f]{8}\.tmp", re.DOTALL)
_HINTS = {
    errno.ENOSPC: "free space on that file system, then run the same line again",
    errno.EDQUOT: "your disk quota is used up: free space, then run the same line again",
    errno.EFBIG: "raise the file size limit (`ulimit -f`), then run the same line again",
    errno.EROFS: "the file system is read-only: choose another output",
    errno.EACCES: "you may not write there: choose another output or change the permissions",
}


def storage_error(path: Path | str, error: Exception, *, hint: str | None = None) -> StorageError:
    """Return what to tell the user when writing a path failed.

    Args:
        path: What was written.
        error: How it failed.
        hint: What to do; None goes by the error, for a job whose journal keeps finished rows.
    """
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number) if number is not None else str(error) or type(error).__name__
    if hint is None:
        hint = _HINTS.get(number or 0, "finished rows are kept; run the same line again")
    return StorageError(f"cannot write {path}: {reason}", hint=hint)


class AtomicFile:
    """A file that appears under its name complete or not at all.

    Bytes go to a hidden temporary file in the same folder, whose parents are created;
    `commit` fsyncs it, renames it over the final name and fsyncs the folder. The umask decides
    on the mode. A symbolic link is followed: what it points to is replaced. As a context manager
    it commits, or aborts when an exception passes.

    pyarrow writes into it as into any binary file (`write`, `tell`, `flush`, `closed`).

    Raises:
        StorageError: The file cannot be created or written; also from `write` and `commit`.
        OutputError: The path exists and is no regular file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._target = Path(os.path.realpath(path))
        if self._target.exists() and not self._target.is_file():
            raise OutputError(f"{path} exists and is not a regular file", hint="choose another")
        self._temporary = self._target.with_name(_temporary_name(self._target.name))
        try:
            make_folder(self._target.parent)
            self._stream: BinaryIO = _create(self._temporary)
        except OSError as error:
            raise storage_error(path, error) from error

    @property
    def closed(self) -> bool:
        """Whether the file was committed or aborted."""
        return self._stream.closed

    def write(self, chunk: bytes) -> int:
        """Append bytes and return how many."""
        try:
            return self._stream.write(chunk)
        except OSError as error:
            raise storage_error(self.path, error) from error

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._stream.tell()

    def flush(self) -> None:
        """Do nothing: only `commit` makes bytes durable."""

    def commit(self) -> None:
        """Make the file appear under its name."""
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()
            self._temporary.replace(self._target)
            fsync_folder(self._target.parent)
        except OSError as error:
            self.abort()
            raise storage_error(self.path, error) from error

    def abort(self) -> None:
        """Remove what was written; a file already under the name stays as it is."""
        with contextlib.suppress(OSError):
            self._stream.close()  # tries once more to write its buffer, which may fail again
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.closed:
            return
        if exception_type is None:
            self.commit()
        else:
            self.abort()


def write_json_atomically(path: Path, value: object) -> None:
    """Write a value as indented JSON that appears complete or not at all.

    Raises:
        StorageError: The file cannot be written.
    """
    text = json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False)
    with AtomicFile(path) as file:
        file.write(text.encode("ascii") + b"\n")


def make_folder(path: Path) -> None:
    """Create a folder and its parents so that they survive a crash; existing ones are fine.

    Raises:
        OSError: A folder cannot be created.
    """
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError:  # as a file: say so
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None
        fsync_folder(folder.parent)


def fsync_folder(path: Path) -> None:
    """Make creations, renames and removals in a folder durable.

    Raises:
        OSError: The folder cannot be opened or synchronised.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems refuse
            raise
    finally:
        os.close(descriptor)


def remove_stale_temporaries(path: Path) -> None:
    """Remove temporary files that killed runs left beside a path.

    Only who holds the lock on the output may call this: a living run's file looks the same.
    """
    target = Path(os.path.realpath(path))
    kept = _kept_name(target.name)
    remove_stale_temporaries_in(target.parent, is_ours=lambda name: name == kept)


def remove_stale_temporaries_in(folder: Path, *, is_ours: Callable[[str], bool]) -> None:
    """Remove temporary files that killed runs left in a folder; see `remove_stale_temporaries`.

    Args:
        folder: The folder; it may be missing.
        is_ours: Whether the file that was to appear under a name is ours.
    """
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        temporary = _TEMPORARY_NAME.fullmatch(entry.name)
        if temporary is not None and is_ours(temporary[1]):
            with contextlib.suppress(OSError):
                entry.unlink()


def require_free_bytes(path: Path, num_bytes: int) -> None:
    """Check that the file system of a path has room before much is written.

    Raises:
        StorageError: There are fewer free bytes.
    """
    folder = Path(os.path.realpath(path)).parent
    while not folder.is_dir():
        folder = folder.parent
    num_free_bytes = shutil.disk_usage(folder).free
    if num_free_bytes < num_bytes:
        raise StorageError(
            f"cannot write {path}: it needs about {num_bytes:,} bytes; "
            f"{num_free_bytes:,} bytes are free",
            hint=_HINTS[errno.ENOSPC],
        )


def _create(path: Path) -> BinaryIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    return os.fdopen(descriptor, "wb", buffering=BUFFER_BYTES)


def _kept_name(name: str) -> str:
    """Return what a temporary file's name keeps of the final one, which may be at its limit."""
    return os.fsdecode(os.fsencode(name)[: _MAX_NAME_BYTES - 32])


def _temporary_name(name: str) -> str:
    return f".{_kept_name(name)}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
