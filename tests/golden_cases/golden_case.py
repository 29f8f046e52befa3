"""A golden case: its inputs as streams, and its output compared by what it means.

A golden case is a pipeline whose output another engine has computed. The data is not part
of the project. It is looked for in the folder that the variable `PENSTOCK_TEST_GOLDEN` names,
else in `../shared/golden` beside the checkout. A folder that is named must be there, so
`.ci/run` names the one beside the checkout if it exists: then nothing is skipped unnoticed.

Rows of JSON lines are compared without their order. Equal values are equal whatever their
form: 950 is 950.0, and an instant without a zone is in UTC.

To add a case, write the function that builds its pipeline and list it in
`tests/golden_cases/catalog.py`; all modes of both executors (`tests/builders/run_modes.py`) follow
from that:

    def hourly_by_event_type(inputs: GoldenInputs) -> pen.Stream:
        cars = inputs.cars(watermark_delay="1m")
        return cars.key_by("event_type").…          # columns as in expected/

    GoldenCase(
        "hourly_by_event_type",                     # of expected/{name}.json
        hourly_by_event_type,
        instants=["hour"],                          # compared as instants, not as text
    )

The function returns the stream whose rows are the expected ones; the framework puts the sink
behind it. Stateful steps need names, and the same ones in every call: the job is stopped,
killed and restored with pipelines that are built anew. A changelog is a stream of `before`,
`after` and `op`, and `fold_by` names its key: then the tables it leads to are compared.
`largest_input` is what an epoch's rows are counted by.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.clock import DurationLike
from penstock.state.storage.urls import open_store
from tests.builders.graphs import schema_of

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

    pipeline: pen.Pipeline
    folder: Path

    def cars(
        self, name: str = "cars", *, watermark_delay: DurationLike | None = None
    ) -> pen.Stream:
        """Read pickups and dropoffs, slightly out of order."""
        return self._read(
            "cars", name, CARS, event_time="timestamp", watermark_delay=watermark_delay
        )

    def impulse(
        self, name: str = "impulse", *, watermark_delay: DurationLike | None = None
    ) -> pen.Stream:
        """Read the numbers from 0 to 99, one every 200 ms."""
        return self._read(
            "impulse",
            name,
            IMPULSE,
            event_time="timestamp",
            watermark_delay=watermark_delay,
        )

    def order_changes(self, name: str = "orders") -> pen.Stream:
        """Read Debezium's records of what happened to a table of orders."""
        return self._read("aggregate_updates", name, ORDER_CHANGES)

    def _read(self, file: str, name: str, schema: pa.Schema, **options: Any) -> pen.Stream:
        path = str(self.folder / "inputs" / f"{file}.json")
        return self.pipeline.read(
            name, pen.files(path, format="jsonl", schema=schema), **options
        )


Row: TypeAlias = dict[str, Any]


class BrokenChangelogError(AssertionError):
    """A changelog contradicts itself."""


def parse_lines(text: bytes) -> list[Row]:
    """Return the objects of JSON lines."""
    return [json.loads(line) for line in text.splitlines()]


def fold_changes(changes: Iterable[Row], key: Sequence[str]) -> list[Row]:
    """Return the table that a changelog leads to.

    Each change must fit what the earlier ones have made: `before` is the row as it is, `c`
    comes where there is none, `d` leaves none.
    """
    table: dict[tuple[Any, ...], Row] = {}
    for change in changes:
        before, after = change["before"], change["after"]
        row = after if before is None else before
        if row is None:
            raise BrokenChangelogError(f"a change of nothing: {change}")
        found = tuple(row[column] for column in key)
        if table.get(found) != before:
            raise BrokenChangelogError(f"{found} is {table.get(found)}, but {change}")
        if change["op"] != _op_of(before, after):
            raise BrokenChangelogError(f"the op does not fit: {change}")
        if after is None:
            del table[found]
        else:
            table[found] = after
    return list(table.values())


def _op_of(before: Row | None, after: Row | None) -> str:
    if before is None:
        return "c"
    return "d" if after is None else "u"


def to_multiset(rows: Iterable[Row], instants: Sequence[str] = ()) -> Counter[Hashable]:
    """Return how often each row is there; the columns `instants` are read as instants."""
    return Counter(_frozen(row | _instants_of(row, instants)) for row in rows)


def _instants_of(row: Mapping[str, Any], instants: Sequence[str]) -> Row:
    return {column: _to_instant(row[column]) for column in instants}


def _to_instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    instant = datetime.fromisoformat(text)
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant


def _frozen(value: Any) -> Hashable:
    if isinstance(value, dict):
        return tuple(sorted((name, _frozen(item)) for name, item in value.items()))
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    assert isinstance(value, Hashable)
    return value


SHOWN = 3


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """One row of the table in the README of the data."""

    name: str
    build: Callable[[GoldenInputs], pen.Stream]
    largest_input: Literal["cars", "impulse", "aggregate_updates"] = "cars"
    instants: Sequence[str] = ()
    fold_by: Sequence[str] = ()

    def pipeline(self, output: str, *, parallelism: int) -> pen.Pipeline:
        """Build the job anew, writing JSON lines exactly once to a folder."""
        pipeline = pen.Pipeline(self.name.replace("_", "-"), parallelism=parallelism)
        rows = self.build(GoldenInputs(pipeline, golden_data()))
        rows.write("out", pen.files(output, format="jsonl"))
        return pipeline

    @property
    def row_count(self) -> int:
        """How many rows the largest input has."""
        lines = golden_data() / "inputs" / f"{self.largest_input}.json"
        return lines.read_bytes().count(b"\n")

    def check(self, output: str) -> None:
        """Compare what was committed with what is expected, as text that others would read."""
        store = open_store(output)
        found: list[Row] = []
        for file in pen.committed_files(store):
            text = store.read(file.path)
            assert text is not None, file.path
            found += parse_lines(text)
        expected = parse_lines(
            (golden_data() / "expected" / f"{self.name}.json").read_bytes()
        )
        if self.fold_by:
            found = fold_changes(found, self.fold_by)
            expected = fold_changes(expected, self.fold_by)
        wanted, there = (to_multiset(rows, self.instants) for rows in (expected, found))
        missing, surplus = wanted - there, there - wanted
        if missing or surplus:
            raise AssertionError(
                f"{self.name}: of {wanted.total()} rows {missing.total()} are missing, such "
                f"as {list(missing)[:SHOWN]}, and {surplus.total()} are too many, such as "
                f"{list(surplus)[:SHOWN]}"
            )
