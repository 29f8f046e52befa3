"""An HTTP server that gives scripted answers, however bad, to a storage client."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, Literal, TypeAlias

Answer: TypeAlias = tuple[int, str] | Literal["reset", "close", "silence", "half"]
"""Status and body; or what happens to the connection once the request was read: "half" is the
first half of an answer."""


def s3_error(code: str) -> str:
    """Return the body of an S3 error."""
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"


def azure_batch(status: str) -> str:
    """Return the body of an Azure batch answer with one part, such as `404 Not Found`."""
    lines = (
        *("--batch_1", "Content-Type: application/http", "Content-ID: 0", ""),
        *(f"HTTP/1.1 {status}", "x-ms-request-id: 1", "", "", "--batch_1--", ""),
    )
    return "\r\n".join(lines)


@dataclass
class Script:
    """The answers to come, the requests that came, and the address to send them to."""

    answers: list[Answer] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    headers: list[list[str]] = field(default_factory=list)
    """The names of each request's headers, in lower case."""
    endpoint: str = ""
    over: Event = field(default_factory=Event)

    def clear(self) -> None:
        """Begin a new script."""
        self.answers.clear()
        self.requests.clear()
        self.headers.clear()

    def options(self, **more: Any) -> dict[str, Any]:
        """Return what opens a store on this server that tries everything once."""
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": "AKIAEXAMPLE",
            "secret_access_key": "do-not-tell",
            "allow_http": True,
            "max_retries": 0,
        } | more


@contextmanager
def scripted_server() -> Iterator[Script]:
    """Run the server on loopback; requests beyond the script get an empty 200."""
    script = Script()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:
                self.close_connection = True

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            script.requests.append(f"{self.command} {self.path}")
            script.headers.append([name.lower() for name in self.headers])
            answer: Answer = script.answers.pop(0) if script.answers else (200, "")
            if isinstance(answer, tuple):
                self.reply(*answer)
                return
            self.close_connection = True
            if answer == "reset":
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.connection.close()
            elif answer == "half":
                self.send_response(404)
                self.send_header("content-length", "100")
                self.end_headers()
                self.wfile.write(b"<Error>")
            elif answer == "silence":
                script.over.wait()

        def reply(self, status: int, body: str) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", '"e"')
            if body.startswith("--"):
                boundary = body.partition("\r\n")[0].removeprefix("--")
                self.send_header("content-type", f"multipart/mixed; boundary={boundary}")
            self.send_header("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body.encode())

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer  # noqa: N815 - as the library wants it

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Keep the test output to the tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield script
    finally:
        script.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
