from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pandas as pd  # type: ignore[import-untyped]  # it has no stubs here
import polars as pl
import pyarrow as pa
import pytest

from penstock.connectors.memory import list_source
from penstock.core.batch import empty_batch
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.operators.splits import SourceBudget, SplitState
from tests.builders.chain_rig import DrivenSource, a_source

ROWS = [{"n": n, "name": f"row {n}"} for n in range(10)]


def test_all_rows_are_read_and_the_source_ends() -> None:
    source = DrivenSource(list_source(ROWS))

    assert source.run_epoch() == ROWS
    assert source.has_ended()
    assert source.run_epoch() == []


def test_a_budget_cuts_the_rows_into_epochs() -> None:
    source = DrivenSource(list_source(ROWS))
    budget = SourceBudget(rows=4)

    epochs = [
        (source.run_epoch(budget), source.plan.has_more, source.has_ended())
        for _ in range(3)
    ]

    assert epochs == [
        (ROWS[:4], True, False),
        (ROWS[4:8], True, False),
        (ROWS[8:], False, True),
    ]


def test_a_budget_of_bytes_cuts_too_but_lets_one_row_through() -> None:
    source = DrivenSource(list_source(ROWS))

    assert source.run_epoch(SourceBudget(size_bytes=1)) == ROWS[:1]


def test_splits_get_the_rows_in_turn_and_share_the_budget() -> None:
    source = DrivenSource(list_source(ROWS, splits=3))

    rows = source.run_epoch(SourceBudget(rows=6))

    # Another split comes first in every epoch; this is epoch 1.
    assert [row["n"] for row in rows] == [1, 4, 2, 5, 0, 3]
    assert [(s.name, s.start, s.end) for s in source.plan.splits] == [
        ("0", 0, 2),
        ("1", 0, 2),
        ("2", 0, 2),
    ]


def test_a_planned_epoch_reads_the_same_rows_again() -> None:
    spec, budget = list_source(ROWS, splits=2), SourceBudget(rows=4)

    first, second = DrivenSource(spec), DrivenSource(spec)

    assert first.run_epoch(budget) == second.run_epoch(budget)
    assert first.known == second.known


def test_batches_are_as_large_as_asked() -> None:
    source = DrivenSource(list_source(ROWS, batch_rows=4))

    source.run_epoch()

    assert [batch.num_rows for batch in source.taken.batches] == [4, 4, 2]


def test_splits_without_rows_end_at_once() -> None:
    source = DrivenSource(list_source(ROWS[:1], splits=3))

    source.run_epoch()

    assert {name: state.ended for name, state in source.known.items()} == {
        "0": True,
        "1": True,
        "2": True,
    }


def test_a_split_that_ended_is_not_planned_again() -> None:
    source = a_source(list_source(ROWS, splits=2))

    plan = source.plan_splits({"0": SplitState(offset=5, ended=True)}, SourceBudget(), 0)

    assert [split.name for split in plan.splits] == ["1"]


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        pa.Table.from_pylist(ROWS),
        pa.RecordBatch.from_pylist(ROWS),
        [pa.RecordBatch.from_pylist(ROWS[:3]), pa.RecordBatch.from_pylist(ROWS[3:])],
        pl.DataFrame(ROWS),
        pd.DataFrame(ROWS),
        {name: [row[name] for row in ROWS] for name in ROWS[0]},
    ],
    ids=["dictionaries", "table", "batch", "batches", "frame", "pandas", "columns"],
)
def test_rows_may_come_in_any_form(rows: object) -> None:
    assert DrivenSource(list_source(rows)).run_epoch() == ROWS


def test_the_schema_carries_time_and_key() -> None:
    fields: list[pa.Field[Any]] = [
        pa.field("user", pa.string()),
        pa.field("ts", pa.timestamp("us")),
    ]
    stream = StreamSchema(pa.schema(fields), "ts", ("user",))

    assert a_source(list_source([], stream)).output_schema() == stream


def test_no_rows_and_no_schema_is_refused() -> None:
    with pytest.raises(UserError, match="needs a schema"):
        list_source([])


def test_state_of_other_rows_is_refused_with_all_problems() -> None:
    source = a_source(list_source(ROWS[:2]))
    known = {"0": SplitState(offset=7), "1": SplitState(offset=1)}

    with pytest.raises(UserError) as caught:
        source.plan_splits(known, SourceBudget(), 0)

    assert caught.value.code is ErrorCode.UNKNOWN_SPLIT
    assert "split '0' was read up to row 7, and now it has 2 rows" in caught.value.message
    assert "split '1' was read up to row 1, and now it does not exist" in str(caught.value)


def test_a_number_of_splits_below_one_is_refused() -> None:
    with pytest.raises(UserError, match="at least 1"):
        list_source(ROWS, splits=0)


