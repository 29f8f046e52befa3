"""Every option of the verbs about joins, changelogs and ranking changes the graph: none is hollow.

Options of sources that would do nothing beside the others are refused.
"""

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import penstock as pen
from penstock.errors import UserError
from penstock.graph.codec import encode_graph
from penstock.testing.given import shared_registry

AT = datetime(2024, 1, 1, tzinfo=UTC)
ROW = {"user": "ada", "n": 1, "m": 2, "at": AT, "ok": True, "v": 3}


async def ask(keys: pl.DataFrame) -> pl.DataFrame:
    return keys


async def ask_again(keys: pl.DataFrame) -> pl.DataFrame:
    return keys.head(1)


def rows(p: pen.Pipeline) -> Any:
    return p.read("rows", pen.list_source([ROW]), event_time="at")


def join(p: pen.Pipeline, **given: Any) -> Any:
    other = p.read("others", pen.list_source([ROW]), event_time="at")
    by_user = {} if "left_on" in given or "right_on" in given else {"on": "user"}
    options = {"name": "j", "right": other, "ttl": "1d", **by_user, **given}
    if given.keys() & {"within", "window", "right"}:
        del options["ttl"]
    return rows(p).join(options.pop("name"), options.pop("right"), **options)


def join_by_names(p: pen.Pipeline, **given: Any) -> Any:
    return join(p, **{"left_on": "n", "right_on": "m", **given})


def join_within(p: pen.Pipeline, **given: Any) -> Any:
    return join(p, **{"within": ("0s", "1m"), **given})


def step(verb: str, *, behind: Any = rows, **base: Any) -> Callable[..., Any]:
    def make(p: pen.Pipeline, **given: Any) -> Any:
        options = {**base, **given}
        stream = behind(p)
        positional = [options.pop("name")] if "name" in options else []
        return getattr(stream, verb)(*positional, **options)

    return make


def records(p: pen.Pipeline) -> Any:
    after = {"id": 1, "n": 5}
    source = pen.list_source([{"before": None, "after": after, "op": "c"}])
    return p.read("records", source)


def windows(p: pen.Pipeline) -> Any:
    return rows(p).key_by("user").window("w", pen.tumbling("1m"))


def looked_up(lookup: Callable[..., Any], **base: Any) -> Callable[..., Any]:
    def make(p: pen.Pipeline, **given: Any) -> Any:
        options = {**base, **given}
        if "stream" in options:
            options["stream"] = p.read("others", pen.list_source([options["stream"]]))
        return rows(p).join("j", lookup(**options), on="user")

    return make


def bytes_of(make: Callable[..., Any], given: dict[str, Any]) -> bytes:
    p = pen.Pipeline("p")
    make(p, **given).write("out", pen.blackhole())
    return encode_graph(p.graph())


_FUNCTION = looked_up(pen.lookup_function, function=ask, schema={"user": str, "z": int})
_TOP = step("top", name="t", n=3, by="n", per="user")
CASES: dict[str, tuple[Any, Callable[..., Any], dict[str, tuple[Any, Any]]]] = {
    "join": (
        pen.Stream.join,
        join,
        {
            "name": ("a", "b"),
            "right": (
                pen.lookup_frame([{"user": "ada"}]),
                pen.lookup_frame([{"user": "bob"}]),
            ),
            "on": ("user", ["user", "n"]),
            "how": ("inner", "left"),
            "window": (pen.tumbling("1m"), pen.session("1m")),
            "within": (("0s", "1m"), ("0s", "2m")),
            "where": (None, pl.col("n") > 1),
            "suffix": ("_r", "_s"),
            "ttl": ("1d", ("1d", None)),
            "parallelism": (1, 2),
        },
    ),
    "join by names": (
        pen.Stream.join,
        join_by_names,
        {"left_on": ("n", "v"), "right_on": ("m", "v")},
    ),
    "join within": (pen.Stream.join, join_within, {"on_bad": ("fail", "divert")}),
    "top": (
        pen.Stream.top,
        _TOP,
        {
            "name": ("a", "b"),
            "n": (3, 4),
            "by": ("n", "m"),
            "per": ("user", "v"),
            "descending": (True, False),
            "rank": (None, "rank"),
            "parallelism": (1, 2),
        },
    ),
    "window top": (
        None,
        step("top", behind=windows, n=3, by="n"),
        {
            "n": (3, 4),
            "by": ("n", "m"),
            "descending": (True, False),
            "rank": (None, "rank"),
        },
    ),
    "deduplicate": (
        pen.Stream.deduplicate,
        step("deduplicate", name="d", on="user"),
        {
            "name": ("a", "b"),
            "on": ("user", "n"),
            "keep": ("first", "last"),
            "ttl": ("1h", "2h"),
            "parallelism": (1, 2),
        },
    ),
    "to_table": (
        pen.Stream.to_table,
        step("to_table", name="t", key="user"),
        {
            "name": ("a", "b"),
            "key": ("user", "n"),
            "order_by": (None, "n"),
            "parallelism": (1, 2),
        },
    ),
    "from_upserts": (
        pen.Stream.from_upserts,
        step("from_upserts", name="t", key="user"),
        {
            "name": ("a", "b"),
            "key": ("user", "n"),
            "deleted": (None, "ok"),
            "order_by": (None, "n"),
            "parallelism": (1, 2),
        },
    ),
    "from_debezium": (
        pen.Stream.from_debezium,
        step("from_debezium", behind=records, name="t", key="id"),
        {
            "name": ("a", "b"),
            "key": ("id", "n"),
            "on_bad": ("fail", "divert"),
            "order_by": (None, "op"),
            "parallelism": (1, 2),
        },
    ),
    "lookup_frame": (
        pen.lookup_frame,
        looked_up(pen.lookup_frame, rows=[{"user": "ada"}]),
        {
            "rows": ([{"user": "ada"}], [{"user": "bob"}]),
            "schema": (None, {"user": pl.Categorical()}),
        },
    ),
    "lookup_frame of a function": (
        pen.lookup_frame,
        looked_up(pen.lookup_frame, rows=lambda: [{"user": "ada"}]),
        {"reload": (None, "1m")},
    ),
    "lookup_stream": (
        pen.lookup_stream,
        looked_up(pen.lookup_stream, stream={"user": "ada", "z": 1}),
        {
            "stream": ({"user": "ada", "z": 1}, {"user": "ada", "y": 1}),
            "key": (None, ["user", "z"]),
        },
    ),
    "lookup_function": (
        pen.lookup_function,
        _FUNCTION,
        {
            "function": (ask, ask_again),
            "schema": ({"user": str}, {"user": str, "z": int}),
            "batch_size": (1, 2),
            "max_concurrency": (1, 2),
            "timeout": ("1s", "2s"),
            "retries": (0, 1),
            "cache_rows": (0, 1),
            "cache_ttl": ("1s", "2s"),
        },
    ),
}


