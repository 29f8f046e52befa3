"""Updating aggregates: one change per key and epoch, kept by a time to live."""

import logging
from typing import Any, Self

import pyarrow as pa
import pytest

import penstock as pen
from penstock.api.graph_builder import GraphBuilder, Port
from penstock.api.windowing import add_updating_aggregate
from penstock.core.ids import JobId
from penstock.errors import SchemaError, UserError
from penstock.testing import OperatorHarness
from tests.builders.aggregated_rows import fold, paired

MINUTE = 60_000_000
_COLUMNS: dict[str, Any] = {"user": pa.string(), "n": pa.int64(), "at": pa.timestamp("us")}
TIMED = pen.StreamSchema(pa.schema(_COLUMNS), "at")
UNTIMED = pen.StreamSchema(pa.schema(_COLUMNS))


def a_row(user: str, n: int | None, minute: int = 0) -> dict[str, Any]:
    return {"user": user, "n": n, "at": minute * MINUTE}


class Totals:
    """Both operators: rows that are pushed are combined, partials sent to the second one."""

    def __init__(self, pipeline: pen.Pipeline, stream: pen.StreamSchema) -> None:
        nodes = {str(node.operator): node for node in pipeline.graph().nodes}
        self._combine = OperatorHarness(nodes["combine-1"].spec, stream)
        (partials,) = nodes["totals"].inputs
        self.kept = OperatorHarness(nodes["totals"].spec, partials, amnesia=True)

    def push(self, rows: Any) -> None:
        self._combine.push(rows)
        self.kept.push(self._combine.barrier().table())

    def changes(self) -> list[tuple[str, str, Any, Any]]:
        """Run an epoch; return what changed as (user, op, before, after), by user."""
        rows = paired(self.kept.barrier().rows(), ["user"])
        found = [(row["user"], row["op"], row["before"], row["after"]) for row in rows]
        return sorted(found, key=lambda change: (change[0], change[1]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._combine.close()
        self.kept.close()


def totals(stream: pen.StreamSchema = UNTIMED, **options: Any) -> Totals:
    """Return an updating aggregate by user; options are as of `aggregate`."""
    pipeline = pen.Pipeline("totals")
    source = pen.list_source([], schema=stream.arrow)
    rows = pipeline.read("rows", source, event_time=stream.time_column)
    rows.key_by("user").aggregate("totals", **options).write("out", pen.blackhole())
    return Totals(pipeline, stream)


def test_a_key_is_inserted_once_and_updated_from_then_on() -> None:
    with totals(total=pen.sum("n"), rows=pen.count()) as h:
        h.push([a_row("a", 1), a_row("b", 5), a_row("a", 2)])
        one, five = {"total": 3, "rows": 2}, {"total": 5, "rows": 1}
        assert h.changes() == [("a", "insert", None, one), ("b", "insert", None, five)]
        h.push([a_row("a", 10)])
        assert h.changes() == [("a", "update", one, {"total": 13, "rows": 3})]
        assert h.changes() == []


def test_results_that_stay_the_same_are_not_emitted_again() -> None:
    with totals(top=pen.max("n")) as h:
        h.push([a_row("a", 5), a_row("b", 5)])
        h.kept.barrier()
        h.push([a_row("a", 4), a_row("b", 6)])
        assert h.changes() == [("b", "update", {"top": 5}, {"top": 6})]


def test_partials_that_change_without_their_result_are_kept_all_the_same() -> None:
    with totals(mean=pen.avg("n")) as h:
        h.push([a_row("a", 4)])
        h.kept.barrier()
        h.push([a_row("a", 4)])
        assert h.changes() == []
        h.push([a_row("a", 10)])
        assert h.changes() == [("a", "update", {"mean": 4.0}, {"mean": 6.0})]


def test_results_of_nothing_are_null_in_a_row_that_is_there() -> None:
    with totals(total=pen.sum("n")) as h:
        h.push([a_row("a", None)])
        assert h.changes() == [("a", "insert", None, {"total": None})]
        h.push([a_row("a", 0)])
        assert h.changes() == [("a", "update", {"total": None}, {"total": 0})]


def test_nan_does_not_differ_from_nan() -> None:
    schema: dict[str, Any] = {"user": pa.string(), "n": pa.float64()}
    with totals(pen.StreamSchema(pa.schema(schema)), total=pen.sum("n")) as h:
        h.push({"user": ["a"], "n": [float("nan")]})
        assert len(h.changes()) == 1
        h.push({"user": ["a"], "n": [1.0]})
        assert h.changes() == []


def test_state_is_readable_and_says_what_it_is() -> None:
    with totals(total=pen.sum("n"), mean=pen.avg("n")) as h:
        h.push([a_row("a", 1), a_row("a", 3)])
        h.kept.barrier()
        assert h.kept.state("partials").to_pylist() == [
            {
                "user": "a",
                "total.sum": 4,
                "total.carry": 0,
                "mean.sum": 4.0,
                "mean.count": 2,
            }
        ]


def test_a_key_without_rows_for_its_time_to_live_is_deleted() -> None:
    by_clock = pen.TimeDomain.PROCESSING_TIME
    with totals(TIMED, ttl="10m", ttl_domain=by_clock, rows=pen.count()) as h:
        h.push([a_row("a", 1), a_row("b", 1)])
        h.kept.barrier()
        h.kept.advance("6m")
        h.push([a_row("b", 1)])
        h.kept.barrier()
        h.kept.advance("4m")
        assert h.changes() == [("a", "delete", {"rows": 1}, None)]
        assert h.kept.counters["expired_keys"] == 1
        h.kept.advance("5m")
        assert h.changes() == []
        h.kept.advance("1m")
        assert h.changes() == [("b", "delete", {"rows": 2}, None)]
        assert h.kept.state("partials").num_rows == 0


def test_rows_behind_the_end_of_their_key_start_anew() -> None:
    with totals(ttl="10m", rows=pen.count()) as h:
        h.push([a_row("a", 1)])
        h.kept.barrier()
        h.kept.advance("10m")
        h.push([a_row("a", 1), a_row("a", 1)])
        assert h.changes() == [("a", "update", {"rows": 1}, {"rows": 2})]


def test_by_event_time_the_watermark_ends_a_key_and_rows_before_it_keep_it() -> None:
    with totals(TIMED, ttl="10m", rows=pen.count()) as h:
        h.push([a_row("a", 1, 0), a_row("b", 1, 0)])
        h.kept.watermark(5 * MINUTE)
        h.kept.barrier()
        h.push([a_row("b", 1, 9)])
        h.kept.watermark(10 * MINUTE)
        assert h.changes() == [
            ("a", "delete", {"rows": 1}, None),
            ("b", "update", {"rows": 1}, {"rows": 2}),
        ]
        h.kept.watermark(19 * MINUTE)
        assert h.changes() == [("b", "delete", {"rows": 2}, None)]


def test_a_key_whose_first_row_has_no_time_ends_by_its_later_ones() -> None:
    stream = pen.StreamSchema(TIMED.arrow.set(2, pa.field("at", pa.timestamp("us"))), "at")
    with totals(stream, ttl="10m", rows=pen.count()) as h:
        h.push([{"user": "a", "n": 1, "at": None}])
        h.kept.barrier()
        h.push([a_row("a", 1, 3)])
        h.kept.watermark(5 * MINUTE)
        h.kept.barrier()
        h.kept.watermark(13 * MINUTE)
        assert h.changes() == [("a", "delete", {"rows": 2}, None)]


def test_a_row_that_is_older_than_the_time_to_live_is_not_shown_but_counted() -> None:
    with totals(TIMED, ttl="10m", rows=pen.count()) as h:
        h.kept.watermark(60 * MINUTE)
        h.kept.barrier()
        h.push([a_row("a", 1, 0)])
        h.kept.watermark(61 * MINUTE)
        assert h.changes() == []
        assert h.kept.counters["late_keys"] == 1
        assert h.kept.state("partials").num_rows == 0


def test_a_row_a_time_to_live_after_the_others_begins_another_life() -> None:
    with totals(TIMED, ttl="10m", rows=pen.count()) as h:
        h.push([a_row("a", 1, 0), a_row("a", 1, 9), a_row("a", 1, 19)])
        assert h.changes() == [("a", "insert", None, {"rows": 1})]
        h.push([a_row("a", 1, 40), a_row("a", 1, 41)])
        assert h.changes() == [("a", "update", {"rows": 1}, {"rows": 2})]


def test_rows_join_an_earlier_life_to_a_later_one() -> None:
    with totals(TIMED, ttl="10m", rows=pen.count()) as h:
        h.push([a_row("a", 1, 0), a_row("a", 1, 18)])
        assert h.changes() == [("a", "insert", None, {"rows": 1})]
        assert h.kept.state("earlier-lives").num_rows == 1
        h.push([a_row("a", 1, 9)])
        assert h.changes() == [("a", "update", {"rows": 1}, {"rows": 3})]
        assert h.kept.state("earlier-lives").num_rows == 0


def test_earlier_lives_are_kept_only_while_rows_may_join_them() -> None:
    with totals(TIMED, ttl="10m", rows=pen.count()) as h:
        h.push([a_row("a", 1, 0), a_row("a", 1, 30), a_row("b", 1, 0), a_row("b", 1, 60)])
        h.kept.barrier()
        assert h.kept.state("earlier-lives").num_rows == 2
        h.push([a_row("a", 1, 31)])
        h.kept.watermark(10 * MINUTE)
        assert h.changes() == [("a", "update", {"rows": 1}, {"rows": 2})]
        assert h.kept.state("earlier-lives").to_pylist()[0]["user"] == "b"
        h.kept.watermark(70 * MINUTE)
        assert [change[:2] for change in h.changes()] == [("a", "delete"), ("b", "delete")]
        assert h.kept.state("earlier-lives").num_rows == 0


def test_the_end_of_data_is_no_time_that_passes() -> None:
    with totals(TIMED, ttl="10m", rows=pen.count()) as h:
        h.push([a_row("a", 1, 0)])
        assert [row["change"] for row in h.kept.end().rows()] == ["insert"]
        assert h.kept.state("partials").num_rows == 1


@pytest.mark.parametrize("domain", list(pen.TimeDomain))
def test_times_to_live_survive_a_restart_at_another_parallelism(
    domain: pen.TimeDomain,
) -> None:
    users = [f"user-{n}" for n in range(20)]
    with totals(TIMED, ttl="10m", ttl_domain=domain, rows=pen.count()) as h:
        h.push([a_row(user, 1, 0) for user in users])
        h.kept.watermark(1 * MINUTE)
        h.kept.barrier()
        checkpoint = h.kept.checkpoint()
    with OperatorHarness.restore(checkpoint, parallelism=3, amnesia=True) as h:
        h.watermark(12 * MINUTE)
        h.advance("12m")
        found = h.barrier().rows()
        assert sorted(row["user"] for row in found) == sorted(users)
        assert {row["change"] for row in found} == {"delete"}


def test_null_nan_and_zero_of_either_sign_are_one_key_each() -> None:
    schema: dict[str, Any] = {"user": pa.float64(), "n": pa.int64()}
    with totals(pen.StreamSchema(pa.schema(schema)), rows=pen.count()) as h:
        for _ in range(2):
            users = [None, None, float("nan"), float("nan"), 0.0, -0.0]
            h.push({"user": users, "n": [1] * 6})
            found = [row["rows"] % 2 for row in h.kept.barrier().rows()]
            assert found == [0] * len(found)
        assert [row["rows.count"] for row in h.kept.state("partials").to_pylist()] == [
            4,
            4,
            4,
        ]


@pytest.mark.parametrize(
    "key_type",
    [
        pa.dictionary(pa.int8(), pa.string()),
        pa.timestamp("s"),
        pa.binary(2),
        pa.decimal128(20, 1),
        pa.date32(),
        pa.bool_(),
        pa.large_string(),
        pa.uint8(),
    ],
    ids=str,
)
def test_keys_of_any_type_are_told_apart_and_keep_it(key_type: Any) -> None:
    plain = key_type.value_type if pa.types.is_dictionary(key_type) else key_type
    values: Any
    if pa.types.is_boolean(plain):
        values = pa.array([True, False])
    elif pa.types.is_fixed_size_binary(plain):
        values = pa.array([b"ab", b"cd"], plain)
    else:
        integer = pa.int32() if pa.types.is_date32(plain) else pa.int64()
        values = pa.array([1, 2], integer).cast(plain)
    schema: dict[str, Any] = {"user": key_type, "n": pa.int64()}
    rows = pa.table({"user": values.cast(key_type), "n": [1, 2]}, schema=pa.schema(schema))
    with totals(pen.StreamSchema(pa.schema(schema)), total=pen.sum("n")) as h:
        h.push(rows)
        h.push(rows)
        h.kept.barrier()
        h.push(rows)
        h.kept.barrier()
        table = h.kept.table()
        assert table.schema.field("user").type == plain
        expected = {
            (key,): {"total": 3 * n}
            for key, n in zip(values.to_pylist(), [1, 2], strict=True)
        }
        assert fold(table.to_pylist(), ["user"]) == expected


@pytest.fixture
def keyed() -> tuple[GraphBuilder, Port]:
    pipeline = pen.Pipeline("totals")
    rows = pipeline.read("rows", pen.list_source([], schema=UNTIMED.arrow))
    stream = rows.key_by("user")
    return stream.builder, stream.port


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"ttl": "0s"}, "a ttl of 0 microseconds"),
        ({"ttl": "soon"}, "not a valid ttl"),
        ({"ttl": "1s", "ttl_domain": pen.TimeDomain.EVENT_TIME}, "event times"),
    ],
)
def test_a_time_to_live_that_cannot_be_is_refused(
    keyed: tuple[GraphBuilder, Port], options: dict[str, Any], problem: str
) -> None:
    given = {"ttl": None, "ttl_domain": None, "parallelism": None} | options
    builder, rows = keyed
    add_updating_aggregate(builder, rows, "totals", {"n": pen.count()}, **given)
    with pytest.raises(UserError, match=problem):
        builder.graph()


