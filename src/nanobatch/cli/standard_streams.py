"""Standard streams that the caller closed (`>&-`, some cron and service managers).

Python sets them to None, which every `write` in every library trips over, and the next file that
is opened gets their number, so that a native library's message could land in the journal.
"""

import io
import os
import sys

_NUM_STANDARD_STREAMS = 3


class NullStream(io.TextIOWrapper):
    """Stands for a standard stream that is closed: what is written to it is lost."""


def replace_missing_streams() -> None:
    """Open the null device in place of standard streams that are closed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < _NUM_STANDARD_STREAMS:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = _null_stream(1)
    if sys.stderr is None:
        sys.stderr = _null_stream(2)


def is_stdout_missing() -> bool:
    """Whether the caller closed standard output."""
    return isinstance(sys.stdout, NullStream)


def _null_stream(descriptor: int) -> NullStream:
    return NullStream(
        io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False)),
        encoding="utf-8",
        errors="backslashreplace",
    )
