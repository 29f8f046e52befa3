"""Lines that break: proxies between clients and a server, with faults by a seed and a count.

`FaultProxy` knows HTTP. It forwards requests byte by byte, so signatures stay valid. By a plan it
delays them, answers 503, or cuts the connection, before the server got the request or after: then
the work is done and only the answer is lost. It never strikes more than a few requests in a row,
so a client that tries again gets through. What passes is counted, with or without faults.

`CuttingProxy` knows nothing of what it forwards, such as Kafka's protocol. It cuts a connection
after some bytes, wherever that is.
"""

import random
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from io import BufferedReader
from threading import Lock, Thread
from typing import Self

from typing_extensions import override

from scripts.servers.processes import LOOPBACK


class LineFault(StrEnum):
    """What can happen to one request."""

    REFUSE = "refuse"
    """503, and the server never hears of it."""
    CUT_BEFORE = "cut-before"
    """The connection ends, and the server never hears of it."""
    CUT_AFTER = "cut-after"
    """The server did it; the connection ends without an answer."""
    CUT_WITHIN = "cut-within"
    """The server did it; the connection ends in the middle of the answer."""
    FAIL_AFTER = "fail-after"
    """The server did it; the answer says 503."""


@dataclass
class FaultPlan:
    """Which requests are struck. Drawn from a seed, so a run can be repeated."""

    seed: int
    rate: float
    """The share of requests that are struck."""
    kinds: Collection[LineFault] = tuple(LineFault)
    of_creates: Collection[LineFault] = tuple(LineFault)
    """Those that may strike a request with a condition (If-None-Match), which no client repeats
    by itself."""
    latency_seconds: float = 0.0
    """The longest delay of a request; each is delayed by some part of it."""
    most_in_a_row: int = 2
    """How many requests one after the other can be struck."""
    _in_a_row: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def draw(self, *, is_create: bool = False) -> tuple[float, LineFault | None]:
        """Return the delay of the next request and what happens to it."""
        delay = self._random.uniform(0.0, self.latency_seconds)
        kind = self._random.choice(list(self.of_creates if is_create else self.kinds))
        if self._random.random() >= self.rate or self._in_a_row >= self.most_in_a_row:
            self._in_a_row = 0
            return delay, None
        self._in_a_row += 1
        return delay, kind


@dataclass(frozen=True)
class Traffic:
    """What passed through a proxy since it was made."""

    requests: Counter[str] = field(default_factory=Counter)
    """By method, those that were struck included."""
    sent_bytes: int = 0
    """By clients, with headers."""
    received_bytes: int = 0
    faults: Counter[LineFault] = field(default_factory=Counter)

    def __sub__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.requests - other.requests,
            self.sent_bytes - other.sent_bytes,
            self.received_bytes - other.received_bytes,
            self.faults - other.faults,
        )


_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/xml\r\n"
    b"Content-Length: 39\r\n\r\n<Error><Code>SlowDown</Code></Error>   "
)


