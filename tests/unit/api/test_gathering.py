"""Mistakes of a pipeline: all of them at once, where they were written, none made up."""

import inspect
import pickle
from typing import Any

import polars as pl
import pytest

import penstock as pen
from penstock.errors import ErrorCode, GraphError, SchemaError, StorageError, UserError
from tests.builders.graphs import CLICKS
from tests.builders.pipelines import Clicks, Drop, Pass


def a_pipeline() -> pen.Pipeline:
    return pen.Pipeline("clicks")


def some_clicks(p: pen.Pipeline, name: str = "read") -> pen.Stream:
    return p.read(name, Clicks())


def line_here() -> int:
    """Return the line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def problems_of(p: pen.Pipeline) -> list[str]:
    with pytest.raises(GraphError) as raised:
        p.graph()
    problems = raised.value.context["problems"]
    assert isinstance(problems, tuple)
    return list(problems)


def test_six_mistakes_are_told_at_once_each_with_its_line() -> None:
    p = a_pipeline()
    clicks, start = some_clicks(p), line_here()
    untyped: Any = clicks.key_by("user")
    clicks.filter(pl.col("pag") > 0)
    clicks.key_by("usr")
    clicks.window("w", pen.tumbling(0)).aggregate(n=pen.count())
    clicks.write("read", Drop())
    untyped.process(Pass())
    clicks.key_by("user").aggregate("totals", total=pen.sum("user"))
    found = problems_of(p)
    assert [problem.partition(", ")[0] for problem in found] == [
        f"{__file__}:{start + line}" for line in range(2, 8)
    ]
    for problem, part in zip(
        found,
        [
            "filter: filter(predicate",
            "'usr' is not a column; did you mean 'user'",
            "a width of 0 microseconds",
            "has an operator named 'read' already",
            "process needs a name first",
            "sum(user): column 'user' is string",
        ],
        strict=True,
    ):
        assert part in problem


@pytest.mark.parametrize("way", ["graph", "explain", "run", "run_in_process"])
def test_whatever_runs_or_shows_a_pipeline_refuses_its_mistakes(way: str) -> None:
    p = a_pipeline()
    some_clicks(p).select("nothing")
    arguments = ["memory:mistakes"] if way.startswith("run") else []
    with pytest.raises(SchemaError, match="there is no column 'nothing'"):
        getattr(p, way)(*arguments)


def test_a_single_mistake_is_the_error_itself_however_often_it_is_raised() -> None:
    p = a_pipeline()
    some_clicks(p).side_output("lat")
    line = line_here() - 1
    for _ in range(2):
        with pytest.raises(UserError) as raised:
            p.graph()
        assert raised.value.code is ErrorCode.UNKNOWN_OUTPUT
        assert raised.value.__notes__ == [f"written at {__file__}:{line}, in side_output"]
        copy = pickle.loads(pickle.dumps(raised.value))
        assert (copy.message, copy.__notes__) == (
            raised.value.message,
            raised.value.__notes__,
        )


def test_consequences_of_a_mistake_are_no_mistakes() -> None:
    p = a_pipeline()
    broken = some_clicks(p).select("nothing")
    broken.filter("a").with_columns(b="c").map_batches(lambda rows: rows).write("x", Drop())
    broken.key_by("d").window("w", pen.session("1s")).aggregate(n=pen.sum("e")).write(
        "y", Drop()
    )
    some_clicks(p, "more").union(broken).flat_map(lambda rows: rows).side_output("z")
    some_clicks(p, "other").process("join", Pass(), broken.key_by("f"))
    broken.rebalance(parallelism=0).broadcast().to_debezium().write("v", Drop())
    with pytest.raises(SchemaError, match="there is no column 'nothing'"):
        p.graph()


def test_columns_of_a_broken_stream_are_refused_with_every_mistake() -> None:
    p = a_pipeline()
    broken = some_clicks(p).key_by("usr")
    with pytest.raises(SchemaError, match="did you mean 'user'"):
        _ = broken.schema
    some_clicks(p, "more").select("nothing")
    with pytest.raises(GraphError, match="2 mistakes"):
        _ = broken.process("count", Pass()).schema


def test_what_a_mistake_leaves_known_is_still_checked() -> None:
    p = a_pipeline()
    clicks = some_clicks(p)
    clicks.filter("pag").select("usr")
    clicks.process("read", Pass()).select("at_")
    clicks.window("w", pen.tumbling("0s"), on_bad="never").aggregate(n=pen.sum("pag"))  # type: ignore[arg-type]
    p.read("late", Clicks(), watermark_delay="x", idle_timeout="y").select("pages")
    texts = ("'pag'", "'usr'", "'read' already", "'at_'", "0s", "'never'", "'pag'")
    more = (
        "'x' is not a valid watermark_delay",
        "'y' is not a valid idle timeout",
        "'pages'",
    )
    found = problems_of(p)
    assert len(found) == len((*texts, *more))
    for problem, text in zip(found, (*texts, *more), strict=True):
        assert text in problem


def test_the_name_of_a_step_that_cannot_work_is_taken() -> None:
    p = a_pipeline()
    clicks = some_clicks(p)
    clicks.process("count", Drop())
    clicks.process("count", Pass())
    first, second = problems_of(p)
    assert "emits nothing that could be read on" in first
    assert "has an operator named 'count' already" in second


def test_two_windows_of_one_name_are_one_mistake() -> None:
    p = a_pipeline()
    keyed = some_clicks(p).key_by("user")
    for width in ("1s", "2s"):
        keyed.window("w", pen.tumbling(width)).aggregate(n=pen.count())
    with pytest.raises(UserError, match="an operator named 'w' already") as raised:
        p.graph()
    assert raised.value.code is ErrorCode.NAME_TAKEN


@pytest.mark.parametrize(
    ("step", "arguments"),
    [
        ("write", (Drop(),)),
        ("process", (Pass(),)),
        ("process", ()),
        ("window", (pen.tumbling("1s"),)),
        ("udf", (7,)),
        ("write", (None, Drop())),
    ],
)
def test_a_step_without_its_name_is_told_what_a_name_is_for(
    step: str, arguments: tuple[Any, ...]
) -> None:
    p = a_pipeline()
    getattr(some_clicks(p), step)(*arguments)
    with pytest.raises(UserError, match=f"^{step} needs a name first") as raised:
        p.graph()
    assert "identity of the state" in raised.value.message
    assert f'Write {step}("some-name", …)' in raised.value.message


def test_a_result_may_be_called_name_but_is_not_the_name_of_the_step() -> None:
    p = a_pipeline()
    untyped: Any = some_clicks(p).key_by("user")
    untyped.aggregate(name=pen.count())
    with pytest.raises(UserError, match=r"^aggregate needs a name first"):
        p.graph()


def test_a_missing_argument_that_is_no_name_is_an_ordinary_mistake_of_python() -> None:
    untyped: Any = some_clicks(a_pipeline())
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        untyped.filter()
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        untyped.window("w")


class Unreachable(Clicks):
    """A source whose columns are in a store that does not answer."""

    def output_schema(self) -> Any:
        raise StorageError("the store does not answer")


def test_what_is_no_mistake_of_the_pipeline_is_raised_at_once() -> None:
    with pytest.raises(StorageError, match="the store does not answer") as raised:
        a_pipeline().read("read", Unreachable(CLICKS))
    assert raised.value.__notes__ == ["while adding operator 'read' to the pipeline"]


def test_steps_keep_their_signatures_and_docstrings() -> None:
    assert list(inspect.signature(pen.Stream.filter).parameters) == ["self", "predicate"]
    for stream in (pen.Stream, pen.KeyedStream, pen.Pipeline):
        for name, method in inspect.getmembers(stream, inspect.isfunction):
            assert name.startswith("_") or inspect.getdoc(method)
