"""From the paths of a command line to inputs that are known to be readable.

Knows suffixes, file kinds and the errors of opening; where files are is found by `input_paths`,
the formats themselves are in `readers`. Every input is opened and sniffed here, before anything
else is loaded.
"""

import os
import stat
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyarrow.fs import FileType

from nanobatch.errors import InputError, InputReadError
from nanobatch.io.compression import (
    CODEC_OF_SUFFIX,
    codec_of_content,
    codec_of_name,
    without_codec_suffix,
)
from nanobatch.io.input_paths import FoundFile, find_files
from nanobatch.io.input_source import STDIN, InputSource
from nanobatch.io.readers import FORMATS
from nanobatch.io.remote_files import NUM_OPENERS, RemoteFile, hint_for, is_remote, one_line
from nanobatch.io.stdin_spool import StdinSpool
from nanobatch.job_config import InputFormat

_MAGIC_BYTES = 4


def resolve_inputs(
    paths: Sequence[str],
    input_format: InputFormat | None = None,
    *,
    delimiter: str = ",",
    spool_path: Path | None = None,
    output: Path | None = None,
) -> tuple[InputSource, ...]:
    """Find, open and sniff every input.

    Args:
        paths: Files, patterns, folders and URLs in order; `-` is JSONL on standard input.
        input_format: Format of every file; None goes by suffix.
        delimiter: Field separator of CSV inputs.
        spool_path: Where standard input is kept so that it can be read again; None keeps it not.
        output: What the run writes, which patterns and folders leave out.

    Raises:
        InputError: An input is missing, unreadable, not a file, or not what its format demands.
        ConfigError: The delimiter is not one character.
    """
    if not paths:
        raise InputError("no input is given", hint="name a file, or - for JSONL on standard input")
    if paths.count(STDIN) > 1:
        raise InputError("standard input is given twice", hint="give - once")
    files = [
        file
        for path in paths
        for file in (
            [FoundFile(path=STDIN)]
            if path == STDIN
            else find_files(path, is_input=_has_known_suffix, output=output)
        )
    ]

    def resolve(file: FoundFile) -> InputSource:
        if file.path == STDIN:
            return _resolve_stdin(input_format, spool_path)
        return _resolve_file(file, input_format, delimiter)

    if any(file.remote is not None for file in files[1:]):
        with ThreadPoolExecutor(NUM_OPENERS) as openers:
            return tuple(openers.map(resolve, files))
    return tuple(map(resolve, files))


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


def _resolve_file(file: FoundFile, input_format: InputFormat | None, delimiter: str) -> InputSource:
    source = None
    try:
        size_bytes = _regular_file_size(file.path) if file.remote is None else _size(file.remote)
        source = InputSource(
            path=file.path,
            format=input_format or _format_of(file.path),
            size_bytes=size_bytes,
            delimiter=delimiter,
            remote=file.remote,
        )
        source = _with_codec(source)
        return FORMATS[source.format].sniff(source)
    except InputReadError as error:
        raise InputError(error.message, hint=hint_for(file.path)) from None
    except (OSError, pa.ArrowException) as error:
        raise _cannot_open(file.path, source, error) from None


def _regular_file_size(path: str) -> int:
    status = Path(path).stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(
            f"{path} is not a regular file, and inputs are read twice",
            hint="pipe it in: PRODUCER | nanobatch run -",
        )
    return status.st_size


def _size(file: RemoteFile) -> int:
    kind, size_bytes = file.kind_and_size()
    if kind is not FileType.File:
        raise InputError(f"{file.url} does not exist", hint=hint_for(file.url))
    if size_bytes is None:
        raise InputError(
            f"{file.url} has no known size, by which a changed input is noticed",
            hint="download it first",
        )
    return size_bytes


def _with_codec(source: InputSource) -> InputSource:
    """Return the source with its compression, which its first bytes tell whatever its name."""
    if not FORMATS[source.format].is_compressible:
        return source
    with closing(source.open()) as reader:
        codec = codec_of_content(reader.read(_MAGIC_BYTES))
    named = codec_of_name(source.path)
    if named is not None and codec is None:
        found = "empty (0 bytes)" if source.size_bytes == 0 else f"not {named} data"
        raise InputError(
            f"{source.name} is {found}, but its name says {named}",
            hint="it was cut or damaged; if it is not compressed, rename it",
        )
    return replace(source, codec=codec)


def _has_known_suffix(name: str) -> bool:
    return _suffix_format(name) is not None


def _suffix_format(name: str) -> InputFormat | None:
    bare = without_codec_suffix(name.lower())
    for input_format, known in FORMATS.items():
        if (bare if known.is_compressible else name.lower()).endswith(known.suffixes):
            return input_format
    return None


def _format_of(path: str) -> InputFormat:
    name = path.rpartition("/")[2]
    input_format = _suffix_format(name)
    if input_format is not None:
        return input_format
    if _suffix_format(without_codec_suffix(name)) is not None:
        raise InputError(
            f"{path} is compressed as a whole, and Parquet is read here and there",
            hint="decompress it; Parquet compresses its columns by itself",
        )
    known_suffixes = " ".join(end for known in FORMATS.values() for end in known.suffixes)
    raise InputError(
        f"{path} has no known suffix; known are {known_suffixes}, "
        f"and {' '.join(CODEC_OF_SUFFIX)} after them",
        hint=f"say what it is: --input-format {'|'.join(FORMATS)}",
    )


def _cannot_open(path: str, source: InputSource | None, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        hint = "check the path of the input" if not is_remote(path) else hint_for(path)
        return InputError(f"{path} does not exist", hint=hint)
    is_damaged = source is not None and source.remote is None and source.codec is not None
    if source is not None and is_damaged and not getattr(error, "errno", None):
        return InputError(
            f"{path} is not readable {source.codec} data: {one_line(error)}",
            hint="it was cut or damaged; make it again",
        )
    return InputError(f"{path} cannot be opened: {one_line(error)}", hint=hint_for(path))
