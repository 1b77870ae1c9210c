"""An S3 store of this machine for tests: moto's server, which runs in a thread."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow.fs as pa_fs
import pytest

BUCKET = "bucket"
_VARIABLES = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def s3_store() -> Iterator[str]:
    """Run a store with an empty bucket and point the environment to it; yield its address."""
    server_module = pytest.importorskip("moto.server", reason="moto is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**_VARIABLES, "AWS_ENDPOINT_URL": endpoint}.items():
                patch.setenv(name, value)
            _client().create_dir(BUCKET)
            yield endpoint
    finally:
        server.stop()


def put(objects: Mapping[str, bytes]) -> None:
    """Write objects into the bucket, by key."""
    client = _client()
    for key, content in objects.items():
        with client.open_output_stream(f"{BUCKET}/{key}", compression=None) as stream:
            stream.write(content)


def remove(key: str) -> None:
    """Remove an object from the bucket."""
    _client().delete_file(f"{BUCKET}/{key}")


def _client() -> pa_fs.S3FileSystem:
    return pa_fs.S3FileSystem(
        endpoint_override=os.environ["AWS_ENDPOINT_URL"].removeprefix("http://"),
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )
