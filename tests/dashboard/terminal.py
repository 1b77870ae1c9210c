"""A pseudo-terminal to run a program in, and just enough of a terminal to read its screen."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")
COLOR = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-9]|4[0-9]|9[0-7]|10[0-7])(?:;[0-9]+)*m")
FRAME_START = re.compile("╭─")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a program wrote to its terminal, in pieces with the seconds of their arrival."""

    pieces: list[tuple[float, str]]
    exit_code: int

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)

    @property
    def frame_times_s(self) -> list[float]:
        return [at for at, text in self.pieces for _ in FRAME_START.findall(text)]

    @property
    def screen(self) -> list[str]:
        return read_screen(self.text)


def read_screen(text: str) -> list[str]:
    """Return the lines a terminal shows after `text`; lines never wrap here."""
    lines, row, column = [""], 0, 0
    for match in TOKEN.finditer(text):
        parameters, command, control, plain = match.groups()
        if control == "\r":
            column = 0
        elif control == "\n":
            row += 1
            lines += [""] * (row - len(lines) + 1)
        elif plain:
            kept = lines[row].ljust(column)
            lines[row] = kept[:column] + plain + kept[column + len(plain) :]
            column += len(plain)
        elif command == "A":
            row = max(0, row - int(parameters or 1))
        elif command == "K":
            lines[row] = ""
    return [line.rstrip() for line in lines]


def set_size(descriptor: int, *, width: int, height: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))


def environment(**variables: str) -> dict[str, str]:
    removed = {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "CI"}
    kept = {name: value for name, value in os.environ.items() if name not in removed}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**kept, "TERM": "xterm-256color", "PYTHONPATH": path, "PYTHONUTF8": "1", **variables}


def record(
    *arguments: str,
    width: int = 100,
    height: int = 30,
    resize_to: tuple[int, ...] = (),
    **variables: str,
) -> Recording:
    """Run the player in a pseudo-terminal until it ends.

    Args:
        arguments: The player's.
        width: Columns of the terminal.
        height: Its rows.
        resize_to: Widths it takes one after the other, at every second piece of output.
        variables: Added to the environment.
    """
    ours, theirs = pty.openpty()
    set_size(ours, width=width, height=height)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.dashboard.player", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
        env=environment(**variables),
    )
    os.close(theirs)
    widths = list(resize_to)
    pieces: list[tuple[float, str]] = []
    while piece := read_piece(ours):
        pieces.append((time.monotonic(), piece.decode(errors="ignore")))
        if widths and len(pieces) % 2 == 0:
            set_size(ours, width=widths.pop(0), height=height)
    os.close(ours)
    return Recording(pieces=pieces, exit_code=process.wait())


def read_piece(descriptor: int) -> bytes:
    """Read what is there; empty at the end, which Linux tells by EIO."""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""