@pytest.mark.parametrize("result", ["user", "change"])
def test_results_may_not_be_called_as_other_columns_are(result: str) -> None:
    with pytest.raises(SchemaError, match="has a column of that name already"):
        totals(UNTIMED, **{result: pen.count()})


def test_keys_that_polars_does_not_know_are_refused() -> None:
    schema: dict[str, Any] = {"user": pa.decimal256(50, 0), "n": pa.int64()}
    with pytest.raises(SchemaError, match="cannot be grouped by 'user'"):
        totals(pen.StreamSchema(pa.schema(schema)), rows=pen.count())


def test_a_key_column_that_is_called_as_the_changelog_needs_it_is_refused() -> None:
    pipeline = pen.Pipeline("totals")
    schema: dict[str, Any] = {"change": pa.string()}
    rows = pipeline.read("rows", pen.list_source([], schema=pa.schema(schema)))
    rows.key_by("change").aggregate("totals", n=pen.count())
    with pytest.raises(
        SchemaError, match="changelogs have one of their own by this name: rename it"
    ):
        pipeline.graph()


def test_explain_shows_where_rows_are_combined_and_what_is_kept() -> None:
    pipeline = pen.Pipeline("totals", parallelism=2)
    rows = pipeline.read("rows", pen.list_source([], schema=TIMED.arrow), event_time="at")
    totals = rows.key_by("user").aggregate("totals", ttl="90s", total=pen.sum("n"))
    totals.to_debezium().write("out", pen.blackhole())
    shown = pipeline.explain()
    assert "rows → combine-1\n    exchange 0 by-key(user): combine-1 → totals[0]" in shown
    assert "totals → to_debezium-1 → out" in shown
    assert JobId("totals") in shown
    assert (
        "totals: updating_aggregate(by=user, aggregates=total=sum(n), ttl=90s by event-time)"
        in shown
    )


