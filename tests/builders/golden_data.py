"""Where the golden cases' data is, and how a pipeline reads its inputs.

The data is not part of the project. It is looked for in the folder that the variable
`PENSTOCK_TEST_GOLDEN` names, else in `../shared/golden` beside the checkout. A folder that
is named must be there, so `.ci/run` names the one beside the checkout if it exists: then
nothing is skipped unnoticed.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.core.clock import DurationLike
from tests.builders.pipeline_operators import schema_of

VARIABLE = "PENSTOCK_TEST_GOLDEN"
ROOT = Path(__file__).resolve().parents[2]
BESIDE = Path("shared") / "golden"

INSTANT = pa.timestamp("us", tz="UTC")
CARS = schema_of(
    timestamp=INSTANT, driver_id=pa.int64(), event_type=pa.string(), location=pa.string()
)
IMPULSE = schema_of(timestamp=INSTANT, counter=pa.int64(), subtask_index=pa.int64())
ORDER = schema_of(
    id=pa.int64(),
    customer_name=pa.string(),
    product_name=pa.string(),
    quantity=pa.int64(),
    price=pa.float64(),
    order_date=pa.int64(),
    status=pa.string(),
)
ORDER_CHANGES = schema_of(
    before=pa.struct(list(ORDER)), after=pa.struct(list(ORDER)), op=pa.string()
)


class GoldenDataMissingError(Exception):
    """The data is not where it was looked for."""


def find_golden_data(environ: Mapping[str, str], root: Path) -> Path | None:
    """Return the folder of the data; None if nobody named one and none is beside `root`."""
    named = environ.get(VARIABLE)
    folder = Path(named) if named else root.parent / BESIDE
    if (folder / "inputs").is_dir() and (folder / "expected").is_dir():
        return folder
    if named:
        raise GoldenDataMissingError(
            f"{VARIABLE} names {named!r}, which has no folders inputs and expected: name "
            "the folder of the golden cases, or unset it to skip them"
        )
    return None


def golden_data() -> Path:
    """Return the folder of the data, or skip the test that asks."""
    folder = find_golden_data(os.environ, ROOT)
    if folder is None:
        pytest.skip(
            f"no golden cases: neither does {VARIABLE} name their folder, nor is there "
            f"{Path('..') / BESIDE} beside the project. Provide one of them"
        )
    return folder


@dataclass(frozen=True, slots=True)
class GoldenInputs:
    """The inputs as streams of one pipeline. Event time is `timestamp` where there is one."""

    pipeline: ps.Pipeline
    folder: Path

    def cars(
        self, name: str = "cars", *, lateness: DurationLike | None = None
    ) -> ps.Stream:
        """Read pickups and dropoffs, slightly out of order."""
        return self._read("cars", name, CARS, event_time="timestamp", lateness=lateness)

    def impulse(
        self, name: str = "impulse", *, lateness: DurationLike | None = None
    ) -> ps.Stream:
        """Read the numbers from 0 to 99, one every 200 ms."""
        return self._read(
            "impulse", name, IMPULSE, event_time="timestamp", lateness=lateness
        )

    def order_changes(self, name: str = "orders") -> ps.Stream:
        """Read Debezium's records of what happened to a table of orders."""
        return self._read("aggregate_updates", name, ORDER_CHANGES)

    def _read(self, file: str, name: str, schema: pa.Schema, **options: Any) -> ps.Stream:
        path = str(self.folder / "inputs" / f"{file}.json")
        return self.pipeline.read(
            name, ps.files(path, format="jsonl", schema=schema), **options
        )
