"""Disks that are full at a moment of a test's choice, and have room again later.

A small file system in memory, where this process may mount one; and everywhere a limit on the size
of files, which fails any write beyond it as a full disk does.
"""

import contextlib
import ctypes
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

MOUNTED_BYTES = 4 << 20
_READ_ONLY, _DETACH = 1, 2  # MS_RDONLY of mount(2), MNT_DETACH of umount2(2)
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Disk(Protocol):
    """A disk that can be full.

    Attributes:
        folder: A folder on it.
        reason: What the system says of a write while it is full.
        hint: What a user is told to do.
    """

    folder: Path
    reason: str
    hint: str

    def fill(self, *, left_bytes: int = 0) -> None:
        """Let writes fail from now on; a file of so many bytes still fits."""
        ...

    def free(self) -> None:
        """Let writes succeed again."""
        ...


class MountedDisk:
    """A file system of four megabytes; see `mounted_disk`."""

    reason = "No space left on device"
    hint = "free space on that file system, then run the same line again"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self, *, left_bytes: int = 0) -> None:
        """Write a file that takes what is free, but for whole pages that so many bytes need."""
        left_pages = -(-left_bytes // PAGE_BYTES)
        num_pages = os.statvfs(self.folder).f_bavail - left_pages
        with self._filler.open("ab", buffering=0) as stream, contextlib.suppress(OSError):
            for _ in range(num_pages):  # others may take one of them meanwhile
                stream.write(bytes(PAGE_BYTES))

    def free(self) -> None:
        """Remove that file."""
        self._filler.unlink(missing_ok=True)


class LimitedFiles:
    """Any file system, on which this process's files may be no longer than a limit."""

    reason = "File too large"
    hint = "raise the file size limit (`ulimit -f`), then run the same line again"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, *, left_bytes: int = 0) -> None:
        """Let no file grow beyond so many bytes; Python ignores the signal that comes with it."""
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (left_bytes, hard))

    def free(self) -> None:
        """Lift the limit."""
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def mounted_disk(folder: Path, *, is_read_only: bool = False) -> Iterator[MountedDisk]:
    """Mount a small file system on a folder inside the block.

    Raises:
        OSError: This process may not.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    target = os.fsencode(folder)
    settings = f"size={MOUNTED_BYTES}".encode()
    if libc.mount(b"tmpfs", target, b"tmpfs", _READ_ONLY if is_read_only else 0, settings):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    try:
        yield MountedDisk(folder)
    finally:
        libc.umount2(target, _DETACH)
