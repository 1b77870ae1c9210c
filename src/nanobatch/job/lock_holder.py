"""Who holds the lock on an output, as the lock's file says it.

Knows what identifies a process among all hosts that share a file system, and how that is written;
not when a lock may be taken.
"""

import json
import os
import secrets
import time
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Self

CONTENT_BYTES = 512
"""Every content has this length, so that writing one replaces another whole."""
_START_TIME_FIELD = 19  # of /proc/PID/stat after the name: field 22 in proc(5)
_STATE_FIELD = 0
_DEAD_STATES = (b"Z", b"X")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A process that holds, or held, a lock.

    Attributes:
        token: Random text of this one hold.
        host: Host name.
        boot_id: Identifies the host's kernel since it booted; None where there is none.
        pid: Process number on that host.
        process_start: When the process started, in clock ticks since boot; tells a process from a
            later one with the same number.
        started_at: When it took the lock, in its host's local time, for people.
    """

    token: str
    host: str
    boot_id: str | None
    pid: int
    process_start: int | None
    started_at: str

    @classmethod
    def of_this_process(cls) -> Self:
        """Return this process with a new token."""
        return cls(
            token=secrets.token_hex(16),
            host=os.uname().nodename,
            boot_id=_boot_id(),
            pid=os.getpid(),
            process_start=_process_start(os.getpid()),
            started_at=time.strftime("%Y-%m-%d %H:%M:%S %z"),
        )

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.started_at}"

    def content(self) -> bytes:
        """Return the file's content before the first beat; JSON that begins with the token."""
        rest = {key: value for key, value in asdict(self).items() if key != "token"}
        text = f"{self.mark.decode()}{_beat_text(0)}, {json.dumps(rest)[1:]}"
        return text.encode("ascii").ljust(CONTENT_BYTES - 1) + b"\n"

    @property
    def mark(self) -> bytes:
        """The first bytes of the content, which tell whose it is."""
        return f'{{"token": "{self.token}"'.encode("ascii")

    def beat(self, count: int) -> tuple[bytes, int]:
        """Return the bytes of a heartbeat and where they go: beside the token, never over it."""
        return _beat_text(count).encode("ascii"), len(self.mark)

    def is_on_this_kernel(self) -> bool:
        """Whether the process runs, or ran, on this host since it booted."""
        return self.boot_id is not None and self.boot_id == _boot_id()

    def is_on_this_host(self) -> bool:
        """Whether the process runs, or ran, on a host of this name, perhaps before a reboot."""
        return self.host == os.uname().nodename

    def is_alive(self) -> bool:
        """Whether a process on this kernel lives; another with its number is not it."""
        return self.process_start is not None and _process_start(self.pid) == self.process_start


def parse_holder(content: bytes) -> LockHolder | None:
    """Return whom a lock's content names; None if it is none of ours or half written."""
    try:
        values = json.loads(content)
        holder = LockHolder(**{field.name: values[field.name] for field in fields(LockHolder)})
    except (ValueError, TypeError, KeyError):
        return None
    return holder if isinstance(holder.host, str) and isinstance(holder.pid, int) else None


def _beat_text(count: int) -> str:
    """Return a fixed number of characters for any beat below 10^12."""
    return f', "beat": {count:12}, "beat_at": "{time.strftime("%Y-%m-%d %H:%M:%S %z")}"'


@cache
def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def _process_start(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if none lives."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    values = stat.rpartition(b")")[2].split()  # the name before it may hold anything
    return None if values[_STATE_FIELD] in _DEAD_STATES else int(values[_START_TIME_FIELD])
