"""Everything a user can put in state comes back: any type, through files, rescale and compaction."""

import dataclasses
import datetime as dt
import enum
import math
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from penstock.core.ids import Subtask
from penstock.core.key_hash import check_key_type, hash_keys, owners_of
from penstock.errors import SchemaError
from penstock.state.tables.specs import (
    TableSpec,
    global_table,
    keyed_table,
    time_keyed_table,
)
from penstock.state.tables.table_manager import TableManager
from tests.builders.arrow_types import columns, spelled
from tests.builders.state_job import StateJob

OP = "op"
FEW = settings(max_examples=max(20, settings.default.max_examples // 2))  # type: ignore[union-attr]  # a profile is loaded
TIME: Any = pa.timestamp("us")


def stages(job: StateJob, touch: Callable[[], None]) -> Iterator[str]:
    """Lead a job with one epoch of state through all that can happen to files."""
    yield "warm"
    job.start()
    yield "restored"
    job.start(parallelism=3)
    yield "restored at another parallelism"
    touch()
    for index in range(job.parallelism):
        job.compact(OP, index)
    job.run_epoch()
    yield "compacted"
    job.start(parallelism=2)
    yield "compacted and restored"


class Rows:
    """Rows numbered by their place, in a table keyed by number or by the value itself."""

    def __init__(self, spec: TableSpec, batch: pa.RecordBatch, keys: list[str]) -> None:
        self.spec = spec
        self.batch = batch
        self.keys = keys
        self.job = StateJob({OP: [spec]}, parallelism=2)

    def routed(self) -> Iterator[tuple[TableManager, pa.RecordBatch]]:
        """Yield row by row, each with the tables of the subtask that owns it.

        Rows are cut out, not gathered: Arrow cannot gather views.
        """
        columns: list[Any] = [self.batch.column(name) for name in self.keys]
        hashes = hash_keys(columns, row_count=self.batch.num_rows)
        managers = self.job.open_subtasks()
        for place, owner in enumerate(owners_of(hashes, self.job.parallelism).tolist()):
            yield managers[OP, owner], self.batch.slice(place, 1)

    def write(self, put: Callable[[TableManager, pa.RecordBatch], None]) -> None:
        for manager, row in self.routed():
            put(manager, row)
        self.job.publish(self.job.checkpoint_subtasks())

    def read(self, get: Callable[[TableManager, pa.RecordBatch], Any]) -> list[str]:
        """Look every row up and write the found values out in the order of the batch."""
        found = []
        for manager, row in self.routed():
            column = get(manager, row)
            assert column.type.equals(self.batch.schema.field("value").type)
            found += spelled(column)
        return found


def declared_or_rejected(declare: Callable[[], TableSpec]) -> TableSpec:
    """A type that cannot be stored is refused when it is declared, and no case to try."""
    try:
        return declare()
    except SchemaError:
        reject()


def numbered(column: Any, *, with_time: bool = False) -> pa.RecordBatch:
    columns = {"number": pa.array(range(len(column)), pa.int64()), "value": column}
    if with_time:
        columns["time"] = pa.array([0] * len(column), TIME)
    return pa.record_batch(columns)


@pytest.mark.slow
@FEW
@given(column=columns())
def test_a_keyed_table_gives_back_any_value(column: Any) -> None:
    batch = numbered(column)
    spec = declared_or_rejected(
        lambda: keyed_table("t", batch.schema, key_columns=["number"])
    )
    rows = Rows(spec, batch, ["number"])
    rows.write(lambda manager, part: manager.get_keyed_state("t").put(part))
    for stage in stages(rows.job, lambda: delete_a_missing_row(rows)):
        found = rows.read(
            lambda manager, part: (
                manager.get_keyed_state("t").get(part).rows.column("value")
            )
        )
        assert found == spelled(column), stage


def delete_a_missing_row(rows: Rows) -> None:
    rows.batch, batch = pa.record_batch({"number": pa.array([999], pa.int64())}), rows.batch
    rows.write(lambda manager, part: manager.get_keyed_state("t").delete(part))
    rows.batch = batch


@pytest.mark.slow
@FEW
@given(column=columns())
def test_a_time_keyed_table_gives_back_any_value(column: Any) -> None:
    batch = numbered(column, with_time=True)
    spec = declared_or_rejected(
        lambda: time_keyed_table(
            "t", batch.schema, key_columns=["number"], time_column="time"
        )
    )
    rows = Rows(spec, batch, ["number"])

    def insert(manager: TableManager, part: pa.RecordBatch) -> None:
        manager.get_time_keyed_state("t").insert(part, None)

    def first(manager: TableManager, row: pa.RecordBatch) -> Any:
        grouped = manager.get_key_time_state("t").get(row)
        return grouped.rows_of(0).column("value").slice(0, 1)

    rows.write(insert)
    for stage in stages(rows.job, lambda: rows.write(insert)):
        assert rows.read(first) == spelled(column), stage


@pytest.mark.slow
@FEW
@given(column=columns())
def test_any_value_that_can_be_hashed_can_be_a_key(column: Any) -> None:
    try:
        check_key_type(column.type)
    except SchemaError:
        reject()
    hashes = hash_keys([column], row_count=len(column)).tolist()
    distinct = sorted({hashed: place for place, hashed in enumerate(hashes)}.values())
    keys = pa.concat_arrays([column.slice(0, 0), *(column.slice(n, 1) for n in distinct)])
    batch = pa.record_batch({"key": keys, "value": pa.array(range(len(keys)), pa.int64())})
    rows = Rows(keyed_table("t", batch.schema, key_columns=["key"]), batch, ["key"])
    rows.write(lambda manager, part: manager.get_keyed_state("t").put(part))
    for stage in stages(rows.job, rows.job.run_epoch):
        found = rows.read(
            lambda manager, part: (
                manager.get_keyed_state("t").get(part).rows.column("value")
            )
        )
        assert found == [str(number) for number in range(len(keys))], stage


@pytest.mark.slow
@FEW
@given(column=columns())
def test_columns_may_change_their_order_and_memory_layout(column: Any) -> None:
    """Tables declared by hand, or made by another library, need no migration for that."""
    layouts: Any = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    value = layouts.get(column.type, column.type)
    before = numbered(column, with_time=True)
    other = pa.schema([("time", TIME), ("value", value), ("number", pa.int64())])
    first, second = (
        declared_or_rejected(lambda s=s: keyed_table("t", s, key_columns=["number"]))  # type: ignore[misc]  # a default argument
        for s in (before.schema, other)
    )
    rows = Rows(first, before, ["number"])
    rows.write(lambda manager, part: manager.get_keyed_state("t").put(part))
    rows.job.start(specs={OP: [second]})
    rows.batch = pa.record_batch(
        [
            before.column("time"),
            column if value == column.type else column.cast(value),
            before.column("number"),
        ],
        schema=other,
    )
    for stage in stages(rows.job, rows.job.run_epoch):
        found = rows.read(
            lambda manager, part: (
                manager.get_keyed_state("t").get(part).rows.column("value")
            )
        )
        assert found == spelled(column), stage


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: float
    label: str | None = None
    colors: list[Color] = dataclasses.field(default_factory=list)


class Everything(msgspec.Struct):
    whole: int
    number: float
    text: str
    data: bytes
    flag: bool
    nothing: None
    day: dt.date
    moment: dt.datetime
    span: dt.timedelta
    amount: Decimal
    identity: uuid.UUID
    color: Color
    point: Point
    by_name: dict[str, list[Point]]
    pair: tuple[int, str]
    unique: frozenset[int]


points = st.builds(
    Point,
    st.floats(allow_nan=False),
    st.none() | st.text(),
    st.lists(st.sampled_from(Color)),
)
everything = st.builds(
    Everything,
    whole=st.integers(-(2**63), 2**64 - 1),
    number=st.floats(allow_nan=False),
    text=st.text(),
    data=st.binary(),
    flag=st.booleans(),
    nothing=st.none(),
    day=st.dates(),
    moment=st.datetimes(timezones=st.just(dt.UTC)),
    span=st.timedeltas(dt.timedelta(days=-(10**6)), dt.timedelta(days=10**6)),
    amount=st.decimals(
        allow_nan=False, allow_infinity=False, places=4, min_value=-1e9, max_value=1e9
    ),
    identity=st.uuids(),
    color=st.sampled_from(Color),
    point=points,
    by_name=st.dictionaries(st.text(), st.lists(points, max_size=2), max_size=2),
    pair=st.tuples(st.integers(0, 9), st.text()),
    unique=st.frozensets(st.integers(-5, 5)),
)
global_keys = st.one_of(st.text(), st.integers(-(2**63), 2**64 - 1))


def check_global(key_type: Any, value_type: Any, contents: dict[Any, Any]) -> None:
    """Insert all, and find it in every subtask, whatever happens to the files."""
    job = StateJob({OP: [global_table("t", key_type, value_type)]}, parallelism=2)
    items = list(contents.items())

    def write(_operator: str, subtask: Subtask, manager: TableManager) -> None:
        view = manager.get_global_keyed_state("t")
        for key, value in items[subtask.index :: subtask.parallelism]:
            view.insert(key, value)

    def touch() -> None:
        for _ in range(2):
            job.run_epoch(lambda _o, _s, m: overwrite_and_restore(m, items))

    job.run_epoch(write)
    for stage in stages(job, touch):
        for manager in job.open_subtasks().values():
            view = manager.get_global_keyed_state("t")
            assert {key: view.get(key) for key in contents} == contents, stage
            assert dict(view.items()) == contents, stage


def overwrite_and_restore(manager: TableManager, items: list[tuple[Any, Any]]) -> None:
    """Leave tombstones and newer versions of equal meaning behind."""
    view = manager.get_global_keyed_state("t")
    for key, value in items[:2]:
        view.remove(key)
        view.insert(key, value)


@pytest.mark.slow
@FEW
@given(contents=st.dictionaries(global_keys, everything, max_size=4))
def test_a_global_table_gives_back_structs_of_everything(contents: dict[Any, Any]) -> None:
    check_global(str | int, Everything, contents)


@pytest.mark.slow
@FEW
@given(
    contents=st.dictionaries(st.tuples(st.text(), st.integers(0, 9)), points, max_size=4)
)
def test_a_global_table_gives_back_dataclasses_by_tuples(contents: dict[Any, Any]) -> None:
    check_global(tuple[str, int], Point, contents)


@pytest.mark.parametrize(
    ("key_type", "value_type", "contents"),
    [
        (str, float, {"nan stays aside": math.inf, "ž": -0.0, "": 5e-324}),
        (dt.date, Color, {dt.date(1, 1, 1): Color.RED, dt.date(9999, 12, 31): Color.BLUE}),
        (bytes, bytes, {b"": b"", b"\0\xff": b"\xff" * 300}),
        (
            uuid.UUID,
            Decimal,
            {uuid.UUID(int=0): Decimal("-0.10"), uuid.UUID(int=9): Decimal(0)},
        ),
        (str, None, {"a set of names": None}),
        (str, Any, {"anything": [1, {"a": [None, 2.5, b"x"]}, "t"]}),
        (Color, int, {Color.RED: 2**64 - 1, Color.BLUE: -(2**63)}),
    ],
)
def test_a_global_table_gives_back_values_of_plain_types(
    key_type: Any, value_type: Any, contents: dict[Any, Any]
) -> None:
    check_global(key_type, value_type, contents)


@pytest.mark.slow
def test_huge_values_pass_through_every_table() -> None:
    text = "ž" * (25 << 20)
    specs = [
        global_table("global", str, str),
        keyed_table("keyed", HUGE, key_columns=["number"]),
        time_keyed_table("timed", HUGE, key_columns=["number"], time_column="time"),
    ]
    job = StateJob({OP: specs})
    columns: dict[str, Any] = {"number": [1], "time": [0], "value": [text]}
    batch = pa.RecordBatch.from_pydict(columns, schema=HUGE)

    def write(_operator: str, _subtask: Subtask, manager: TableManager) -> None:
        manager.get_global_keyed_state("global").insert("huge", text)
        manager.get_keyed_state("keyed").put(batch)
        manager.get_time_keyed_state("timed").insert(batch, None)

    def touch() -> None:
        job.run_epoch(lambda _o, _s, m: m.get_global_keyed_state("global").insert("k", "v"))

    job.run_epoch(write)
    job.start()
    touch()
    job.compact(OP, 0)
    job.run_epoch()
    job.start()
    ((_, manager),) = job.open_subtasks().items()
    assert manager.get_global_keyed_state("global").get("huge") == text
    found = manager.get_keyed_state("keyed").get(batch).rows.column("value")
    assert found[0].as_py() == text
    assert manager.get_time_keyed_state("timed").rows().column("value")[0].as_py() == text


HUGE = pa.schema({"number": pa.int64(), "time": TIME, "value": pa.string()})
