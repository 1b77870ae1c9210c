"""Taking the lock on an output, or finding out who has it.

On one kernel `flock` decides: it goes with the process, however that ends. It need not reach
other hosts that share the file system, and some file systems have none, so the file also names
its holder. Nobody's clock is compared with another's: whether a holder on another host lives is
seen by watching its heartbeat for a while.
"""

import contextlib
import errno
import fcntl
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from nanobatch.errors import OutputError
from nanobatch.io.durable import make_folder, storage_error
from nanobatch.job.lock_holder import CONTENT_BYTES, LockHolder, parse_holder

logger = logging.getLogger(__name__)

_NO_FLOCK = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS)
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
JOURNAL_SUFFIX = ".nanobatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockTimes:
    """How long things take; only tests need others.

    Attributes:
        beat_interval_s: From one heartbeat to the next.
        stale_after_s: Without a heartbeat, until another host's lock may be taken over.
        poll_interval_s: From one look at another host's lock to the next.
        settle_s: After a takeover, until another that was made at the same time must show.
    """

    beat_interval_s: float = 10.0
    stale_after_s: float = 60.0
    poll_interval_s: float = 1.0
    settle_s: float = 1.0


def claim_lock(path: Path, holder: LockHolder, *, times: LockTimes) -> int:
    """Write a holder into a lock's file and return the file's descriptor, which keeps the lock.

    Raises:
        OutputError: Another process holds the lock.
        StorageError: The file cannot be created, read or written.
    """
    while True:
        try:
            make_folder(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if not path.parent.exists() and isinstance(error, FileNotFoundError):
                continue  # its last holder has just removed the folder
            raise storage_error(path, error) from error
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, descriptor)
            try:
                is_claimed = _claim(path, descriptor, holder=holder, times=times)
            except OSError as error:
                raise storage_error(path, error) from error
            if is_claimed:
                stack.pop_all()
                return descriptor


def read_lock(path: Path) -> bytes | None:
    """Return what a lock's file holds now, on the server if it is on one; None if it is gone.

    Opening makes network file systems ask their server, a descriptor that is open does not.

    Raises:
        OSError: The file is there and cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise


def output_of(lock_path: Path) -> str:
    """Return the output that a lock's file belongs to, for messages."""
    return str(lock_path.parent).removesuffix(JOURNAL_SUFFIX)


def _claim(path: Path, descriptor: int, *, holder: LockHolder, times: LockTimes) -> bool:
    """Take the lock; return False if the file was replaced meanwhile, so that another counts."""
    has_flock = _flock(path, descriptor)
    content = os.pread(descriptor, CONTENT_BYTES, 0)
    found = parse_holder(content)
    is_foreign = content != b"" and not _is_ours_to_judge(found, has_flock=has_flock)
    if is_foreign:
        if not _watch(path, content, found=found, times=times):
            return False
    elif found is not None and not has_flock and found.is_on_this_kernel() and found.is_alive():
        _refuse(path, found)
    os.pwrite(descriptor, holder.content(), 0)
    os.ftruncate(descriptor, CONTENT_BYTES)
    if is_foreign or not has_flock:
        time.sleep(times.settle_s)
    now = read_lock(path)
    if now is None or not now.startswith(holder.mark):
        winner = parse_holder(now or b"")
        if winner is not None and os.pread(descriptor, CONTENT_BYTES, 0) == now:
            _refuse(path, winner)
        return False
    return True


def _is_ours_to_judge(found: LockHolder | None, *, has_flock: bool) -> bool:
    """Whether this host knows at once what became of a holder.

    flock says it for this kernel, where containers have host names of their own; the table of
    processes for this host; and nothing survives a reboot.
    """
    if found is None:
        return False
    return found.is_on_this_host() or (has_flock and found.is_on_this_kernel())


def _flock(path: Path, descriptor: int) -> bool:
    """Take the operating system's lock; return False where the file system has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _refuse(path, parse_holder(os.pread(descriptor, CONTENT_BYTES, 0)))
    except OSError as error:
        if error.errno in _NO_FLOCK:
            return False
        raise
    return True


def _watch(path: Path, content: bytes, *, found: LockHolder | None, times: LockTimes) -> bool:
    """Watch another host's lock until it is stale or released; return False if it was removed."""
    logger.warning(
        "%s was locked by %s; watching %g s for a heartbeat",
        output_of(path),
        f"process {found.pid} on {found.host}" if found else "an unknown process",
        times.stale_after_s,
    )
    deadline_s = time.monotonic() + times.stale_after_s
    while (remaining_s := deadline_s - time.monotonic()) > 0:
        time.sleep(min(times.poll_interval_s, remaining_s))
        now = read_lock(path)
        if now is None:
            return False
        if now == b"":
            return True
        if now != content:
            _refuse(path, parse_holder(now) or found)
    return True


def _refuse(path: Path, found: LockHolder | None) -> NoReturn:
    raise OutputError(
        f"another run writes to {output_of(path)} ({found or 'process unknown'})",
        hint="wait for it, or choose another output",
    )
