"""The files source reads the same from every kind of store."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.files.connector import files
from penstock.core.clock import new_token
from penstock.state.storage.urls import open_store
from penstock.testing import SourceHarness
from tests.builders.files_job import some_rows, to_bytes
from tests.contract.object_stores.s3_server import BUCKET, s3_server


@pytest.fixture(params=["memory", "local", "s3"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A URL to put files below, and the options of its store."""
    if request.param == "s3":
        with s3_server() as options:
            yield f"s3://{BUCKET}/below/{new_token()}", options
    elif request.param == "local":
        yield str(tmp_path), {}
    else:
        yield f"memory:{new_token()}", {}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_files_are_found_read_in_parts_and_discovered(
    place: tuple[str, Mapping[str, Any]], ending: str
) -> None:
    url, options = place
    store = open_store(url, **options)
    for index in range(3):
        rows = some_rows(20 * index, 20 * index + 20)
        store.put(f"day={index}/part.{ending}", to_bytes(ending, rows))
    store.put(f"day=0/_staged.{ending}", b"not yet whole")
    spec = files(
        f"{url}/day=*/*.{ending}", discover="1s", store_options=options
    ).source_spec()

    with SourceHarness(spec, parallelism=2) as harness:
        harness.read(rows=7)
        assert 0 < len(harness.rows()) < 60
        harness.rescale(3)
        for _ in range(5):
            harness.read(rows=7)
        store.put(f"day=3/part.{ending}", to_bytes(ending, some_rows(60, 65)))
        harness.advance("1s")
        harness.read()
        harness.read()

        assert sorted(row["n"] for row in harness.rows()) == list(range(65))
