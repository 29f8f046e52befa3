"""What every join decides about columns, keys and predicates before rows flow."""

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from penstock.core.schema import StreamSchema
from penstock.errors import UserError
from penstock.operators.joins.sides import (
    EVENT_TIME,
    How,
    JoinRules,
    Pick,
    find_key_problems,
    plain,
    to_how,
)
from tests.unit.state.files.file_builders import a_schema

AT = pa.timestamp("us")
LEFT = StreamSchema(a_schema(key=pa.int64(), at=AT, v=pa.string()), "at", ("key",))
RIGHT = StreamSchema(a_schema(key=pa.int64(), seen=AT, v=pa.string()), "seen", ("key",))
OWN = (pa.field(EVENT_TIME, AT),)


def rules(
    left: StreamSchema = LEFT,
    right: StreamSchema = RIGHT,
    how: How = How.INNER,
    *,
    suffix: str = "_right",
    predicate: pl.Expr | None = None,
) -> JoinRules:
    return JoinRules(left, right, how, suffix, predicate, OWN, EVENT_TIME)


def a_pick(stream: StreamSchema, **columns: list[Any]) -> Pick:
    batch = pa.RecordBatch.from_pydict(columns, schema=stream.arrow)
    times = stream.event_times_of(batch)
    return Pick(batch, times, np.arange(batch.num_rows))


def test_a_key_of_one_name_is_one_column_and_other_equal_names_get_the_suffix() -> None:
    output = rules().output
    assert output.arrow.names == ["key", "at", "v", "seen", "v_right", "event_time"]
    assert output.time_column == "event_time"


def test_keys_of_different_names_are_both_in_the_output() -> None:
    arrow = pa.schema([("id", pa.int64()), ("seen", AT)])
    right = StreamSchema(arrow, "seen", ("id",))
    assert rules(right=right).output.arrow.names == [
        "key",
        "at",
        "v",
        "id",
        "seen",
        "event_time",
    ]


@pytest.mark.parametrize("how", [How.SEMI, How.ANTI])
def test_semi_and_anti_joins_have_the_left_side_alone(how: How) -> None:
    output = rules(how=how).output
    assert output.arrow.names == ["key", "at", "v"]
    assert output.time_column == "at"


def test_the_event_time_of_a_join_replaces_that_of_a_join_before_it() -> None:
    first = rules().output.keyed_by("key")
    second = rules(left=first, suffix="_again")
    assert second.find_problems() == []
    assert second.output.arrow.names.count("event_time") == 1
    assert "event_time_again" not in second.output.arrow.names


def test_only_columns_of_a_side_that_may_be_missing_may_be_null() -> None:
    fields = [
        pa.field("key", pa.int64(), nullable=False),
        pa.field("at", AT, nullable=False),
    ]
    stream = StreamSchema(pa.schema(fields), "at", ("key",))
    nullable = {
        how: [
            field.name
            for field in rules(stream, stream, how).output.arrow
            if field.nullable
        ]
        for how in (How.INNER, How.LEFT, How.RIGHT, How.FULL)
    }
    own = ["event_time"]
    assert nullable == {
        How.INNER: own,
        How.LEFT: ["at_right", *own],
        How.RIGHT: ["at", *own],
        How.FULL: ["at", "at_right", *own],
    }


def test_dictionaries_are_decoded() -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    stream = plain(StreamSchema(pa.schema([("key", kind), ("at", AT)]), "at"))
    assert stream.arrow.field("key").type == pa.string()


def test_a_right_row_alone_gives_its_key_and_nulls_for_the_left_side() -> None:
    right = a_pick(RIGHT, key=[7], seen=[3], v=["b"])
    rows = rules(how=How.FULL).rows_of(None, right, {EVENT_TIME: right.micros})
    found = rows.to_pylist()[0]
    assert (found["key"], found["at"], found["v"], found["v_right"]) == (7, None, None, "b")


def test_a_predicate_that_is_null_or_false_is_no_match() -> None:
    left = a_pick(LEFT, key=[1, 1, 1], at=[0, 0, 0], v=["a", None, "b"])
    right = a_pick(RIGHT, key=[1, 1, 1], seen=[0, 0, 0], v=["a", "a", "a"])
    same = rules(predicate=pl.col("v") == pl.col("v_right"))
    matches = same.are_matches(left, right, {EVENT_TIME: left.micros})
    assert matches is not None
    assert matches.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("value", "count"), [(True, None), (False, [False]), (None, [False])]
)
def test_a_predicate_may_be_a_constant(
    value: bool | None, count: list[bool] | None
) -> None:
    left = a_pick(LEFT, key=[1], at=[0], v=["a"])
    right = a_pick(RIGHT, key=[1], seen=[0], v=["a"])
    constant = rules(predicate=pl.lit(value, pl.Boolean))
    assert constant.find_problems() == []
    matches = constant.are_matches(left, right, {EVENT_TIME: left.micros})
    assert (None if matches is None else matches.tolist()) == count


def test_a_suffix_that_does_not_help_is_a_problem() -> None:
    arrow = pa.schema(
        [("key", pa.int64()), ("at", AT), ("v", pa.int8()), ("v_right", pa.int8())]
    )
    left = StreamSchema(arrow, "at", ("key",))
    assert "cannot be called 'v_right'" in rules(left=left).find_problems()[0]
    assert rules(left=left, suffix="_other").find_problems() == []
    assert "cannot be called 'v'" in rules(suffix="").find_problems()[0]


def test_a_left_column_called_as_the_join_s_own_is_a_problem() -> None:
    arrow = pa.schema([("key", pa.int64()), ("at", AT), ("event_time", AT)])
    left = StreamSchema(arrow, "at", ("key",))
    assert "rename it" in rules(left=left).find_problems()[0]


@pytest.mark.parametrize(
    ("predicate", "problem"),
    [
        (pl.col("nonsense") > 1, "there is no column 'nonsense'"),
        (pl.col("v") + pl.col("v_right"), "true-or-false"),
        (pl.col("key").sum() > 1, "row by row"),
    ],
)
def test_a_predicate_that_cannot_be_computed_is_a_problem(
    predicate: pl.Expr, problem: str
) -> None:
    assert problem in rules(predicate=predicate).find_problems()[0]


def test_keys_must_exist_and_have_equal_types() -> None:
    right = StreamSchema(a_schema(key=pa.int32(), v=pa.large_string()))
    assert find_key_problems(LEFT, right, ["v"], ["v"]) == []
    [problem] = find_key_problems(LEFT, right, ["key"], ["key"])
    assert "with_columns(pl.col('key').cast(pl.Int64)) of the right side" in problem
    [problem] = find_key_problems(LEFT, right, ["kye"], ["key"])
    assert "the left side has no column 'kye'" in problem
    assert "correspond" in find_key_problems(LEFT, right, ["key", "v"], ["key"])[0]


@pytest.mark.parametrize(("word", "meant"), [("outer", "full"), ("left_semi", "semi")])
def test_words_of_other_libraries_are_answered_with_ours(word: str, meant: str) -> None:
    assert to_how("anti") is How.ANTI
    with pytest.raises(UserError, match=f"write '{meant}'"):
        to_how(word)
