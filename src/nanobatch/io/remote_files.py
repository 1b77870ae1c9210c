"""Inputs that lie elsewhere: `s3://`, `gs://`, `hf://` and whatever fsspec knows.

Knows how each store is reached and how long to try; not what its files hold. `s3://` and `gs://`
go through Arrow, everything else through fsspec (`io.foreign_files`). Files are streamed: none is
copied to disk.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pa_fs
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.arrow import ArrowFSWrapper

from nanobatch.errors import InputError
from nanobatch.io.foreign_files import ForeignFiles, failures_as_os_errors

MIN_FETCH_BYTES = 1 << 16
MAX_FETCH_BYTES = 1 << 22
"""Bytes that a request asks for of a file that is read in order: few first, as a look at its start
needs, then twice as many each time."""

NUM_OPENERS = 16
"""Remote files that are opened at a time: each takes a few requests."""

_CONNECT_TIMEOUT_S = 5.0
_S3_ATTEMPTS = 4  # under ten seconds where nothing answers; the next attempt would add twenty
_GS_RETRY_TIME = timedelta(seconds=10)
_ANONYMOUS = "anonymous@"
_MAX_REASON_CHARS = 300
_HINTS = {
    "s3": "check bucket, key and network, the AWS credentials, AWS_REGION and AWS_ENDPOINT_URL",
    "gs": "check bucket, name and network, and GOOGLE_APPLICATION_CREDENTIALS; "
    "a public bucket is gs://anonymous@BUCKET",
    "hf": "check repository, path and network, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A place in a remote store: a file, a folder, or a pattern of them.

    Attributes:
        url: As it was given, or as a listing named it.
        path: The store's own name for it.
        filesystem: Opens files of the store.
        listing: Lists folders and finds patterns.
    """

    url: str
    path: str
    filesystem: pa_fs.FileSystem
    listing: AbstractFileSystem

    def at(self, path: str) -> "RemoteFile":
        """Return another place in the same store, by the store's own name."""
        scheme = scheme_of(self.url)
        is_named_by_url = path.startswith(f"{scheme}://")
        url = path if is_named_by_url else f"{scheme}://{path.lstrip('/')}"
        return RemoteFile(url=url, path=path, filesystem=self.filesystem, listing=self.listing)

    def kind_and_size(self) -> tuple[pa_fs.FileType, int | None]:
        """Return whether it is a file, a folder or nothing, and the bytes of a file.

        Raises:
            OSError: The store cannot be asked.
        """
        found = self.filesystem.get_file_info(self.path)
        return found.type, found.size

    def open_stream(self) -> pa.NativeFile:
        """Open a file to be read in order; each read is a request.

        Raises:
            OSError: It cannot be opened.
        """
        return self.filesystem.open_input_stream(self.path, compression=None, buffer_size=0)

    def open_file(self) -> pa.NativeFile:
        """Open a file to be read here and there; each read is a request.

        Raises:
            OSError: It cannot be opened.
        """
        return self.filesystem.open_input_file(self.path)


