r"""Physical lines of a byte stream, split on `\n` and nothing else.

Knows nothing of what a line holds: `\r`, U+2028, U+2029 and U+0085 are ordinary bytes here,
where `str.splitlines` would cut a JSON string in two.
"""

from collections.abc import Iterator
from contextlib import closing

from nanobatch.errors import InputError
from nanobatch.io.input_source import InputSource, read_failure

CHUNK_BYTES = 1 << 18

UTF8_BOM = b"\xef\xbb\xbf"
_FOREIGN_STARTS = (
    (b"\xff\xfe", "UTF-16 or UTF-32 text", "convert it: iconv -t UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"),
    (b"\x00\x00\xfe\xff", "UTF-32 text", "convert it: iconv -f UTF-32 -t UTF-8"),
    (b"{\x00", "UTF-16 text", "convert it: iconv -f UTF-16LE -t UTF-8"),
    (b"\x00{", "UTF-16 text", "convert it: iconv -f UTF-16BE -t UTF-8"),
    (b"\x1f\x8b", "gzip data", "pipe it in: zcat FILE | nanobatch run -"),
    (b"\x28\xb5\x2f\xfd", "zstandard data", "pipe it in: zstdcat FILE | nanobatch run -"),
    (b"PAR1", "a Parquet file", "use --input-format parquet"),
)


def require_utf8_text(source: InputSource, head: bytes) -> None:
    """Check that an input does not start as some other encoding or container does.

    Raises:
        InputError: The first bytes are those of UTF-16, UTF-32, gzip, zstandard or Parquet.
    """
    for start, kind, hint in _FOREIGN_STARTS:
        if head.startswith(start):
            raise InputError(f"{source.name} is {kind}, not UTF-8 {source.format}", hint=hint)


class LineReader:
    r"""The lines of an input, each without its `\n`, also a last one without. To be read once.

    Memory is bounded by one chunk and the longest line. A line is there as soon as its end arrived,
    so a pipe's rows do not wait for a full chunk.

    Attributes:
        num_bytes_read: Bytes of the input taken so far, as it is on disk.
    """

    def __init__(self, source: InputSource) -> None:
        self._source = source
        self.num_bytes_read = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield line by line; see `blocks`."""
        for lines in self.blocks():
            yield from lines

    def blocks(self) -> Iterator[list[bytes]]:
        """Yield lines, at least one, as chunks of the input brought them.

        Raises:
            InputError: The input turns out not to be UTF-8 text (standard input only: files were
                sniffed before).
            InputReadError: Reading failed, or the input changed its length meanwhile.
        """
        parts: list[bytes] = []
        for chunk in self._chunks():
            first, *rest = chunk.split(b"\n")
            parts.append(first)
            if rest:
                last = rest.pop()
                yield [b"".join(parts), *rest]
                parts = [last]
        self._source.require_unchanged_size(self.num_bytes_read)
        if last := b"".join(parts):
            yield [last]

    def _chunks(self) -> Iterator[bytes]:
        try:
            with closing(self._source.open()) as reader:
                while chunk := reader.read(CHUNK_BYTES):
                    if self.num_bytes_read == 0:
                        require_utf8_text(self._source, chunk)
                    self.num_bytes_read = reader.tell()
                    yield chunk
                self.num_bytes_read = reader.tell()
        except OSError as error:
            raise read_failure(self._source, self.num_bytes_read, error) from error
