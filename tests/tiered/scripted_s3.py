"""A server with the parts of the S3 API that readers use, in memory: any keys, also such as no
client of a file system could write, and answers that a test chooses."""

from __future__ import annotations

import html
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ledgermq.storage.tiered.s3 import S3ObjectStore, S3Place
from tests.tiered.s3_servers import BUCKET, write_credentials

Answer = tuple[int, bytes]


def refusal(status: int, code: str, message: str) -> Answer:
    text = (
        '<?xml version="1.0"'
        f' encoding="UTF-8"?><Error><Code>{code}</Code><Message>{message}</Message><RequestId>r</RequestId></Error>'
    )
    return status, text.encode()


@dataclass
class ScriptedS3:
    """Objects by key, and what is answered instead, if anything. `place` needs `credentials`."""

    directory: Path
    objects: dict[str, bytes] = field(default_factory=dict)
    instead: Callable[[str], Answer | None] = lambda key: None
    endpoint: str = ""

    def place(self, prefix: str = "", ca_file: str = "") -> S3Place:
        credentials = write_credentials(self.directory / "credentials")
        return S3Place(
            f"s3://{BUCKET}/{prefix}",
            self.endpoint,
            credentials_file=str(credentials),
            timeout_s=5.0,
            ca_file=ca_file,
        )

    def store(self, prefix: str = "", ca_file: str = "") -> S3ObjectStore:
        return S3ObjectStore(self.place(prefix, ca_file))

    def answer(self, key: str, query: dict[str, str]) -> Answer:
        if (instead := self.instead(key)) is not None:
            return instead
        if "list-type" in query:
            return (
                200,
                self._listing(
                    query.get("prefix", ""),
                    query.get("delimiter", ""),
                    query.get("start-after", ""),
                ).encode(),
            )
        return (
            (200, self.objects[key])
            if key in self.objects
            else refusal(404, "NoSuchKey", "there is none")
        )

    def _listing(self, prefix: str, delimiter: str, after: str) -> str:
        keys, folders = [], set()
        for key in sorted(
            each for each in self.objects if each.startswith(prefix) and each > after
        ):
            name, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            folders.add(f"{prefix}{name}/") if slash else keys.append(key)
        when = "<LastModified>2026-11-28T00:00:00.000Z</LastModified><ETag>e</ETag>"
        objects = [
            f"<Contents><Key>{html.escape(key)}</Key>{when}<Size>{len(self.objects[key])}</Size></Contents>"
            for key in keys
        ]
        objects += [
            f"<CommonPrefixes><Prefix>{html.escape(folder)}</Prefix></CommonPrefixes>"
            for folder in sorted(folders)
        ]
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(objects)}</ListBucketResult>"


@contextmanager
def scripted_s3(
    directory: Path, certificate: tuple[Path, Path] | None = None
) -> Iterator[ScriptedS3]:
    """The server at a free port of this machine; with a certificate and its key over TLS. It ends
    with the block."""
    scripted = ScriptedS3(directory)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def do_GET(self) -> None:
            parts = urllib.parse.urlsplit(self.path)
            key = urllib.parse.unquote(parts.path).removeprefix(f"/{BUCKET}").removeprefix("/")
            status, body = scripted.answer(key, dict(urllib.parse.parse_qsl(parts.query)))
            self.send_response(status)
            for name, value in (
                ("Content-Length", str(len(body))),
                ("ETag", '"e"'),
                ("Last-Modified", "Sat, 28 Nov 2026 00:00:00 GMT"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scripted.endpoint = f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield scripted
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
