"""Lookups on the right side of `join`: what is refused, what is said then, what explain shows."""

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.api.stream import Stream
from penstock.errors import PenstockError, UserError
from tests.unit.state.files.file_builders import a_schema

FRAME = pen.lookup_frame([{"country": "ch", "name": "S", "n": 1}])


async def ask(keys: pl.DataFrame) -> Any:
    return keys


def visits(p: pen.Pipeline | None = None) -> Stream:
    p = p or pen.Pipeline("p")
    schema = a_schema(country=pa.string(), n=pa.int64())
    return p.read("visits", pen.list_source([], schema))


def refused(left: Stream, right: Any, **options: Any) -> str:
    left.join("named", right, **{"on": "country", **options}).write("out", pen.blackhole())
    with pytest.raises(PenstockError) as error:
        left.builder.graph()
    return str(error.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on": "land"}, "no column 'land'"),
        ({"on": None}, "name the columns that are equal in a match"),
        (
            {"on": None, "left_on": "n", "right_on": "name"},
            "keys are equal only if their types",
        ),
        ({"how": "full"}, "it can be 'inner' or 'left', not 'full'"),
        ({"how": "outer"}, "write 'full'"),
        (
            {"within": ("0s", "1m")},
            "looks rows up, and within= is for joins of two streams",
        ),
        ({"window": pen.tumbling("1m")}, "window= is for joins of two streams"),
        ({"ttl": "1h"}, "ttl= is for joins of two streams"),
        ({"on_bad": "divert"}, "on_bad= is for joins of two streams"),
        ({"where": pl.col("nam") == "x"}, "there is no column 'nam'"),
        ({"suffix": ""}, "which is taken"),
    ],
)
def test_bad_arguments_of_lookups_are_refused(options: dict[str, Any], said: str) -> None:
    assert said in refused(visits(), FRAME, **options)


def test_a_changelog_on_the_left_is_refused_and_told_of_the_join_of_tables() -> None:
    table = visits().from_upserts("last", key="country")
    assert "such a join of tables keeps both sides" in refused(table, FRAME)


def test_what_is_neither_a_stream_nor_a_lookup_is_refused() -> None:
    said = refused(visits(), pl.DataFrame({"country": ["ch"]}))
    assert "or a lookup, such as pen.lookup_files" in said


def test_a_small_stream_of_another_pipeline_or_without_a_key_is_refused() -> None:
    other = visits(pen.Pipeline("q"))
    assert "build both in one pipeline" in refused(visits(), pen.lookup_stream(other))
    assert "give a stream" in refused(visits(), pen.lookup_stream(3))  # type: ignore[arg-type]
    left = visits()
    table = left.from_upserts("last", key="country")
    assert "leave key= out" in refused(left, pen.lookup_stream(table, key="n"))
    left = visits()
    assert "no column 'landd'" in refused(left, pen.lookup_stream(left, key="landd"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: pen.lookup_frame(3), "are no rows to look up"),
        (lambda: pen.lookup_frame([]), "schema= if it is empty"),
        (lambda: pen.lookup_frame([1, 2]), "cannot be read"),
        (
            lambda: pen.lookup_frame({"a": [1]}, reload="1m"),
            "give a function that returns it",
        ),
        (lambda: pen.lookup_frame({"a": [b"x" * (65 << 20)]}), "too large"),
        (lambda: pen.lookup_frame({"a": [1]}, schema={"b": int}), "'b' is missing"),
        (lambda: pen.lookup_function(ask, schema=None), "needs the schema="),
        (lambda: pen.lookup_function(ask, schema={"a": int}, batch_size=0), "batch_size"),
        (lambda: pen.lookup_function(ask, schema={"a": int}, timeout="0s"), "timeout must"),
        (lambda: pen.lookup_function(ask, schema={"a": int}, cache_ttl="x"), "cache_ttl"),
        (lambda: pen.lookup_files("a.csv", "exel"), "format 'exel' is unknown"),
    ],
)
def test_lookups_that_cannot_work_are_refused(make: Any, said: str) -> None:
    with pytest.raises(UserError) as error:
        make()
    assert said in str(error.value)


def test_a_frame_of_spark_is_collected_and_a_streaming_one_refused() -> None:
    class Frame:
        isStreaming = False  # noqa: N815 (as Spark calls it)

        def toArrow(self) -> pa.Table:  # noqa: N802 (as Spark calls it)
            return pa.table({"country": ["ch"]})

    assert pen.lookup_frame(Frame()).schema.arrow.names == ["country"]
    Frame.isStreaming = True
    with pytest.raises(UserError, match=r"pen\.lookup_stream"):
        pen.lookup_frame(Frame())


def test_explain_shows_what_is_looked_up_and_how_often_it_is_loaded(tmp_path: Path) -> None:
    pl.DataFrame({"country": ["ch"]}).write_parquet(tmp_path / "a.parquet")
    p = pen.Pipeline("p")
    left = visits(p)
    files = pen.lookup_files(tmp_path / "*.parquet", reload="10m")
    function = pen.lookup_function(ask, schema={"country": str})
    lookups: dict[str, Any] = {
        "files": files,
        "frame": FRAME,
        "function": function,
        "stream": pen.lookup_stream(left),
    }
    for name, lookup in lookups.items():
        left.join(name, lookup, on="country").write(f"{name}-out", pen.blackhole())
    shown = p.explain()
    assert f"looks up=file://{tmp_path}/*.parquet, reload=every 10m" in shown
    assert "looks up=1 rows, reload=never" in shown
    assert "looks up=ask(keys), batch_size=500, max_concurrency=8, timeout=30s" in shown
    assert "cache=100000 rows for 5m" in shown
    assert "looks up=the last row per country of a stream" in shown
