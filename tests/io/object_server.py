"""A server with one object that answers as Google's store and as the Hugging Face hub do.

It runs in a process of its own: Arrow holds Python's lock while it waits for Google's store.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

NAME = "dir/rows.jsonl"
CONTENT = b'{"prompt":"x"}\n' * 20_000


@contextmanager
def object_server() -> Iterator[str]:
    """Run the server and yield its address."""
    command = [sys.executable, "-m", "tests.io.object_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


class Handler(BaseHTTPRequestHandler):
    """Answers for the object, its metadata and the folders above it."""

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        path, query = unquote(place.path), parse_qs(place.query)
        prefix = query.get("prefix", [""])[0]
        google = {"name": NAME, "bucket": "bucket", "size": str(len(CONTENT)), "generation": "1"}
        if path == f"/datasets/user/repo/resolve/main/{NAME}" or query.get("alt") == ["media"]:
            self.answer_content()
        elif path == f"/storage/v1/b/bucket/o/{NAME}":
            self.answer(google)
        elif path == "/storage/v1/b/bucket/o":
            self.answer({"items": [google] if NAME.startswith(prefix) else []})
        elif path == "/api/datasets/user/repo":
            self.answer({"id": "user/repo", "sha": "0" * 40, "siblings": []})
        elif path == "/api/datasets/user/repo/tree/main/dir":
            self.answer([{"type": "file", "path": NAME, "size": len(CONTENT), "oid": "1"}])
        elif path == "/api/datasets/user/repo/tree/main":
            self.answer([{"type": "directory", "path": "dir", "oid": "2"}])
        else:
            self.answer({"error": {"code": 404, "message": "not found"}}, 404)

    def answer(self, found: object, status: int = 200) -> None:
        self.answer_bytes(json.dumps(found).encode(), status)

    def answer_content(self) -> None:
        first, _, last = self.headers.get("Range", "bytes=0-").partition("=")[2].partition("-")
        end = min(int(last) + 1 if last else len(CONTENT), len(CONTENT))
        where = f"bytes {first}-{end - 1}/{len(CONTENT)}"
        self.answer_bytes(CONTENT[int(first) : end], 206, where)

    def answer_bytes(self, body: bytes, status: int, content_range: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status == 404:
            self.send_header("X-Error-Code", "EntryNotFound")
        if content_range is not None:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
