from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from penstock.connectors.memory import list_source
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, UserError
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
    ],
    ids=["dictionaries", "table", "batch", "batches", "frame"],
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
