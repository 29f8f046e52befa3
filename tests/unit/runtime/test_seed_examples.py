"""The examples of the specification, as jobs that stop and go on with another program."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pytest

from penstock.core.schema import StreamSchema
from penstock.graph.logical import Exchange
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.state.files.migration import MigratableState
from penstock.state.tables.global_keyed import GlobalKeyedView
from penstock.state.tables.keyed_view import KeyedView
from penstock.state.tables.specs import TableSpec, global_table, keyed_table
from tests.builders.driven_job import DrivenJob
from tests.builders.graphs import schema_of
from tests.builders.scripted import BY_USER, NumberedSource, link

COUNTS = schema_of(user=pa.string(), count=pa.int64())
LABELLED = schema_of(user=pa.string(), count=pa.int64(), label=pa.string())


class MyStateV1(msgspec.Struct):
    count: int


class MyStateV2(msgspec.Struct, MigratableState):
    VERSION: ClassVar[int] = 2
    PreviousVersion: ClassVar[Any] = MyStateV1

    count: int
    label: str

    @classmethod
    def migrate(cls, previous: MyStateV1) -> "MyStateV2":
        return cls(count=previous.count, label="default")


class RowsV1:
    SCHEMA: ClassVar[pa.Schema] = COUNTS


class RowsV2(MigratableState):
    VERSION: ClassVar[int] = 2
    PreviousVersion: ClassVar[Any] = RowsV1
    SCHEMA: ClassVar[pa.Schema | None] = LABELLED

    @classmethod
    def migrate(cls, previous: pa.RecordBatch) -> pa.RecordBatch:
        labels: Any = pa.array(["default"] * previous.num_rows)
        return pa.RecordBatch.from_arrays([*previous.columns, labels], schema=LABELLED)


class Counts(ArrowOperator):
    """Counts the rows of each user, in a table whose state class is given."""

    def __init__(self, state_type: Any, seen: dict[str, Any]) -> None:
        self.state_type = state_type
        self.seen = seen

    def name(self) -> str:
        return "counts"

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema | None:
        return None


class InGlobalTable(Counts):
    """The example of seed 002: the view is taken in `on_start` and used ever after."""

    view: GlobalKeyedView[str, Any]

    def tables(self) -> Sequence[TableSpec]:
        return [global_table("my_state", str, self.state_type)]

    def on_start(self, ctx: OperatorContext) -> None:
        self.view = ctx.table_manager.get_global_keyed_state("my_state")

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        for user in map(str, batch.column("user").to_pylist()):
            state = self.view.get(user)
            if state is None:
                new = {"label": "new"} if self.state_type is MyStateV2 else {}
                state = self.state_type(count=0, **new)
            state.count += 1
            self.view.insert(user, state)
            self.seen[user] = state.count, getattr(state, "label", None)


class InKeyedTable(Counts):
    """The same with rows."""

    view: KeyedView

    def tables(self) -> Sequence[TableSpec]:
        return [keyed_table("my_state", self.state_type, key_columns=["user"])]

    def on_start(self, ctx: OperatorContext) -> None:
        self.view = ctx.table_manager.get_keyed_state("my_state")

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        for at, user in enumerate(map(str, batch.column("user").to_pylist())):
            held = self.view.get(batch.slice(at, 1))
            row: dict[str, Any] = held.rows.to_pylist()[0]
            if not held.found[0]:
                row |= {"user": user, "count": 0, "label": "new"}
            row["count"] += 1
            self.view.put(pa.RecordBatch.from_pylist([row], schema=held.rows.schema))
            self.seen[user] = row["count"], row.get("label")


@pytest.mark.parametrize(
    ("make", "first", "second"),
    [
        (InGlobalTable, MyStateV1, MyStateV2),
        (InKeyedTable, RowsV1, RowsV2),
        (InKeyedTable, COUNTS, RowsV2),
    ],
    ids=["global values", "rows of a class", "rows of a plain schema"],
)
def test_state_of_a_plain_first_type_goes_on_with_version_2(
    make: Callable[[Any, dict[str, Any]], Counts], first: Any, second: Any
) -> None:
    seen: dict[str, Any] = {}
    job = DrivenJob()
    job.add(
        "read", lambda: NumberedSource({"a": range(4), "b": range(2, 3), "c": range(9)})
    )
    job.add("count", lambda: make(first, seen), BY_USER)
    job.join(link("read", "count", exchange=Exchange.BY_KEY))
    job.session().run_epoch()
    assert {user: count for user, (count, _) in seen.items()} == {"a": 2, "b": 1, "c": 2}
    seen.clear()
    job.add("count", lambda: make(second, seen), BY_USER)
    session = job.session()
    session.run_epoch()
    assert seen == {"a": (4, "default"), "c": (4, "default")}
    session.run_epoch()
    assert seen["c"] == (6, "default")
