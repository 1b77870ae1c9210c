"""Compressed inputs: which they are, and a stream of what they hold.

Knows gzip and zstandard by their first bytes and their suffixes; Arrow decompresses, several gzip
members or zstandard frames after one another included. Text that nanobatch reads cannot begin
with either magic number, so a file is recognised whatever its name.
"""

import io
from typing import Literal

import pyarrow as pa

from nanobatch.io.byte_reader import ByteReader

Codec = Literal["gzip", "zstd"]

CODEC_OF_SUFFIX: dict[str, Codec] = {".gz": "gzip", ".zst": "zstd"}
PORTION_BYTES = 1 << 14
"""Most bytes of a compressed file that are taken at once."""

_MAGIC: dict[Codec, tuple[bytes, ...]] = {
    "gzip": (b"\x1f\x8b",),
    # A frame, or one of the sixteen kinds of frame to be skipped, which pzstd begins with.
    "zstd": (b"\x28\xb5\x2f\xfd", *(bytes([kind]) + b"\x2a\x4d\x18" for kind in range(0x50, 0x60))),
}


def codec_of_content(head: bytes) -> Codec | None:
    """Return how a file is compressed that begins with these bytes, or None if it is not."""
    for codec, starts in _MAGIC.items():
        if head.startswith(starts):
            return codec
    return None


def codec_of_name(name: str) -> Codec | None:
    """Return how a file is compressed by its suffix, or None if no suffix says it is."""
    for suffix, codec in CODEC_OF_SUFFIX.items():
        if name.lower().endswith(suffix):
            return codec
    return None


def without_codec_suffix(name: str) -> str:
    """Return a file's name without a last `.gz` or `.zst`."""
    for suffix in CODEC_OF_SUFFIX:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return name


class DecompressingReader:
    """The bytes that a compressed file holds; a `ByteReader`. Memory is bounded.

    Args:
        compressed: The file's own bytes, from their start; closed together with the reader.
        codec: How it is compressed.
    """

    def __init__(self, compressed: ByteReader, codec: Codec) -> None:
        self._portions = _Portions(compressed)
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._portions, mode="r"), codec)

    def read(self, size: int, /) -> bytes:
        """Return at least one and at most `size` bytes, or b"" at the end.

        Raises:
            OSError: Reading failed, or what is compressed is cut or damaged.
        """
        chunk: bytes = self._stream.read(size)
        return chunk

    def tell(self) -> int:
        """Return how many bytes of the file were taken, as it is on disk."""
        return self._portions.tell()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        self._portions.close()


class _Portions(io.RawIOBase):
    """A file that gives little at a time: Arrow would take a megabyte, and progress go by it."""

    def __init__(self, compressed: ByteReader) -> None:
        super().__init__()
        self._compressed = compressed

    def read(self, size: int = -1, /) -> bytes:
        return self._compressed.read(min(size, PORTION_BYTES))

    def tell(self) -> int:
        return self._compressed.tell()

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._compressed.close()
        super().close()
