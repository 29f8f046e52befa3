"""Every store the contract is tried on, each fresh and empty for each test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.clock import new_token
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store
from penstock.testing import FaultyStore
from tests.contract.object_stores.s3_server import BUCKET, s3_server


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, Any]]:
    with s3_server() as options:
        yield options


@pytest.fixture(params=["memory", "local", "local-not-durable", "s3", "faulty"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    make: dict[str, Callable[[], ObjectStore]] = {
        "memory": lambda: open_store(f"memory:{new_token()}"),
        "local": lambda: open_store(str(tmp_path / "store")),
        "local-not-durable": lambda: open_store(str(tmp_path / "store"), durable=False),
        "s3": lambda: open_store(
            f"s3://{BUCKET}/below/{new_token()}", **request.getfixturevalue("s3_options")
        ),
        "faulty": lambda: FaultyStore(open_store(f"memory:{new_token()}")),
    }
    return make[request.param]()