@pytest.mark.parametrize(
    ("case", "option"),
    [(case, option) for case, (_, _, options) in CASES.items() for option in options],
)
def test_an_option_makes_another_graph(case: str, option: str) -> None:
    _, make, options = CASES[case]
    one, other = (bytes_of(make, {option: value}) for value in options[option])
    assert one == bytes_of(make, {option: options[option][0]})
    assert one != other


def test_no_option_is_left_out() -> None:
    tried: dict[Any, set[str]] = {}
    for function, _, options in CASES.values():
        if function is not None:
            tried.setdefault(function, set()).update(options)
    for function, names in tried.items():
        assert set(inspect.signature(function).parameters) - {"self"} == names


def read(source: Any) -> None:
    """Build the source, as a graph does that is made."""
    shared_registry().construct(source.source_spec())


def test_a_skew_is_refused_unless_live_is_searched_by_it() -> None:
    columns = {"n": int, "at": pl.Datetime("us", "UTC")}
    history = pen.list_source([{"n": 1, "at": AT}])
    topic = pen.kafka("bids", servers="nowhere:1", schema=columns, start="after-history")
    for skew in ("2h", None):
        point: dict[str, Any] = {"at": AT, "by": "at", "skew": skew}
        read(pen.concat_sources(history=history, live=topic, **point))
        with pytest.raises(UserError, match="skew= says from where Kafka is read"):
            read(pen.concat_sources(history=history, live=history, **point))
    with pytest.raises(UserError, match="skew= is for a hand-over at an instant"):
        pen.concat_sources(history=history, live=topic, skew="2h")


def test_remembering_names_is_refused_without_discovery(tmp_path: Path) -> None:
    def files(**given: Any) -> Any:
        return pen.files(f"{tmp_path}/*.csv", schema={"n": int}, **given)

    read(files(remember="2h", discover=True))
    with pytest.raises(
        UserError, match=r"remember= says when .*, and without discover= none"
    ):
        read(files(remember="2h"))


def test_discovery_of_topics_is_refused_without_a_pattern() -> None:
    def topics(*names: str, **given: Any) -> Any:
        return pen.kafka(names, servers="nowhere:1", schema={"n": int}, **given)

    read(topics(pattern="b.*", discover="1s"))
    with pytest.raises(UserError, match="discover= says how often topics of a pattern="):
        read(topics("bids", discover="1s"))


def test_options_of_files_make_another_graph(tmp_path: Path) -> None:
    path = f"{tmp_path}/*.csv"
    make = looked_up(pen.lookup_files, path=path, schema={"user": str})
    options: dict[str, Any] = {
        "path": f"{tmp_path}/a/*.csv",
        "format": "jsonl",
        "reload": "1m",
        "schema": {"user": str, "z": int},
        "store_options": {"virtual_hosted_style_request": "true"},
    }
    assert set(inspect.signature(pen.lookup_files).parameters) == set(options)
    for option, value in options.items():
        assert bytes_of(make, {option: value}) != bytes_of(make, {})
