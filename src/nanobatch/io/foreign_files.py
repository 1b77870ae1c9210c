"""Third-party file systems of fsspec as Arrow sees them, with failures of one kind.

Knows that every package raises exceptions of its own: whatever they are, they become an OSError
here, so that readers need to know no HTTP library. Nothing is cached on disk.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.fs as pa_fs
from fsspec import AbstractFileSystem


@contextmanager
def failures_as_os_errors() -> Iterator[None]:
    """Turn what third-party code raises within into an OSError with the same text."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(str(error) or type(error).__name__) from error


class ForeignFiles(pa_fs.FSSpecHandler):  # type: ignore[misc]
    """Opens files of an fsspec file system for reading."""

    def __init__(self, filesystem: AbstractFileSystem) -> None:
        super().__init__(filesystem)
        self._filesystem = filesystem

    def get_file_info(self, paths: Sequence[str]) -> list[pa_fs.FileInfo]:
        """Return kind and size of files; one that does not exist is of kind NotFound."""
        with failures_as_os_errors():
            infos: list[pa_fs.FileInfo] = super().get_file_info(paths)
            return infos

    def open_input_stream(self, path: str) -> pa.PythonFile:
        """Open a file to be read in order."""
        return self._open(path)

    def open_input_file(self, path: str) -> pa.PythonFile:
        """Open a file to be read here and there."""
        return self._open(path)

    def _open(self, path: str) -> pa.PythonFile:
        with failures_as_os_errors():
            # What is read is buffered by who reads it; nothing beyond is fetched.
            opened = self._filesystem.open(path, mode="rb", cache_type="none")
        return pa.PythonFile(_ForeignFile(opened), mode="r")


class _ForeignFile(io.RawIOBase):
    """A file whose failures are OSErrors."""

    def __init__(self, opened: io.BufferedIOBase) -> None:
        super().__init__()
        self._opened = opened

    def read(self, size: int = -1, /) -> bytes:
        with failures_as_os_errors():
            return self._opened.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        with failures_as_os_errors():
            return self._opened.seek(offset, whence)

    def tell(self) -> int:
        return self._opened.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._opened.close()
        super().close()
