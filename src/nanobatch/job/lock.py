"""One run at a time on one output, also among hosts that share its file system.

The lock is a file in the journal's folder that names its holder and that the holder's heartbeat
rewrites. How it is taken is `lock_claim`'s business; this module holds it. A holder that seemed
dead (a suspended machine, a network that was cut) may lose it to another host; then it must write
no more, which `OutputLock.require_held` is for. Between that look and the write that follows lie
microseconds in which the lock can still be lost: such a write goes to the loser's own journal
segment, as a whole record, and harms nobody.

A C call that keeps the GIL for a minute stops the heartbeat too.
"""

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from nanobatch.errors import LockLostError
from nanobatch.io.durable import storage_error
from nanobatch.job.lock_claim import LockTimes, claim_lock, output_of, read_lock
from nanobatch.job.lock_holder import LockHolder, parse_holder

logger = logging.getLogger(__name__)

LOCK_NAME = "lock"
_RELEASE_WAIT_S = 1.0


@contextlib.contextmanager
def output_lock(journal_dir: Path, *, times: LockTimes | None = None) -> Iterator["OutputLock"]:
    """Hold the lock on a job's journal inside the block.

    Waits up to a minute, with one log line, where another host held it and did not release it.

    Args:
        journal_dir: Folder of the journal; created where missing.
        times: How long things take; None for the usual ones.

    Raises:
        OutputError: Another run holds it.
        StorageError: The lock file cannot be created, read or written.
    """
    lock = OutputLock(journal_dir / LOCK_NAME, times=times or LockTimes())
    try:
        yield lock
    finally:
        lock.release()


class OutputLock:
    """The lock on an output, held from its creation to `release` or until another host takes it.

    Attributes:
        path: Its file; must be the last one removed from its folder.

    Args:
        path: Where the file is or should be.
        times: How long things take.

    Raises:
        OutputError: Another run holds it.
        StorageError: The file cannot be created, read or written.
    """

    def __init__(self, path: Path, *, times: LockTimes) -> None:
        self.path = path
        self._holder = LockHolder.of_this_process()
        self._beat_interval_s = times.beat_interval_s
        self._is_lost = False
        self._is_released = threading.Event()
        self._descriptor_in_use = threading.Lock()
        self._descriptor = claim_lock(path, self._holder, times=times)
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def require_held(self) -> None:
        """Check that the lock is still held; costs microseconds on a local disk.

        Raises:
            LockLostError: Another run took it over, or its file was removed.
            StorageError: Its file cannot be read.
        """
        try:
            content = read_lock(self.path)
        except OSError as error:
            raise storage_error(self.path, error) from error
        if not self._is_lost and self._names_us(content):
            return
        self._is_lost = True  # for good: what came between is not ours
        winner = parse_holder(content or b"")
        if winner is None:
            reason = f"the lock {self.path} was removed while this run held it"
        else:
            reason = f"another run took {output_of(self.path)} over ({winner})"
        raise LockLostError(
            reason, hint="see that no other run writes there, then run the same line again"
        )

    def release(self) -> None:
        """Let the next run have the output at once; a second call does nothing."""
        if self._is_released.is_set():
            return
        self._is_released.set()
        # A heartbeat that hangs on a dead file server keeps the descriptor, not the process.
        if not self._descriptor_in_use.acquire(timeout=_RELEASE_WAIT_S):
            return
        content: bytes | None = b""
        with contextlib.suppress(OSError):
            content = read_lock(self.path)
            if self._names_us(content):
                os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor_in_use.release()
        self._thread.join()
        if content is None:  # some network file systems keep a removed file till it is closed
            with contextlib.suppress(OSError):
                self.path.parent.rmdir()

    def remove_folder(self) -> None:
        """Remove the lock's folder with all that is in it, and release.

        The lock goes last, so that no other run begins in a folder that is being emptied. What
        cannot be removed stays.
        """
        with contextlib.suppress(OSError):
            for entry in list(self.path.parent.iterdir()):
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                elif entry.name != self.path.name:
                    entry.unlink()
            self.path.unlink()
        self.release()

    def _beat(self) -> None:
        count = 0
        while not self._is_released.wait(self._beat_interval_s):
            count += 1
            with self._descriptor_in_use:
                if self._is_released.is_set():
                    return
                try:
                    if not self._names_us(read_lock(self.path)):
                        self._is_lost = True
                        return
                    os.pwrite(self._descriptor, *self._holder.beat(count))
                except OSError as error:
                    logger.debug("no heartbeat in %s: %s", self.path, error)

    def _names_us(self, content: bytes | None) -> bool:
        return content is not None and content.startswith(self._holder.mark)
