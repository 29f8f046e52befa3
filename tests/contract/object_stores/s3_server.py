"""An S3 server on loopback for tests: moto, with the atomicity the real one has."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread
from typing import Any
from urllib.request import Request, urlopen

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "contract"


class _QuietHandler(WSGIRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Keep the test output to the tests."""


def _one_at_a_time(app: Callable[..., Any]) -> Callable[..., Any]:
    """Serialise requests: moto looks whether an object exists and writes it in two steps."""
    lock = Lock()

    def serial(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        with lock:
            return app(environ, start_response)

    return serial


@contextmanager
def s3_server() -> Iterator[dict[str, Any]]:
    """Run a server with one empty bucket; yield the options that open it."""
    app = _one_at_a_time(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_QuietHandler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    options = {
        "endpoint": f"http://127.0.0.1:{server.server_port}",
        "region": "us-east-1",
        "access_key_id": "for-tests",
        "secret_access_key": "for-tests-only",
        "allow_http": True,
        "path_style": True,
    }
    try:
        _make_bucket(str(options["endpoint"]))
        yield options
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _make_bucket(endpoint: str) -> None:
    scope = "Credential=for-tests/20250101/us-east-1/s3/aws4_request"
    request = Request(  # noqa: S310 - the address is our own server's
        f"{endpoint}/{BUCKET}",
        method="PUT",
        headers={
            "Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0"
        },
    )
    with urlopen(request) as answer:  # noqa: S310 - the address is our own server's
        assert answer.status == 200
