"""The proxy that breaks lines does what each fault says, counts, and is the same for one seed."""

from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from itertools import pairwise

import pytest

from scripts.servers.fault_proxy import CuttingProxy, FaultPlan, FaultProxy, LineFault
from tests.unit.state.storage.scripted_server import Script, scripted_server


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted_server() as script:
        yield script


def ask(
    port: int, method: str = "GET", body: bytes | None = None
) -> tuple[int, bytes] | None:
    """Return status and body, or None if the connection broke."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, "/some/path", body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (HTTPException, OSError):
        return None
    finally:
        connection.close()


def port_of(script: Script) -> int:
    return int(script.endpoint.rpartition(":")[2])


@pytest.mark.parametrize(
    ("fault", "was_asked", "status"),
    [
        (LineFault.REFUSE, False, 503),
        (LineFault.CUT_BEFORE, False, None),
        (LineFault.CUT_AFTER, True, None),
        (LineFault.CUT_WITHIN, True, None),
        (LineFault.FAIL_AFTER, True, 503),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_each_fault_reaches_the_server_or_not_and_tells_the_client(
    script: Script, fault: LineFault, was_asked: bool, status: int | None, method: str
) -> None:
    script.answers = [(200, "x" * 1000)]
    plan = FaultPlan(seed=1, rate=1.0, kinds=[fault], most_in_a_row=1)
    with FaultProxy(port_of(script), plan) as proxy:
        answer = ask(proxy.port, method, b"body" if method == "PUT" else None)
        assert (answer and answer[0]) == status
        assert len(script.requests) == was_asked
        assert proxy.traffic.faults == {fault: 1}
        # The next one gets through, because only one in a row is struck.
        script.answers = [(200, "here")]
        assert ask(proxy.port) == (200, b"here")


def test_without_a_plan_all_passes_and_is_counted(script: Script) -> None:
    script.answers = [(200, "x" * 1000), (404, "none"), (200, "")]
    with FaultProxy(port_of(script)) as proxy:
        assert ask(proxy.port, "PUT", b"y" * 5000) == (200, b"x" * 1000)
        before = proxy.traffic
        assert ask(proxy.port) == (404, b"none")
        assert ask(proxy.port, "HEAD") == (200, b"")
        assert proxy.traffic.requests == {"PUT": 1, "GET": 1, "HEAD": 1}
        assert proxy.traffic.sent_bytes > 5000
        assert (proxy.traffic - before).requests == {"GET": 1, "HEAD": 1}
        assert (proxy.traffic - before).received_bytes < 1000
        assert before.received_bytes > 1000
    assert script.requests == [
        *("PUT /some/path", "GET /some/path", "HEAD /some/path"),
    ]


def test_a_plan_is_the_same_for_one_seed_and_bounded() -> None:
    def drawn(seed: int) -> list[tuple[float, LineFault | None]]:
        plan = FaultPlan(seed, rate=0.5, latency_seconds=0.1, of_creates=[LineFault.REFUSE])
        return [plan.draw(is_create=number % 2 == 0) for number in range(400)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert all(0 <= delay <= 0.1 for delay, _ in drawn(1))
    faults = [fault for _, fault in drawn(1)]
    assert set(faults[1::2]) == {*LineFault, None}
    assert set(faults[0::2]) == {LineFault.REFUSE, None}
    assert not any(a and b and c for (a, b), (_, c) in pairwise(pairwise(faults)))


def test_all_connections_can_be_cut_at_once(script: Script) -> None:
    with FaultProxy(port_of(script)) as proxy:
        connection = HTTPConnection("127.0.0.1", proxy.port, timeout=30)
        connection.request("GET", "/")
        connection.getresponse().read()
        proxy.cut_all()
        with pytest.raises((HTTPException, OSError)):  # noqa: PT012 - one of them fails
            connection.request("GET", "/")
            connection.getresponse().read()
        connection.close()
        assert ask(proxy.port) == (200, b"")


def test_a_line_of_any_protocol_is_cut_after_some_bytes_and_so_often_only(
    script: Script,
) -> None:
    def bodies(seed: int) -> list[int | None]:
        with CuttingProxy(port_of(script), seed=seed, mean_bytes=3_000, most=3) as proxy:
            script.answers = [(200, "x" * 2_000)] * 30
            answers = [ask(proxy.port) for _ in range(20)]
            assert proxy.cuts == 3
        return [answer and len(answer[1]) for answer in answers]

    assert bodies(1) == bodies(1) != bodies(2)
    assert bodies(1).count(None) == 3
    assert set(bodies(1)) == {None, 2_000}
