"""The stores that tables are tried on: memory, and a real S3 server behind a line that breaks."""

from collections.abc import Iterator

import pytest

from penstock.core.clock import new_token
from penstock.state.storage.urls import open_store
from scripts.servers.fault_proxy import FaultPlan, FaultProxy
from scripts.servers.s3 import BUCKET
from tests.unit.state.tables.table_cluster import TableCluster


@pytest.fixture(scope="session")
def broken_line(request: pytest.FixtureRequest) -> Iterator[FaultProxy]:
    """A line to the real server on which everything can happen to every request."""
    server = request.getfixturevalue("s3_server")
    with FaultProxy(server.port, FaultPlan(seed=3, rate=0.01)) as proxy:
        yield proxy


@pytest.fixture(
    autouse=True,
    params=[
        "memory",
        pytest.param("s3-behind-a-broken-line", marks=[pytest.mark.s3, pytest.mark.slow]),
    ],
)
def _store_of_clusters(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.param == "memory":
        return
    endpoint = request.getfixturevalue("broken_line").endpoint
    options = request.getfixturevalue("s3_server").options(endpoint)
    monkeypatch.setattr(
        TableCluster,
        "new_store",
        lambda: open_store(f"s3://{BUCKET}/{new_token()}", **options),
    )
