"""The verb `join`: what it refuses when a pipeline is built, and what it says then."""

from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.api.stream import Stream
from penstock.core.ids import OperatorId
from penstock.errors import PenstockError
from tests.unit.state.files.file_builders import a_schema

AT = datetime(2026, 1, 1, tzinfo=UTC)
AROUND = ("-5m", "10m")


def two(p: pen.Pipeline | None = None) -> tuple[Stream, Stream]:
    p = p or pen.Pipeline("p")
    orders = pen.list_source([{"order": 1, "at": AT, "price": 3}])
    payments = pen.list_source([{"order": 1, "id": 1, "paid": AT, "price": 3}])
    return (
        p.read("orders", orders, event_time="at"),
        p.read("payments", payments, event_time="paid"),
    )


def refused(left: Stream, right: Any, **options: Any) -> str:
    options = {"on": "order", "within": AROUND, **options}
    left.join("paid", right, **options).write("out", pen.blackhole())
    with pytest.raises(PenstockError) as error:
        left.builder.graph()
    return str(error.value)


def test_a_join_is_a_stream_with_late_rows_of_both_sides() -> None:
    left, right = two()
    joined = left.join("paid", right, on="order", within=AROUND)
    assert joined.side_output(pen.LATE).schema.arrow.names == ["order", "at", "price"]
    assert joined.side_output(pen.LATE_RIGHT).schema.time_column == "paid"


def test_streams_that_are_keyed_are_joined_by_their_keys() -> None:
    left, right = two()
    joined = left.key_by("order").join("paid", right.key_by("id"), within=AROUND)
    assert joined.schema.arrow.names[:5] == ["order", "at", "price", "order_right", "id"]


def test_rows_that_carry_windows_may_be_joined_by_these_alone() -> None:
    left, right = two()
    counts = [
        stream.window(name, pen.tumbling("1m")).aggregate(**{name: pen.count()})
        for name, stream in (("orders-w", left), ("payments-w", right))
    ]
    joined = counts[0].join("both", counts[1], window=pen.same_window())
    windows = ["window_start", "window_end", "window_time"]
    assert joined.schema.arrow.names == [*windows, "orders-w", "payments-w"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on": "oder"}, "no column 'oder'; did you mean 'order'?"),
        ({"on": None}, "name the columns"),
        ({"on": None, "left_on": "order"}, "left_on= and right_on= go together"),
        ({"left_on": "order", "right_on": "id"}, "not both"),
        (
            {"on": None, "left_on": "at", "right_on": "id"},
            "keys are equal only if their types",
        ),
        ({"within": None, "ttl": "soon"}, "'soon' is not a valid ttl"),
        ({"window": pen.tumbling("1m")}, "two kinds of joins"),
        ({"ttl": "1h"}, "ttl= does not go with within="),
        (
            {"ttl": "1h", "within": None, "window": pen.session("1m")},
            "does not go with window=",
        ),
        ({"within": ("10m", "-5m")}, "Exchange them"),
        ({"within": "10m"}, "the lower and the upper bound"),
        ({"within": ("5 minutes", "10m")}, "not a valid lower bound"),
        ({"within": ("0s", "9999999d")}, "at most 9999 years"),
        ({"within": None, "window": "1m"}, "pen.tumbling, pen.sliding, pen.session"),
        ({"within": None, "window": pen.tumbling("0s")}, "must be positive"),
        ({"within": None, "window": pen.session("0s")}, "must be positive"),
        ({"within": None, "window": pen.same_window()}, "carry no windows"),
        ({"how": "outer"}, "write 'full'"),
        ({"how": "lef"}, "did you mean 'left'?"),
        ({"where": "price > 3"}, "no Polars expression"),
        ({"where": pl.col("prize") > 3}, "there is no column 'prize'"),
        ({"suffix": ""}, "give the join another suffix="),
        ({"on_bad": "skip"}, "on_bad"),
    ],
    ids=lambda given: given if isinstance(given, str) else "-".join(given),
)
def test_arguments_that_cannot_work_are_refused_with_what_to_do(
    options: dict[str, Any], said: str
) -> None:
    assert said in refused(*two(), **options)


def test_a_side_without_event_time_is_refused() -> None:
    left, _ = two()
    rows = pen.list_source([{"order": 1, "paid": AT}])
    said = refused(
        left,
        Stream(
            left.builder,
            left.builder.add_source(
                "timeless", rows, event_time=None, watermark=None, parallelism=None
            ),
        ),
    )
    assert "the rows of the right side have no event time" in said


def test_whole_numbers_of_different_widths_are_refused_with_the_cast_to_write() -> None:
    left, right = two()
    narrow = right.with_columns(pl.col("order").cast(pl.Int32))
    assert "pl.col('order').cast(pl.Int64)" in refused(left, narrow)


def test_a_changelog_is_refused() -> None:
    left, right = two()
    totals = right.key_by("order").aggregate("totals", n=pen.count())
    assert "join cannot follow a changelog" in refused(left, totals)


def test_a_right_side_must_be_a_stream_of_the_same_pipeline() -> None:
    left, _ = two()
    assert "cannot read from [1]" in refused(left, [1])
    left, _ = two()
    _, other = two(pen.Pipeline("other"))
    assert "build both in one pipeline" in refused(left, other)


def test_a_broken_side_is_told_once() -> None:
    left, right = two()
    said = refused(left.filter(pl.col("nonsense") > 1), right)
    assert said.count("nonsense") >= 1
    assert "join" not in said.split("nonsense")[0]


def test_columns_called_as_those_of_windows_are_refused() -> None:
    left, right = two()
    named = left.rename({"price": "window_start"})
    said = refused(named, right, within=None, window=pen.tumbling("1m"))
    assert (
        "'window_start' of the left side has the name of a column that the join adds"
        in said
    )


def test_explain_says_what_each_side_keeps_and_for_how_long() -> None:
    left, right = two()
    joined = left.join("paid", right, on="order", how="left", within=AROUND)
    joined.write("out", pen.blackhole())
    shown = str(left.builder.displays[OperatorId("paid")])
    assert "within=-5m to 10m" in shown
    assert "keeps left rows=until the watermark is 10m beyond them" in shown
    assert "keeps right rows=until the watermark is 15m beyond them" in shown


def test_a_column_that_polars_lacks_passes_a_join() -> None:
    kind = pa.month_day_nano_interval()
    schema = a_schema(order=pa.int64(), at=pa.timestamp("us", "UTC"), x=kind)
    _, right = two()
    p = pen.Pipeline("p2")
    left = p.read(
        "odd", pen.list_source([{"order": 1, "at": AT, "x": None}], schema), event_time="at"
    )
    _, right = two(p)
    joined = left.join("paid", right, on="order", within=AROUND)
    assert joined.schema.arrow.field("x").type == kind
