"""A bucket of Google's in this process: as much of its HTTP interface as tensorstore and gcsfs ask for."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Generator

NAME = "bucket"
_OBJECTS = re.compile(rf"/(?:upload/|download/)?storage/v1/b/{NAME}/o/?(.*)")


class Bucket(ThreadingHTTPServer):
    """Objects by name, each with the number of the write that made it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.uploads: list[str] = []
        self.writes = 1
        self.changing = threading.Lock()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has hung up is no error."""

    def names(self, start: str) -> list[str]:
        """The names of objects that begin so."""
        return sorted(name for name in list(self.objects) if name.startswith(start))


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # which waits 40 ms between the header of an answer and its body

    def do_GET(self) -> None:
        name, options = self.asked()
        bucket = self.bucket
        if name is None:
            self.answer(200, {"name": NAME})
        elif not name:
            self.answer(200, self.listed(options.get("prefix", ""), options.get("delimiter")))
        elif name not in bucket.objects:
            self.answer(404, {"error": {"code": 404, "message": "not found"}})
        elif options.get("alt") == "media":
            self.send_content(*bucket.objects[name])
        else:
            self.answer(200, self.described(name))

    def do_POST(self) -> None:
        name, options = self.asked()
        body, bucket = self.body(), self.bucket
        if name is None:
            self.answer(404, {})
        elif "upload_id" in options:
            self.write(bucket.uploads[int(options["upload_id"])], body, None)
        elif options["uploadType"] == "media":
            self.write(options["name"], body, options.get("ifGenerationMatch"))
        else:
            bucket.uploads.append(options["name"])
            self.answer(200, {}, Location=f"{bucket.address}{self.path}&upload_id={len(bucket.uploads) - 1}")

    def do_DELETE(self) -> None:
        name, _ = self.asked()
        there = self.bucket.objects.pop(name or "", None)
        self.answer(404 if there is None else 204, {})

    @property
    def bucket(self) -> Bucket:
        return cast("Bucket", self.server)

    def asked(self) -> tuple[str | None, dict[str, str]]:
        """The name of an object, empty for the list of them, None for the bucket; and the options."""
        url = urlsplit(self.path)
        found = _OBJECTS.fullmatch(url.path)
        return unquote(found[1]) if found else None, dict(parse_qsl(url.query))

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def listed(self, start: str, delimiter: str | None) -> dict[str, Any]:
        names, folders = self.bucket.names(start), dict[str, None]()
        if delimiter:
            within = {name: name[len(start) :].partition(delimiter) for name in names}
            folders = {start + head + delimiter: None for head, found, _ in within.values() if found}
            names = [name for name, (_, found, _) in within.items() if not found]
        return {"items": [self.described(name) for name in names], "prefixes": list(folders)}

    def described(self, name: str) -> dict[str, str]:
        data, write = self.bucket.objects[name]
        time = "2026-01-01T00:00:00.000Z"
        return {
            "name": name,
            "bucket": NAME,
            "id": f"{NAME}/{name}/{write}",
            "generation": str(write),
            "size": str(len(data)),
            "updated": time,
            "timeCreated": time,
        }

    def write(self, name: str, data: bytes, expected: str | None) -> None:
        bucket = self.bucket
        with bucket.changing:
            if expected is not None and int(expected) != bucket.objects.get(name, (b"", 0))[1]:
                self.answer(412, {"error": {"code": 412, "message": "conditionNotMet"}})
                return
            bucket.writes += 1
            bucket.objects[name] = (data, bucket.writes)
        self.answer(200, self.described(name))

    def send_content(self, data: bytes, write: int) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted is None:
            self.answer(200, data, **{"x-goog-generation": str(write)})
            return
        start = int(wanted[1])
        part = data[start : int(wanted[2]) + 1 if wanted[2] else None]
        place = f"bytes {start}-{start + len(part) - 1}/{len(data)}"
        self.answer(206, part, **{"x-goog-generation": str(write), "Content-Range": place})

    def answer(self, status: int, content: bytes | dict[str, Any], **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        data = b"" if status == 204 else data
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextlib.contextmanager
def serving() -> Generator[Bucket]:
    """A bucket, as long as the block lasts."""
    with Bucket() as bucket:
        thread = threading.Thread(target=bucket.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield bucket
        finally:
            bucket.shutdown()
            thread.join()