class LineProxy:
    """A port of loopback that forwards to another. A context manager; all threads end with it."""

    def __init__(self, target_port: int) -> None:
        self._target = (LOOPBACK, target_port)
        self._lock = Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server((LOOPBACK, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[Thread] = []
        self._is_closed = False
        self._start(self._accept)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what comes until the connection is over, or to be cut."""
        raise NotImplementedError

    def cut_all(self) -> None:
        """Cut every connection at once, as a router that is switched off and on."""
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all connections and threads."""
        with self._lock:
            self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        thread = Thread(target=run, args=arguments, daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_closed:
                    client.close()
                    return
                self._open.add(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        """Connect a client with the server for as long as `_forward` takes."""
        server: socket.socket | None = None
        try:
            server = socket.create_connection(self._target)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open.add(server)
            self._forward(client, server)
        except OSError:
            pass
        finally:
            for end in filter(None, (client, server)):
                with self._lock:
                    self._open.discard(end)
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


class FaultProxy(LineProxy):
    """A proxy for HTTP that strikes requests by a plan."""

    def __init__(self, target_port: int, plan: FaultPlan | None = None) -> None:
        self.plan = plan
        """May be changed at any time; without one nothing is struck."""
        self._traffic = Traffic()
        super().__init__(target_port)

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def traffic(self) -> Traffic:
        """What passed so far."""
        with self._lock:
            seen = self._traffic
            return Traffic(
                seen.requests.copy(),
                seen.sent_bytes,
                seen.received_bytes,
                seen.faults.copy(),
            )

    @override
    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with client.makefile("rb") as asks, server.makefile("rb") as answers:
            while (request := _read_message(asks, None)) and self._pass_on(
                request, client, server, answers
            ):
                pass

    def _pass_on(
        self,
        request: bytes,
        client: socket.socket,
        server: socket.socket,
        answers: BufferedReader,
    ) -> bool:
        """Forward one request by the plan; return whether the connection goes on."""
        method = request.split(b" ", 1)[0].decode("ascii")
        is_create = b"\r\nif-none-match: *" in request.partition(b"\r\n\r\n")[0].lower()
        with self._lock:
            delay, fault = self.plan.draw(is_create=is_create) if self.plan else (0.0, None)
        if delay:
            time.sleep(delay)
        if fault is LineFault.CUT_BEFORE:
            self._count(method, request, b"", fault)
            return False
        answer = _ANSWER
        if fault is not LineFault.REFUSE:
            server.sendall(request)
            answer = _read_message(answers, method) or b""
        if fault is LineFault.CUT_AFTER:
            answer = b""
        elif fault is LineFault.CUT_WITHIN:
            answer = answer[: len(answer) // 2]
        elif fault is LineFault.FAIL_AFTER:
            answer = _ANSWER
        # Counted before the client can go on, so that it finds its own request counted.
        self._count(method, request, answer, fault)
        client.sendall(answer)
        is_cut = fault in {LineFault.CUT_AFTER, LineFault.CUT_WITHIN}
        return bool(answer) and not is_cut

    def _count(
        self, method: str, request: bytes, answer: bytes, fault: LineFault | None
    ) -> None:
        with self._lock:
            seen = self._traffic
            seen.requests[method] += 1
            if fault:
                seen.faults[fault] += 1
            self._traffic = Traffic(
                seen.requests,
                seen.sent_bytes + len(request),
                seen.received_bytes + len(answer),
                seen.faults,
            )


def _read_message(stream: BufferedReader, answer_to: str | None) -> bytes | None:
    """Return one whole request, or one answer to a method; None at the end of the connection."""
    lines = [stream.readline()]
    if not lines[0]:
        return None
    while (line := stream.readline()) not in {b"\r\n", b""}:
        lines.append(line)
    head = b"".join([*lines, b"\r\n"])
    names = dict(line.lower().split(b":", 1) for line in lines[1:])
    status = lines[0].split(b" ", 2)[1] if answer_to else b""
    if answer_to == "HEAD" or status in {b"204", b"304"}:
        return head
    if b"chunked" in names.get(b"transfer-encoding", b""):
        return head + _read_chunks(stream)
    return head + stream.read(int(names.get(b"content-length", b"0")))


def _read_chunks(stream: BufferedReader) -> bytes:
    parts = list[bytes]()
    while True:
        size = stream.readline()
        parts.append(size)
        length = int(size.split(b";")[0], 16)
        parts.append(stream.read(length + 2))
        if length == 0:
            return b"".join(parts)


class CuttingProxy(LineProxy):
    """A proxy for any protocol that cuts connections after some bytes, by a seed.

    For Kafka the broker must advertise this port: start it with the setting
    `advertised.listeners=PLAINTEXT://127.0.0.1:<port>`.
    """

    def __init__(self, target_port: int, *, seed: int, mean_bytes: int, most: int) -> None:
        """Cut after about `mean_bytes` of a connection, `most` connections in all."""
        self.cuts = 0
        """How many connections were cut."""
        self._mean_bytes, self._most = mean_bytes, most
        self._random = random.Random(seed)
        super().__init__(target_port)

    @override
    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with self._lock:
            left = int(self._random.expovariate(1 / self._mean_bytes))
        other_side = {client: server, server: client}
        with selectors.DefaultSelector() as ready:
            for end in other_side:
                ready.register(end, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    end = client if key.fileobj is client else server
                    data = end.recv(65_536)
                    if not data:
                        return
                    if len(data) > left and self._may_cut():
                        other_side[end].sendall(data[:left])
                        return
                    other_side[end].sendall(data)
                    left = max(left - len(data), 0)

    def _may_cut(self) -> bool:
        with self._lock:
            if self.cuts == self._most:
                return False
            self.cuts += 1
            return True
