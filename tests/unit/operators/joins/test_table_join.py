"""Joins of tables, one epoch at a time: what they emit and keep, for how long, and what they refuse."""

import json
import logging
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.schema import Settling
from penstock.errors import StateError, UserError
from penstock.operators import EventTime
from penstock.testing import OperatorHarness
from tests.unit.state.files.file_builders import a_schema

LEFT = a_schema(k=pa.int64(), a=pa.int64())
RIGHT = a_schema(k=pa.int64(), b=pa.int64())
TIMED = a_schema(k=pa.int64(), a=pa.int64(), at=pa.timestamp("us", "UTC"))
TIMED_RIGHT = a_schema(k=pa.int64(), b=pa.int64(), seen=pa.timestamp("us", "UTC"))
SECOND = 1_000_000


def at(second: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


class Join(OperatorHarness):
    """A join of two streams by `k` under test; streams are named as their schemas are."""

    def __init__(
        self,
        left: pa.Schema = LEFT,
        right: pa.Schema = RIGHT,
        *,
        keys: tuple[str | None, str | None] = (None, None),
        ttl: Any = (None, None),
        **options: Any,
    ) -> None:
        p = pen.Pipeline("p")
        streams = []
        for name, schema, key in zip("lr", (left, right), keys, strict=True):
            time = next((f.name for f in schema if pa.types.is_timestamp(f.type)), None)
            stream: Any = p.read(name, pen.list_source([], schema), event_time=time)
            if key is not None:
                stream = stream.from_upserts(f"{name}-table", key=key)
            streams.append(stream)
        joined = streams[0].join("join", streams[1], on="k", ttl=ttl, **options)
        joined.write("out", pen.blackhole())
        node = next(node for node in p.graph().nodes if node.operator == "join")
        self.output, self.spec = joined.schema, node.spec
        super().__init__(node.spec, *node.inputs)

    def step(
        self, left: Any = (), right: Any = (), watermark: int | None = None
    ) -> list[dict[str, Any]]:
        self.push(list(left), input=0)
        self.push(list(right), input=1)
        if watermark is not None:
            self.watermark(EventTime(watermark * SECOND))
        self.barrier()
        return self.take()

    def kept(self) -> tuple[int, int]:
        return self.state("left").num_rows, self.state("right").num_rows


def signed(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return changes as a sign and the values of the columns."""
    signs = {"insert": "+", "update-after": "+", "delete": "-", "update-before": "-"}
    shown = [(signs[row["change"]], *list(row.values())[1:]) for row in rows]
    return sorted(shown, key=str)


def test_an_inner_join_of_append_only_streams_is_append_only_at_the_later_time() -> None:
    with Join(TIMED, TIMED_RIGHT) as join:
        assert join.output.table_key is None
        assert join.output.time_column == "event_time"
        assert join.step([{"k": 1, "a": 1, "at": at(5)}]) == []
        found = join.step(right=[{"k": 1, "b": 2, "seen": at(3)}])
        assert [(row["a"], row["b"], row["event_time"]) for row in found] == [(1, 2, at(5))]


def test_a_row_alone_is_taken_back_when_its_first_match_comes_and_returns_with_the_last() -> (
    None
):
    with Join(how="left", keys=(None, "b")) as join:
        assert signed(join.step([{"k": 1, "a": 1}])) == [("+", 1, 1, None)]
        right = {"change": "insert", "k": 1, "b": 2}
        assert signed(join.step(right=[right])) == [("+", 1, 1, 2), ("-", 1, 1, None)]
        assert signed(join.step(right=[{**right, "b": 3}])) == [("+", 1, 1, 3)]
        gone = {**right, "change": "delete"}
        assert signed(join.step(right=[gone])) == [("-", 1, 1, 2)]
        last = join.step(right=[{**gone, "b": 3}])
        assert signed(last) == [("+", 1, 1, None), ("-", 1, 1, 3)]
        assert join.kept() == (1, 0)


def test_equal_rows_of_an_append_only_side_are_rows_each() -> None:
    with Join(how="semi") as join:
        join.step([{"k": 1, "a": 1}] * 2)
        assert join.kept() == (2, 0)
        assert signed(join.step(right=[{"k": 1, "b": 0}])) == [("+", 1, 1)] * 2


def test_numbers_of_rows_are_never_used_again() -> None:
    with Join() as join:
        for n in range(3):
            join.step([{"k": 1, "a": n}])
        assert join.kept() == (3, 0)


def test_a_hot_key_of_a_semi_join_is_asked_only_whether_there_is_any() -> None:
    with Join(how="semi") as join:
        join.step([{"k": 1, "a": n} for n in range(50)], [{"k": 1, "b": 0}])
        assert join.step(right=[{"k": 1, "b": n} for n in range(50)]) == []
        assert signed(join.step([{"k": 1, "a": 99}])) == [("+", 1, 99)]


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_rows_without_a_key_are_not_kept(how: Any) -> None:
    with Join(how=how) as join:
        found = join.step([{"k": None, "a": 1}], [{"k": None, "b": 1}])
        alone = {"left": 1, "right": 1, "full": 2, "anti": 1}
        assert len(found) == alone.get(how, 0)
        assert join.kept() == (0, 0)


def test_rows_match_nothing_when_their_time_to_live_is_over_and_their_results_stay() -> (
    None
):
    with Join(TIMED, TIMED_RIGHT, ttl=("10s", None), how="right") as join:
        right = {"k": 1, "b": 1, "seen": at(0)}
        assert len(join.step([{"k": 1, "a": 1, "at": at(0)}], [right], watermark=9)) == 1
        assert len(join.step(right=[right], watermark=10)) == 1
        found = join.step(right=[right], watermark=10)
        assert [(row["change"], row["a"]) for row in found] == [("insert", None)]


def test_a_row_whose_matches_expired_is_not_taken_back_twice() -> None:
    with Join(TIMED, TIMED_RIGHT, ttl=(None, "10s"), how="left") as join:
        left, right = {"k": 1, "a": 1, "at": at(0)}, {"k": 1, "b": 1, "seen": at(0)}
        assert len(join.step([left], [right], watermark=20)) == 1
        # The pair stays; the row was not alone, so nothing is there to take back.
        found = join.step(right=[{**right, "b": 2, "seen": at(20)}], watermark=20)
        assert [(row["change"], row["b"]) for row in found] == [("insert", 2)]


def test_without_event_time_rows_live_by_processing_time() -> None:
    with Join(ttl="1m") as join:
        join.step([{"k": 1, "a": 1}])
        join.advance("30s")
        assert len(join.step(right=[{"k": 1, "b": 1}])) == 1
        join.advance("31s")
        assert join.step(right=[{"k": 1, "b": 2}]) == []
        assert len(join.step([{"k": 1, "a": 2}])) == 2


def test_a_removal_of_a_row_that_has_expired_changes_nothing() -> None:
    with Join(TIMED, TIMED_RIGHT, keys=("a", None), ttl=("10s", None)) as join:
        left = {"change": "insert", "k": 1, "a": 1, "at": at(0)}
        join.step([left], [{"k": 1, "b": 1, "seen": at(0)}], watermark=20)
        assert join.step([{**left, "change": "delete"}], watermark=20) == []


def schema_of(
    left_key: str | None, right_key: str | None, **options: Any
) -> tuple[Any, Any]:
    with Join(keys=(left_key, right_key), **options) as join:
        return join.output.table_key, join.output.settling


def test_the_table_key_is_that_of_the_left_side_if_a_row_has_one_partner() -> None:
    assert schema_of("a", "k", how="left") == (("a",), Settling.APART)
    assert schema_of("k", "k", how="left") == (("k",), Settling.TOGETHER)
    assert schema_of("k", "b", how="right") == (("b",), Settling.APART)
    assert schema_of("k", "b", how="left") == (("k", "b"), Settling.TOGETHER)
    assert schema_of("k", "b") == (("b",), Settling.APART)
    assert schema_of("a", "b", how="left") == (("a", "b"), Settling.APART)
    assert schema_of("a", "b", how="anti") == (("a",), Settling.APART)


def test_a_side_without_a_table_key_makes_the_result_a_bag() -> None:
    every = ("k", "a", "b"), Settling.TOGETHER
    assert schema_of(None, "k", how="left") == every
    assert schema_of("k", None) == every


def test_a_full_join_has_a_key_only_if_unmatched_rows_of_both_sides_differ_in_it() -> None:
    assert schema_of("k", "k", how="full") == (("k", "a", "b"), Settling.TOGETHER)
    left = pa.schema([pa.field("k", pa.int64()), pa.field("a", pa.int64(), nullable=False)])
    right = a_schema(k=pa.int64(), b=pa.int64(), c=pa.int64())
    with Join(left, right, keys=("a", "b"), how="full") as join:
        assert join.output.table_key == ("a", "b")


def test_three_tables_are_joined_by_chaining_and_aggregated() -> None:
    p, out = pen.Pipeline("p", parallelism=2), pen.list_sink("three-tables")
    users, orders, items = (
        p.read(name, pen.list_source(rows))
        for name, rows in {
            "users": [{"user": 1, "name": "ada"}, {"user": 2, "name": "bob"}],
            "orders": [{"order": 7, "user": 1}, {"order": 8, "user": 1}],
            "items": [{"item": 1, "order": 7}, {"item": 2, "order": 7}],
        }.items()
    )
    first = users.to_table("u", key="user", order_by="name").join(
        "orders-of", orders, on="user", how="left", ttl=(None, None)
    )
    first.join("items-of", items, on="order", how="left", ttl=(None, None)).write(
        "out", out
    )
    p.run_in_process("memory:")
    found = sorted(
        ((row["name"], row["order"], row["item"]) for row in out.rows()), key=str
    )
    assert found == [("ada", 7, 1), ("ada", 7, 2), ("ada", 8, None), ("bob", None, None)]


def test_keys_may_differ_in_name_and_layout() -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    p, out = pen.Pipeline("p"), pen.list_sink("table-layouts")
    left = p.read("l", pen.list_source([{"x": "a"}, {"x": "b"}], a_schema(x=kind)))
    right = p.read("r", pen.list_source([{"y": "a"}], a_schema(y=pa.large_string())))
    left.join("j", right, left_on="x", right_on="y", how="full", ttl="1d").write("out", out)
    p.run_in_process("memory:")
    assert sorted((r["x"], r["y"]) for r in out.rows() if r["y"]) == [("a", "a")]


def test_a_join_that_keeps_rows_for_ever_warns_unless_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    Join(ttl=None, keys=("k", None)).close()
    (record,) = caplog.records
    assert "join 'join' keeps all rows of the right side for ever" in record.message
    assert "ttl='1d'" in record.message
    caplog.clear()
    Join(ttl="forever").close()
    Join(ttl="1d").close()
    Join(ttl=None, keys=("k", "k")).close()
    assert not caplog.records


def test_explain_says_what_each_side_keeps() -> None:
    p = pen.Pipeline("p")
    left = p.read("l", pen.list_source([], TIMED), event_time="at")
    right = p.read("r", pen.list_source([], RIGHT)).from_upserts("t", key="k")
    left.join("join", right, on="k", ttl=("1d", None)).write("out", pen.blackhole())
    line = next(line for line in p.explain().splitlines() if "table_join" in line)
    assert "keeps left rows=for 1d of event time" in line
    assert "keeps right rows=until they are removed" in line


@pytest.mark.parametrize("ttl", ["soon", 0, ("1d",), ("1d", "2d", "3d"), "-1d"])
def test_a_time_to_live_that_is_not_possible_is_refused(ttl: Any) -> None:
    with pytest.raises(UserError, match="join 'join' cannot be computed"):
        Join(ttl=ttl)


def test_a_bag_with_a_column_that_cannot_be_looked_for_is_refused() -> None:
    schema = a_schema(k=pa.int64(), tags=pa.list_(pa.string()))
    p = pen.Pipeline("p")
    tables = [
        p.read(name, pen.list_source([], schema)).from_upserts(f"{name}-t", key="k")
        for name in "ab"
    ]
    other = p.read("r", pen.list_source([], RIGHT))
    tables[0].union(tables[1]).join("join", other, on="k", ttl="1d")
    with pytest.raises(UserError, match=r"column 'tags' of the left side .* cannot be"):
        p.graph()


def test_a_column_by_the_name_of_change_is_refused() -> None:
    right = a_schema(k=pa.int64(), change=pa.string())
    with pytest.raises(UserError, match="there is a column 'change'"):
        Join(right=right, how="left")


def test_rows_without_an_event_time_go_aside() -> None:
    with Join(TIMED, TIMED_RIGHT, how="left", on_bad="divert") as join:
        assert join.step([{"k": 1, "a": 1, "at": None}]) == []
        assert [row["a"] for row in join.take(pen.BAD)] == [1]


BIG, HUGE = pl.col("a") > 5, pl.col("a") > 9


def shown_options(value: Any) -> str:
    """Name a case in words that are the same in every process: expressions show addresses."""
    if isinstance(value, bool):
        return "refused" if value else "goes on"
    predicates = {str(BIG): "big", str(HUGE): "huge"}
    return " ".join(predicates.get(str(option), str(option)) for option in value.values())


@pytest.mark.parametrize(
    ("before", "after", "is_refused"),
    [
        ({"how": "left"}, {"how": "semi"}, True),
        ({"how": "semi"}, {"how": "anti"}, True),
        ({"how": "anti"}, {"how": "left"}, True),
        ({"how": "inner"}, {"how": "left"}, True),
        ({"how": "left"}, {"how": "inner"}, True),
        ({"how": "left"}, {"how": "left", "where": BIG}, True),
        ({"how": "left", "where": BIG}, {"how": "left"}, True),
        ({"how": "left", "where": BIG}, {"how": "left", "where": HUGE}, True),
        ({"how": "left", "where": BIG}, {"how": "left", "where": BIG}, False),
        ({"how": "inner", "where": BIG}, {"how": "inner"}, False),
        ({"how": "left"}, {"how": "left", "suffix": "_b", "ttl": "1d"}, False),
    ],
    ids=shown_options,
)
def test_results_are_not_taken_back_by_another_kind_of_join_than_emitted_them(
    before: dict[str, Any], after: dict[str, Any], is_refused: bool
) -> None:
    with Join(**before) as join:
        join.step([{"k": 1, "a": 1}, {"k": 2, "a": 2}], [{"k": 1, "b": 7}])
        kept = join.checkpoint()
    with Join(**after) as other:
        changed = other.spec
    with OperatorHarness.restore(kept, operator=changed) as restored:
        if is_refused:
            with pytest.raises(StateError, match=r"kind of 'join' was|'_penstock_alone'"):
                restored.barrier()
        else:
            restored.barrier()


def test_the_join_by_event_time_still_refuses_changelogs() -> None:
    with pytest.raises(UserError, match="join cannot follow a changelog"):
        Join(TIMED, TIMED_RIGHT, keys=("k", None), ttl=None, within=("0s", "1s"))


def test_a_predicate_reads_the_columns_of_a_pair() -> None:
    where = pl.col("a") < pl.col("b")
    with Join(how="left", keys=(None, "b"), where=where) as join:
        join.step([{"k": 1, "a": 5}], [{"change": "insert", "k": 1, "b": 4}])
        right = {"change": "insert", "k": 1, "b": 6}
        assert signed(join.step(right=[right])) == [("+", 1, 5, 6), ("-", 1, 5, None)]
        found = join.step(right=[{**right, "change": "delete"}])
        assert signed(found) == [("+", 1, 5, None), ("-", 1, 5, 6)]


@pytest.mark.slow
def test_state_four_times_the_memory_budget_is_joined_in_little_memory(
    tmp_path: Path,
) -> None:
    module = "tests.unit.operators.joins.large_join_program"
    ran = subprocess.run(
        [sys.executable, "-m", module, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
    )
    figures = json.loads(ran.stdout)
    assert figures["kept_bytes"] > 4 * figures["budget_bytes"] - 1
    assert figures["changes"] >= figures["kept_rows"]
    assert figures["peak_bytes"] < 3 * figures["budget_bytes"]


@pytest.mark.parametrize("how", ["left", "full", "semi", "anti"])
def test_a_bag_is_refused_beside_a_side_that_forgets_its_partners(how: Any) -> None:
    # Of equal rows one had a partner and another none: both came out alone.
    pipeline = pen.Pipeline("p")
    first, second, third = (
        pipeline.read(name, pen.list_source([{"k": 1}])) for name in ("a", "b", "c")
    )
    bag = first.join("bag", second, on="k", how="left", ttl="forever")
    bag.join("j", third, on="k", how=how, ttl=(None, "1d")).write("out", pen.blackhole())
    with pytest.raises(UserError, match="leave out the ttl of the right side"):
        pipeline.graph()
