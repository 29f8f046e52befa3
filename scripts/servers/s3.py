"""An S3 server on loopback: versitygw over a folder, whose top folders are the buckets."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from scripts.servers.installation import installed
from scripts.servers.processes import LOOPBACK, ServerProcess, free_ports

ACCESS_KEY = "penstock"
SECRET_KEY = "for-loopback-only"
REGION = "us-east-1"
BUCKET = "penstock"


@dataclass(frozen=True)
class S3Server:
    """One server with one bucket. A context manager, so that no process stays."""

    folder: Path
    port: int
    owner: int

    @classmethod
    def start(
        cls, folder: Path, *, port: int | None = None, owner: int | None = None
    ) -> Self:
        """Start a server in an empty folder; returns when it accepts connections.

        It ends with the owner, which is this process if none is named.
        """
        (folder / "buckets" / BUCKET).mkdir(parents=True)
        server = cls(folder.resolve(), port or free_ports(1)[0], owner or os.getpid())
        server.resume()
        described = {"port": server.port, "owner": server.owner}
        (folder / "server.json").write_text(json.dumps(described), encoding="utf-8")
        return server

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Return the server that another process started in this folder."""
        described = json.loads((folder / "server.json").read_text(encoding="utf-8"))
        return cls(folder.resolve(), described["port"], described["owner"])

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def process(self) -> ServerProcess:
        return ServerProcess("S3 server", self.folder)

    def options(self, endpoint: str | None = None) -> dict[str, Any]:
        """Return the options of `open_store` and of `pen.files`; `endpoint` names a proxy."""
        return {
            "endpoint": endpoint or self.endpoint,
            "region": REGION,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "allow_http": True,
            "path_style": True,
        }

    def resume(self) -> None:
        """Start the server again after it was killed, on the same port and objects."""
        self.process.start(
            str(installed("s3") / "bin" / "versitygw"),
            *("--access", ACCESS_KEY, "--secret", SECRET_KEY, "--region", REGION),
            *("--port", f"{LOOPBACK}:{self.port}", "--quiet", "--keep-alive"),
            *("posix", *self._metadata(), str(self.folder / "buckets")),
            owner=self.owner,
        )
        self.process.wait_listening(self.port)

    def _metadata(self) -> list[str]:
        """Keep what belongs to objects beside them where files have no attributes of users."""
        probe = self.folder / "attributes"
        probe.touch()
        try:
            os.setxattr(probe, "user.penstock", b"1")
        except (OSError, AttributeError):  # a file system or a system without them
            sidecar = self.folder / "sidecar"
            sidecar.mkdir(exist_ok=True)
            return ["--sidecar", str(sidecar)]
        return []

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
