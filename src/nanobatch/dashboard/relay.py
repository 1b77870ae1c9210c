"""Keeps what others print to standard error from running into a live dashboard.

Knows lines and carriage returns. Does not know the dashboard: it is asked for what has come.
"""

import logging
import re
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TextIO, cast

MAX_PENDING_LINES = 10_000
MAX_LINE_CHARS = 100_000
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class StderrRelay:
    """Stands in for `sys.stderr`: keeps whole lines until they can be printed above the frame.

    A progress bar of a library (tqdm: text after a carriage return, or not yet ended) is no
    line but an activity: only its newest state matters. After `uninstall` everything written
    here goes straight to the real stream, for those who still hold this object.

    Args:
        stream: The real standard error; every attribute not defined here is its own.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # The name by which rich finds the stream to draw on behind a stand-in.
        self.rich_proxied_file = stream
        self._lines: deque[str] = deque(maxlen=MAX_PENDING_LINES)
        self._partial = ""
        self._activity = ""
        self._lock = threading.Lock()
        self._is_installed = False
        self._handlers: list[logging.StreamHandler[Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def install(self) -> None:
        """Take the place of `sys.stderr`, in logging handlers that already hold it too."""
        self._is_installed = True
        self._handlers = [
            handler for handler in stream_handlers() if handler.stream is self._stream
        ]
        for handler in self._handlers:
            handler.setStream(cast(TextIO, self))
        sys.stderr = cast(TextIO, self)

    def uninstall(self) -> None:
        """Give `sys.stderr` back, and write there what was kept and not taken."""
        for handler in self._handlers:
            handler.setStream(self._stream)
        if sys.stderr is self:
            sys.stderr = self._stream
        self._is_installed = False
        kept = "".join(f"{line}\n" for line in self.take_lines())
        with self._lock:
            begun, self._partial = self._partial, ""
        # A progress bar that was cut short is of no use; a line without its end is.
        kept += "" if "\r" in begun else begun
        with suppress(OSError):
            self._stream.write(kept)
            self._stream.flush()

    def write(self, text: str) -> int:
        """Keep `text`; return its length. Never blocks while installed."""
        if not self._is_installed:
            return self._stream.write(text)
        with self._lock:
            *ended, self._partial = (self._partial + text).split("\n")
            for line in ended:
                self._keep(line)
            self._partial = self._partial[-MAX_LINE_CHARS:]
            if self._partial.strip():
                self._activity = last_overwrite(self._partial)
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Keep each of `lines`."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Do nothing while installed: what is kept appears with the next frame."""
        if not self._is_installed:
            self._stream.flush()

    def take_lines(self) -> list[str]:
        """Return the whole lines that have come since the last call, and forget them."""
        with self._lock:
            lines = list(self._lines)
            self._lines.clear()
            return lines

    @property
    def activity(self) -> str:
        """The newest state of a line that is being overwritten; empty when it has ended."""
        return self._activity

    def _keep(self, line: str) -> None:
        line = line.removesuffix("\r")
        self._activity = ""
        if "\r" in line:
            self._activity = last_overwrite(line)
        elif not line or ESCAPES.sub("", line):
            self._lines.append(line)


def last_overwrite(line: str) -> str:
    """Return what a terminal would show of a line with carriage returns, roughly."""
    pieces = [piece.strip() for piece in ESCAPES.sub("", line).split("\r")]
    newest = next((piece for piece in reversed(pieces) if piece), "")
    return "".join(character for character in newest if character.isprintable())


def stream_handlers() -> Iterator[logging.StreamHandler[Any]]:
    """Yield every stream handler of every logger that exists."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        if isinstance(logger, logging.Logger):
            for handler in logger.handlers:
                if isinstance(handler, logging.StreamHandler):
                    yield handler
