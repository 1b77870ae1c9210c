"""What readers of lines ask of a source of bytes; files of Python fulfil it as they are."""

from typing import Protocol


class ByteReader(Protocol):
    """A stream of an input's bytes, from its start."""

    def read(self, size: int, /) -> bytes:
        """Return at least one and at most `size` bytes, or b"" at the end."""
        ...

    def tell(self) -> int:
        """Return how many bytes of the input were taken, as it is on disk."""
        ...

    def close(self) -> None:
        """Release what reading holds."""
        ...