def test_all_values_kept_for_ever_are_warned_of_unless_that_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = pen.Pipeline("p").read("rows", pen.list_source([a_row("a", 1)])).key_by("user")
    count = pen.aggregate_rows(len, returns=pa.int64(), columns=["n"])
    with caplog.at_level(logging.WARNING):
        rows.aggregate("meant", ttl="forever", middle=pen.median("n"))
        rows.aggregate("bounded", ttl="1d", different=pen.count_distinct("n"))
        rows.aggregate("small", total=pen.sum("n"), some=pen.collect_list("n"))
        rows.window("w", pen.tumbling("1m", time_domain="processing-time")).aggregate(
            middle=pen.median("n")
        )
        table = rows.aggregate("table", total=pen.sum("n"))
        table.aggregate("follows", middle=pen.median("total"))
        assert caplog.messages == []
        rows.aggregate(
            "grows", total=pen.sum("n"), different=pen.count_distinct("n"), rows=count
        )
    (message,) = caplog.messages
    assert "aggregate 'grows' keeps all values of different=count_distinct(n)" in message
    assert "rows=aggregate_rows(" in message
    assert "ttl='1d'" in message


@pytest.mark.parametrize("aggregate", [pen.median("n"), pen.quantile("n", 0.5)])
def test_results_of_a_key_that_is_kept_for_ever_are_those_without_a_time_to_live(
    aggregate: pen.Aggregate,
) -> None:
    graphs = []
    for ttl in (None, "forever"):
        pipeline = pen.Pipeline("p")
        rows = pipeline.read("rows", pen.list_source([a_row("a", 1)])).key_by("user")
        rows.aggregate("kept", ttl=ttl, middle=aggregate).write("out", pen.blackhole())
        graphs.append(pipeline.graph())
    assert graphs[0] == graphs[1]
