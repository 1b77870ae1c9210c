"""One run at a time on one output of this host: an operating system lock in the journal's folder.

The kernel drops the lock with the process, however that ends, so nothing stale is left behind.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nanobatch.errors import OutputError
from nanobatch.io.durable import make_folder, storage_error


@contextmanager
def output_lock(journal_dir: Path) -> Iterator[None]:
    """Hold the lock on a job's journal inside the block.

    Raises:
        OutputError: Another run holds it.
        StorageError: The lock file cannot be created.
    """
    path = journal_dir / "lock"
    try:
        make_folder(journal_dir)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise storage_error(path, error) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            raise OutputError(
                f"another run writes to {journal_dir} (process {holder or 'unknown'})",
                hint="wait for it, or choose another output",
            ) from error
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise storage_error(path, error) from error
        yield
    finally:
        os.close(descriptor)
