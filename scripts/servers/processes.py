"""Servers as plain processes: started on loopback, waited for, stopped, killed.

A server has a folder with its data, its log and, while it runs, its process id. So any process
that knows the folder can stop it, kill it or start it again, not only the one that started it.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "127.0.0.1"
PATIENCE_SECONDS = 120.0
"""How long a server may take to start: machines with other work are slow."""
POLL_SECONDS = 0.02
_PORTS = range(20_000, 32_000)
"""Below those that systems give to outgoing connections, so that a server that is down for a
moment finds its port free when it comes back."""
_KEEPER = Path(__file__).with_name("keeper.py")


class ServerError(Exception):
    """A server did not do what it was told. The message has the last lines of its log."""


def free_ports(count: int) -> list[int]:
    """Return ports of loopback on which nothing listens."""
    draw, found = random.Random(), list[int]()
    while len(found) < count:
        port = draw.choice(_PORTS)
        with socket.socket() as probe:
            if port not in found and probe.connect_ex((LOOPBACK, port)) != 0:
                found.append(port)
    return found


def wait_until(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Return when the condition holds; `ServerError` if it does not in that time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ServerError(f"waited {seconds:.0f} seconds: {what}")
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class ServerProcess:
    """One program in its folder. Holds nothing that is not in the folder too."""

    name: str
    folder: Path

    def start(self, *command: str, owner: int | None = None) -> None:
        """Start the program; it ends with the owner, which is this process if none is named."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.is_running:
            raise ServerError(f"{self.name} runs already, in {self.folder}")
        subprocess.run(
            [
                *(sys.executable, "-I", "-S", str(_KEEPER)),
                *(str(self.folder), str(owner or os.getpid()), *command),
            ],
            check=True,
        )

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        try:
            return int((self.folder / "pid").read_text(encoding="ascii"))
        except FileNotFoundError:
            return None

    @property
    def is_running(self) -> bool:
        return self.pid is not None

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def wait_ready(self, is_ready: Callable[[], bool]) -> None:
        """Wait until the server answers; if it ends before, show the end of its log."""

        def ready_or_ended() -> bool:
            return is_ready() or (
                self.log.exists() and not self.is_running and self._gone()
            )

        try:
            wait_until(ready_or_ended, "not ready", PATIENCE_SECONDS)
        except ServerError as error:
            raise ServerError(
                f"{self.name} did not start: {error}\n{self.tail()}"
            ) from None
        if not is_ready():
            raise ServerError(f"{self.name} ended while it started:\n{self.tail()}")

    def _gone(self) -> bool:
        """Return whether it is still not running a little later: the keeper starts it first."""
        time.sleep(0.2)
        return not self.is_running

    def wait_listening(self, port: int) -> None:
        """Wait until it accepts connections."""

        def accepts() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex((LOOPBACK, port)) == 0

        self.wait_ready(accepts)

    def kill(self) -> None:
        """kill -9, as a machine that is switched off; returns when it is gone."""
        self._end(signal.SIGKILL, 10.0)

    def stop(self, seconds: float = 30.0) -> None:
        """Ask it to end, and kill it if it does not in that time."""
        try:
            self._end(signal.SIGTERM, seconds)
        except ServerError:
            self.kill()

    def pause(self) -> None:
        """Stop it without ending it: it holds its connections and answers nothing."""
        if pid := self.pid:
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        if pid := self.pid:
            os.kill(pid, signal.SIGCONT)

    def _end(self, how: signal.Signals, seconds: float) -> None:
        if pid := self.pid:
            with suppress(ProcessLookupError):
                os.kill(pid, how)
            wait_until(lambda: not self.is_running, f"{self.name} does not end", seconds)

    def tail(self, lines: int = 30) -> str:
        """Return the last lines of its log."""
        if not self.log.exists():
            return f"(it wrote no log to {self.log})"
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join([f"the end of {self.log}:", *text.splitlines()[-lines:]])