class RemoteReader:
    """The bytes of a remote file in order; a `ByteReader`. Memory is bounded by one request.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, file: RemoteFile) -> None:
        self._stream = file.open_stream()
        self._fetched = memoryview(b"")
        self._fetch_bytes = MIN_FETCH_BYTES
        self._num_bytes_taken = 0

    def read(self, size: int, /) -> bytes:
        """Return at least one and at most `size` bytes, or b"" at the end.

        Raises:
            OSError: The store failed.
        """
        if not self._fetched:
            self._fetched = memoryview(self._stream.read(self._fetch_bytes))
            self._fetch_bytes = min(2 * self._fetch_bytes, MAX_FETCH_BYTES)
        portion, self._fetched = bytes(self._fetched[:size]), self._fetched[size:]
        self._num_bytes_taken += len(portion)
        return portion

    def tell(self) -> int:
        """Return how many bytes of the file were taken."""
        return self._num_bytes_taken

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def is_remote(path: str) -> bool:
    """Return whether a path is the URL of something that is no local file."""
    return "://" in path and scheme_of(path) != "file"


def scheme_of(url: str) -> str:
    """Return what stands before `://`, in lower case."""
    return url.partition("://")[0].lower()


def locate(url: str) -> RemoteFile:
    """Return the place that a URL names; what is there is not looked at.

    Raises:
        InputError: Nothing here knows the scheme, or its package is not installed.
        OSError: The store cannot be reached.
    """
    scheme, rest = scheme_of(url), url.partition("://")[2]
    if scheme == "s3":
        return _arrow_place(url, rest, _s3(rest.partition("/")[0]))
    if scheme == "gs":
        is_anonymous = rest.startswith(_ANONYMOUS)
        filesystem = _gs(os.environ.get("STORAGE_EMULATOR_HOST"), is_anonymous)
        return _arrow_place(url, rest.removeprefix(_ANONYMOUS), filesystem)
    try:
        with failures_as_os_errors():
            return _foreign_place(url)
    except OSError as error:
        raise _unknown_scheme(url, error.__cause__) or error from error


def hint_for(path: str) -> str:
    """Return what to check where a file, here or in a store, cannot be opened."""
    if not is_remote(path):
        return "check its permissions"
    scheme = scheme_of(path)
    return _HINTS.get(scheme, f"check the path, the network and the credentials of {scheme}")


def one_line(error: Exception) -> str:
    """Return what an error says on one line of bounded length."""
    is_named = isinstance(error, OSError) and error.errno
    reason = os.strerror(error.errno) if is_named else str(error)  # type: ignore[attr-defined]
    text = " ".join(reason.split())
    return text if len(text) <= _MAX_REASON_CHARS else f"{text[:_MAX_REASON_CHARS]}…"


def _arrow_place(url: str, path: str, filesystem: pa_fs.FileSystem) -> RemoteFile:
    # Arrow takes no name that ends with a slash.
    return RemoteFile(
        url=url, path=path.rstrip("/"), filesystem=filesystem, listing=ArrowFSWrapper(filesystem)
    )


def _foreign_place(url: str) -> RemoteFile:
    listing, path = url_to_fs(url)
    filesystem = pa_fs.PyFileSystem(ForeignFiles(listing))
    return RemoteFile(url=url, path=path, filesystem=filesystem, listing=listing)


def _unknown_scheme(url: str, cause: BaseException | None) -> InputError | None:
    if isinstance(cause, ImportError):
        return InputError(
            f"{url} cannot be read: {cause}", hint="install that into the same environment"
        )
    if isinstance(cause, ValueError):
        return InputError(
            f"{url} has an unknown scheme: {cause}",
            hint="known are s3:// gs:// hf:// and those of installed fsspec packages",
        )
    return None


def _s3(bucket: str) -> pa_fs.FileSystem:
    # Arrow heeds these variables only for a file system that it makes from a URI, and such a
    # one cannot be told how long to try.
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None:
        region = "us-east-1" if endpoint else _bucket_region(bucket)
    return _s3_filesystem(endpoint, region)


@cache
def _bucket_region(bucket: str) -> str:
    region: str = pa_fs.resolve_s3_region(bucket)
    return region


@cache
def _s3_filesystem(endpoint: str | None, region: str) -> pa_fs.FileSystem:
    parts = urlsplit(endpoint or "")
    return pa_fs.S3FileSystem(
        region=region,
        scheme=parts.scheme or None,
        endpoint_override=parts._replace(scheme="").geturl().strip("/") or None,
        connect_timeout=_CONNECT_TIMEOUT_S,
        retry_strategy=pa_fs.AwsStandardS3RetryStrategy(max_attempts=_S3_ATTEMPTS),
    )


@cache
def _gs(emulator: str | None, is_anonymous: bool) -> pa_fs.FileSystem:
    scheme, _, host = (emulator or "").rpartition("://")
    return pa_fs.GcsFileSystem(
        anonymous=is_anonymous or emulator is not None,
        scheme=(scheme or "http") if emulator else None,
        endpoint_override=host or None,
        retry_time_limit=_GS_RETRY_TIME,
    )
