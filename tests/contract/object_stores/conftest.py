"""Every store the contract is tried on, each fresh and empty for each test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.clock import new_token
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store
from penstock.testing import FaultyStore
from scripts.servers.fault_proxy import FaultPlan, FaultProxy, LineFault
from scripts.servers.s3 import BUCKET as SERVER_BUCKET
from tests.contract.object_stores.s3_server import BUCKET, s3_server


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, Any]]:
    with s3_server() as options:
        yield options


@pytest.fixture(scope="session")
def broken_line(request: pytest.FixtureRequest) -> Iterator[FaultProxy]:
    """A line to the real server that breaks, but never under a create whose answer counts."""
    server = request.getfixturevalue("s3_server")
    plan = FaultPlan(
        seed=7, rate=0.05, of_creates=[LineFault.REFUSE], latency_seconds=0.004
    )
    with FaultProxy(server.port, plan) as proxy:
        yield proxy


STORES = [
    *("memory", "local", "local-not-durable", "s3", "faulty"),
    pytest.param("s3-server", marks=pytest.mark.s3),
    pytest.param("s3-behind-a-broken-line", marks=[pytest.mark.s3, pytest.mark.slow]),
]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    make: dict[str, Callable[[], ObjectStore]] = {
        "memory": lambda: open_store(f"memory:{new_token()}"),
        "local": lambda: open_store(str(tmp_path / "store")),
        "local-not-durable": lambda: open_store(str(tmp_path / "store"), durable=False),
        "s3": lambda: open_store(
            f"s3://{BUCKET}/below/{new_token()}", **request.getfixturevalue("s3_options")
        ),
        "s3-server": lambda: open_store(
            f"s3://{SERVER_BUCKET}/{new_token()}",
            **request.getfixturevalue("s3_server").options(),
        ),
        "s3-behind-a-broken-line": lambda: open_store(
            f"s3://{SERVER_BUCKET}/{new_token()}",
            **request.getfixturevalue("s3_server").options(
                request.getfixturevalue("broken_line").endpoint
            ),
        ),
        "faulty": lambda: FaultyStore(open_store(f"memory:{new_token()}")),
    }
    return make[request.param]()
