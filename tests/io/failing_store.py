"""A store of fsspec, `failing://`, whose files fail in their middle while it is told to."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class FailingFiles(MemoryFileSystem):  # type: ignore[misc]
    """Files in memory; raises what no reader knows, as any third-party package may."""

    protocol = "failing"
    fails_at_bytes: int | None = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.replace("failing://", "memory://"))
        return stripped

    def _open(self, path: str, mode: str = "rb", **options: object) -> io.BytesIO:
        if mode == "rb":
            return _FailingFile(self.cat_file(path))
        file: io.BytesIO = super()._open(path, mode, **options)
        return file


class _FailingFile(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        if FailingFiles.fails_at_bytes is not None and self.tell() >= FailingFiles.fails_at_bytes:
            raise KeyError("session expired")
        return super().read(size)


@contextmanager
def failing_store(files: Mapping[str, bytes]) -> Iterator[type[FailingFiles]]:
    """Fill the store and yield it; its `fails_at_bytes` says from where on files fail."""
    fsspec.register_implementation("failing", FailingFiles, clobber=True)
    store = fsspec.filesystem("failing")
    for name, content in files.items():
        store.pipe(name, content)
    try:
        yield FailingFiles
    finally:
        FailingFiles.fails_at_bytes = None
        store.rm("/", recursive=True)
