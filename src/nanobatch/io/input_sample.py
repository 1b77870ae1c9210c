"""By what an input is known again: its name, its size, and a hash of blocks spread over it.

Knows files as they are on disk or in a store, compressed or not; what they hold is nothing here.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import xxhash

from nanobatch.config import KIB, MIB
from nanobatch.errors import InputError
from nanobatch.io.input_source import STDIN, InputSource
from nanobatch.io.remote_files import NUM_OPENERS, hint_for, one_line

_NUM_SAMPLED_BLOCKS = 16
_SAMPLED_BLOCK_BYTES = 64 * KIB


def source_samples(sources: Sequence[InputSource]) -> list[dict[str, object]]:
    """Return by what each input is known again; see `source_sample`. Stores are asked at once."""
    if any(source.remote is not None for source in sources[1:]):
        with ThreadPoolExecutor(NUM_OPENERS) as openers:
            return list(openers.map(source_sample, sources))
    return [source_sample(source) for source in sources]


def source_sample(source: InputSource) -> dict[str, object]:
    """Return by what an input is known again: `name` without folders, `bytes` and `sample`.

    Standard input is known by its name only; what it holds is checked as it comes.

    Raises:
        InputError: The input cannot be read any more.
    """
    if source.spool is not None:
        return {"name": STDIN}
    num_bytes = source.size_bytes or 0
    try:
        with source.open_file() as file:
            sample = _sampled(file, num_bytes)
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"{source.name} cannot be read: {one_line(error)}", hint=hint_for(source.path)
        ) from error
    return {"name": source.path.rpartition("/")[2], "bytes": num_bytes, "sample": sample}


def sampled_hash(path: Path) -> str:
    """Return a hash of a file's size and of blocks spread over it (all of it up to 1 MiB).

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        return _sampled(file, path.stat().st_size)


def _sampled(file: BinaryIO | pa.NativeFile, num_bytes: int) -> str:
    digest = xxhash.xxh3_128(str(num_bytes).encode())
    if num_bytes <= MIB:
        digest.update(file.read())
    else:
        last = num_bytes - _SAMPLED_BLOCK_BYTES
        for index in range(_NUM_SAMPLED_BLOCKS):
            file.seek(last * index // (_NUM_SAMPLED_BLOCKS - 1))
            digest.update(file.read(_SAMPLED_BLOCK_BYTES))
    return digest.hexdigest()