def test_rows_of_different_keys_have_all_of_them_and_null_where_one_is_missing() -> None:
    source = DrivenSource(list_source([{"a": 1}, {"b": "x", "a": 2}, {"c": None}]))
    assert source.run_epoch() == [
        {"a": 1, "b": None, "c": None},
        {"a": 2, "b": "x", "c": None},
        {"a": None, "b": None, "c": None},
    ]


def test_a_key_that_a_given_schema_does_not_name_is_refused() -> None:
    columns: dict[str, Any] = {"a": pa.int64(), "b": pa.string()}
    schema = pa.schema(columns)
    with pytest.raises(SchemaError, match="does not name: 'B'"):
        list_source([{"a": 1}, {"a": 2, "B": "x"}], schema)
    assert DrivenSource(list_source([{"a": 1}], schema)).run_epoch() == [
        {"a": 1, "b": None}
    ]


@pytest.mark.parametrize("splits", [1, 2])
def test_views_of_text_bytes_and_lists_are_read_as_plain_columns(splits: int) -> None:
    kinds: dict[str, Any] = {
        "text": pa.string_view(),
        "bytes": pa.binary_view(),
        "texts": pa.list_(pa.string_view()),
        "list": pa.list_view(pa.int64()),
    }
    rows: list[dict[str, Any]] = [
        {"text": "a", "bytes": b"b", "texts": ["c", None], "list": [1, 2]},
        {"text": None, "bytes": None, "texts": None, "list": None},
        {"text": "d" * 40, "bytes": b"", "texts": [], "list": [3]},
    ]
    table = pa.Table.from_pylist(rows, pa.schema(kinds))
    for given in (list_source(table, splits=splits), list_source(rows, pa.schema(kinds))):
        source = DrivenSource(given)
        assert sorted(source.run_epoch(), key=repr) == sorted(rows, key=repr)
        assert "view" not in str(a_source(given).output_schema().arrow)


OBJECTS = pl.Series("a", [object()], dtype=pl.Object)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, 2)], "given tuple"),
        (5, "given int"),
        ("text", "given str"),
        ([{"a": 1}, None], "given NoneType"),
        ([{"a": 1}, {"a": "x"}], "columns of one type each: .*Correct the values"),
        ([{"a\ud800": 1}], "columns of one type each"),
        ({"a": 1}, "columns of one type each"),
        ({"a": [1, 2], "b": [1]}, "columns of one type each"),
        ([{"a\0b": 1}], "holds a NUL"),
        (pl.DataFrame({"a": OBJECTS}), r"\['a'\], which hold Python objects"),
        ({"a": OBJECTS}, r"\['a'\], which hold Python objects"),
    ],
)
def test_what_cannot_be_rows_is_refused_with_an_explanation(
    rows: Any, message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        list_source(rows)


def test_columns_by_name_have_the_types_of_a_given_schema() -> None:
    columns: dict[str, Any] = {"a": pa.int8(), "b": pa.string()}
    schema = pa.schema(columns)

    source = list_source(pd.DataFrame({"a": [1, 2]}), schema)

    assert DrivenSource(source).run_epoch() == [{"a": 1, "b": None}, {"a": 2, "b": None}]
    assert a_source(source).output_schema().arrow == schema
    with pytest.raises(SchemaError, match="does not name: 'c'"):
        list_source({"c": [1]}, schema)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.date32(), date(2026, 1, 1)),
        (pa.decimal128(5, 2), Decimal("1.50")),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 1, tzinfo=UTC)),
        (pa.string(), "x"),
    ],
)
@pytest.mark.parametrize("depth", [0, 1])
def test_dictionaries_of_any_type_are_read_with_and_without_rows(
    kind: Any, value: Any, depth: int
) -> None:
    column: Any = pa.dictionary(pa.int32(), kind)
    if depth:
        column, value = pa.list_(column), [value]
    schema = pa.schema({"a": column})
    rows = [{"a": value}, {"a": None}]

    assert DrivenSource(list_source(rows, schema)).run_epoch() == rows
    # One of the splits has no row.
    assert len(DrivenSource(list_source(rows, schema, splits=3)).run_epoch()) == 2
    assert DrivenSource(list_source([], schema)).run_epoch() == []
    assert empty_batch(schema).schema == schema


def test_run_end_encoded_columns_are_refused_with_what_decodes_them() -> None:
    values: Any = pa.RunEndEncodedArray.from_arrays(
        pa.array([2], pa.int32()), pa.array([7])
    )
    with pytest.raises(
        SchemaError, match=r"columns \['x'\]: decode them, with .*run_end_decode"
    ):
        list_source(pa.table({"x": values}))
