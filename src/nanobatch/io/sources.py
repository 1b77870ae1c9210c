"""From the paths of a command line to inputs that are known to be readable.

Knows suffixes, file kinds and the errors of opening; the formats themselves are in `readers`.
Every input is opened and sniffed here, before anything else is loaded.
"""

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from nanobatch.errors import InputError
from nanobatch.io.input_source import STDIN, InputSource
from nanobatch.io.readers import FORMATS
from nanobatch.io.stdin_spool import StdinSpool
from nanobatch.job_config import InputFormat

_COMPRESSED_SUFFIXES = {".gz": "zcat", ".zst": "zstdcat"}


def resolve_inputs(
    paths: Sequence[str],
    input_format: InputFormat | None = None,
    *,
    delimiter: str = ",",
    spool_path: Path | None = None,
) -> tuple[InputSource, ...]:
    """Open and sniff every input.

    Args:
        paths: Inputs in order; `-` is JSONL on standard input.
        input_format: Format of every file; None goes by suffix.
        delimiter: Field separator of CSV inputs.
        spool_path: Where standard input is kept so that it can be read again; None keeps it not.

    Raises:
        InputError: An input is missing, unreadable, not a file, or not what its format demands.
        ConfigError: The delimiter is not one character.
    """
    if not paths:
        raise InputError("no input is given", hint="name a file, or - for JSONL on standard input")
    if paths.count(STDIN) > 1:
        raise InputError("standard input is given twice", hint="give - once")
    return tuple(
        _resolve_stdin(input_format, spool_path)
        if path == STDIN
        else _resolve_file(path, input_format, delimiter)
        for path in paths
    )


def _resolve_stdin(input_format: InputFormat | None, spool_path: Path | None) -> InputSource:
    if input_format not in (None, "jsonl"):
        raise InputError(
            f"standard input is read as JSONL, not as {input_format}",
            hint="write it to a file first",
        )
    try:
        os.fstat(sys.stdin.fileno())
    except (AttributeError, OSError, ValueError):
        raise InputError("standard input is closed", hint="pipe JSONL into the command") from None
    spool = StdinSpool(sys.stdin.buffer, spool_path)
    return InputSource(path=STDIN, format="jsonl", size_bytes=None, spool=spool)


def _resolve_file(path: str, input_format: InputFormat | None, delimiter: str) -> InputSource:
    if "://" in path:
        raise InputError(f"{path} is remote; only local files are read", hint="download it first")
    size_bytes = _regular_file_size(path)
    found_format = input_format or _format_of(path)
    source = InputSource(path=path, format=found_format, size_bytes=size_bytes, delimiter=delimiter)
    try:
        return FORMATS[found_format].sniff(source)
    except OSError as error:
        raise _cannot_open(path, error) from None


def _regular_file_size(path: str) -> int:
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        raise _cannot_open(path, error) from None
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path} is a folder", hint="name the files in it")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(
            f"{path} is not a regular file, and inputs are read twice",
            hint="pipe it in: PRODUCER | nanobatch run -",
        )
    return status.st_size


def _format_of(path: str) -> InputFormat:
    name = Path(path).name.lower()
    for input_format, known in FORMATS.items():
        if name.endswith(known.suffixes):
            return input_format
    suffix = Path(name).suffix
    if suffix in _COMPRESSED_SUFFIXES:
        raise InputError(
            f"{path} is compressed; only uncompressed files are read",
            hint=f"pipe it in: {_COMPRESSED_SUFFIXES[suffix]} {path} | nanobatch run -",
        )
    known_suffixes = " ".join(end for known in FORMATS.values() for end in known.suffixes)
    raise InputError(
        f"{path} has no known suffix; known are {known_suffixes}",
        hint=f"say what it is: --input-format {'|'.join(FORMATS)}",
    )


def _cannot_open(path: str, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path} does not exist", hint="check the path of the input")
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return InputError(f"{path} cannot be opened: {reason}", hint="check its permissions")
