"""Every argument of the verbs about joins, changelogs and ranking, given something else.

Whatever is wrong is an error of Penstock: it says what, where, and what to do. A bare exception
of Python, Polars or Arrow would say none of this.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import penstock as pen
from penstock.errors import PenstockError
from tests.builders.profile import by_profile

AT = datetime(2024, 1, 1, tzinfo=UTC)
ROWS = [{"user": "ada", "n": 1, "at": AT, "ok": True, "tags": ["a"], "s": {"a": 1}}]
RECORDS = [{"before": None, "after": {"id": 1, "n": 5}, "op": "c"}]
FRAME = pen.lookup_frame([{"user": "ada", "z": 1}])


async def ask(keys: pl.DataFrame) -> pl.DataFrame:
    return keys


def rows(p: pen.Pipeline) -> pen.Stream:
    return p.read("rows", pen.list_source(ROWS), event_time="at")


def others(p: pen.Pipeline) -> pen.Stream:
    row = {"user": "ada", "m": 2, "at": AT}
    return p.read("others", pen.list_source([row]), event_time="at")


def joined(**base: Any) -> Callable[..., Any]:
    def make(p: pen.Pipeline, **wrong: Any) -> Any:
        given = {"name": "j", "right": others(p), "on": "user", **base, **wrong}
        return rows(p).join(given.pop("name"), given.pop("right"), **given)

    return make


def step(verb: str, *, behind: str = "rows", **base: Any) -> Callable[..., Any]:
    def make(p: pen.Pipeline, **wrong: Any) -> Any:
        stream: Any = rows(p)
        if behind == "table":
            stream = stream.to_table("table", key="user")
        if behind == "window":
            stream = stream.key_by("user").window("w", pen.tumbling("1m"))
        if behind == "records":
            stream = p.read("records", pen.list_source(RECORDS))
        given = {**base, **wrong}
        positional = [given.pop("name")] if "name" in given else []
        return getattr(stream, verb)(*positional, **given)

    return make


def looked_up(lookup: Callable[..., Any], **base: Any) -> Callable[..., Any]:
    def make(p: pen.Pipeline, **wrong: Any) -> Any:
        given = {k: v(p) if k == "stream" else v for k, v in base.items()}
        return rows(p).join("j", lookup(**{**given, **wrong}), on="user")

    return make


def aggregated(make: Callable[..., Any], **base: Any) -> Callable[..., Any]:
    def build(p: pen.Pipeline, **wrong: Any) -> Any:
        return rows(p).key_by("user").aggregate("a", x=make(**{**base, **wrong}))

    return build


_JOIN = (
    "name right on left_on right_on how window within where suffix ttl on_bad parallelism"
)
_TOP = "name n by per descending rank parallelism"
CASES: dict[str, tuple[Callable[..., Any], str]] = {
    "join of tables": (joined(ttl="1d"), _JOIN),
    "join within": (joined(within=("-1m", "1m")), _JOIN),
    "join in windows": (joined(window=pen.tumbling("1m")), _JOIN),
    "join in sessions": (joined(window=pen.session("1m")), _JOIN),
    "lookup join": (joined(right=FRAME), _JOIN),
    "top": (step("top", name="t", n=3, by="n", per="user"), _TOP),
    "top of a table": (step("top", behind="table", name="t", n=3, by="n"), _TOP),
    "top of windows": (step("top", behind="window", n=3, by="n"), "n by descending rank"),
    "deduplicate": (
        step("deduplicate", name="d", on="user", ttl="1h"),
        "name on keep ttl parallelism",
    ),
    "deduplicate the last": (
        step("deduplicate", name="d", on="user", keep="last"),
        "on ttl",
    ),
    "to_table": (step("to_table", name="t", key="user"), "name key order_by parallelism"),
    "from_upserts": (
        step("from_upserts", name="t", key="user"),
        "name key deleted order_by parallelism",
    ),
    "from_debezium": (
        step("from_debezium", behind="records", name="t", key="id"),
        "name key on_bad parallelism",
    ),
    "lookup_stream": (looked_up(pen.lookup_stream, stream=others), "stream key"),
    "lookup_frame": (
        looked_up(pen.lookup_frame, rows=[{"user": "ada"}]),
        "rows reload schema",
    ),
    "lookup_function": (
        looked_up(pen.lookup_function, function=ask, schema={"user": str}),
        "function schema batch_size max_concurrency timeout retries cache_rows cache_ttl",
    ),
    "lookup_files": (
        looked_up(pen.lookup_files, path="nowhere/*.csv", schema={"user": str}),
        "path format reload schema store_options",
    ),
    "read_latest": (
        lambda _, **wrong: pen.read_latest(**{"url": "nowhere", "key": "user", **wrong}),
        "url key",
    ),
    "quantile": (aggregated(pen.quantile, column="n", q=0.5), "column q discrete where"),
    "arg_min": (aggregated(pen.arg_min, column="n", by="n"), "column by where"),
    "collect_list": (aggregated(pen.collect_list, column="n"), "column where"),
    "string_agg": (aggregated(pen.string_agg, column="user"), "column"),
    "approx_top_k": (aggregated(pen.approx_top_k, column="n", k=3), "column k where"),
    "approx_distinct": (aggregated(pen.approx_distinct, column="n"), "column where"),
    "aggregate_rows": (
        aggregated(pen.aggregate_rows, function=len, returns=pl.Int64, columns="n"),
        "function returns columns where name",
    ),
}
WRONG: tuple[Any, ...] = (
    3, pl.col("nope"), pl.DataFrame({"a": [1]}), None, ["nope"], object(),
    "nope", ("1m",), -1, "", [], [None], {}, True, 1.5, 10**30, (None, None), ["user", "user"],
    {"a": 1}, {1, 2}, b"x", "a\0b", ask, pl.lit(1), float("nan"), timedelta(days=-1), (1, 2),
    pen.tumbling("1m"), int, AT,
)[: by_profile(6, 30, 30)]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "option"),
    [(case, option) for case, (_, options) in CASES.items() for option in options.split()],
)
def test_a_wrong_argument_is_an_error_of_penstock_or_none(case: str, option: str) -> None:
    make, _ = CASES[case]
    for value in WRONG:
        p = pen.Pipeline("p")
        try:
            made = make(p, **{option: value})
            if isinstance(made, pen.Stream):
                made.write("out", pen.blackhole())
                p.graph()
        except PenstockError as error:
            assert len(error.message) > 25, error.message  # noqa: PT017 (many do not raise)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (joined(on=3), "join 'j': on=3 are no names of columns: write on='user' or on=['user', 'day']"),
        (joined(how=3), "a join cannot be 3"),
        (joined(parallelism="2"), "operator 'j': parallelism '2' cannot work: use a whole"),
        (step("top", name="t", n=3, by="n", per=3), "top 't': per=3 are no names of columns"),
        (step("deduplicate", name="d", on=3), "deduplicate 'd': on=3 are no names of columns"),
        (
            step("deduplicate", name="d", on="user", keep="frist"),
            "deduplicate 'd': keep='frist'; did you mean 'first'?: use 'first', 'earliest' or 'last'",
        ),
        (step("to_table", name="t", key=None), "to_table 't': key=None are no names of columns"),
        (
            step("to_table", name="t", key="user", order_by=["n"]),
            "to_table 't': order_by=['n'] is no name of a column: write order_by='user'",
        ),
        (
            step("from_upserts", name="t", key="user", deleted=True),
            "from_upserts 't': deleted=True is no name of a column",
        ),
        (
            looked_up(pen.lookup_function, function=ask, schema={"user": str}, batch_size=None),
            "batch_size must be at least 1, it is None",
        ),
        (aggregated(pen.quantile, column="n", q=0.5, discrete="no"), "discrete='no' is neither"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_told_what_where_and_what_to_do(make: Any, said: str) -> None:
    def build() -> None:
        p = pen.Pipeline("p")
        make(p).write("out", pen.blackhole())
        p.graph()

    with pytest.raises(PenstockError) as error:
        build()
    assert said in str(error.value)


def test_a_key_of_read_latest_that_names_nothing_is_refused(tmp_path: Path) -> None:
    wrong: Any = 3
    with pytest.raises(PenstockError, match="read_latest: key=3 are no names of columns"):
        pen.read_latest(str(tmp_path), key=wrong)
