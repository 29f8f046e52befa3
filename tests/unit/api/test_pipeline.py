"""Pipelines: sources, event time, the graph and its explanation."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import polars as pl
import pytest

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import list_sink, list_source
from penstock.connectors.stdout import stdout
from penstock.errors import ErrorCode, GraphError, SchemaError, UserError
from penstock.graph.codec import decode_graph, encode_graph
from penstock.graph.logical import MAIN, OperatorSpec, WatermarkSpec
from penstock.runtime.plan.physical import compile_graph
from tests.builders.graphs import CLICKS
from tests.builders.pipelines import Clicks, Drop, Pass, a_pipeline, some_clicks

UNTIMED = replace(CLICKS, time_column=None)


def test_a_source_is_given_as_spec_or_as_object() -> None:
    p = a_pipeline()
    p.read("built-in", OperatorSpec("clicks", {"rate": 5}))
    p.read("own", Clicks())
    built_in, own = p.graph().nodes
    assert built_in.spec == OperatorSpec("clicks", {"rate": 5})
    assert own.spec.kind == "source"
    assert built_in.outputs == own.outputs


def test_event_time_makes_a_column_the_time_of_the_stream_and_gives_a_watermark() -> None:
    p = a_pipeline()
    stream = p.read(
        "read", Clicks(UNTIMED), event_time="at", watermark_delay="1s", idle_timeout="1m"
    )
    node = p.graph().node("read")
    assert stream.schema == node.outputs[MAIN] == CLICKS
    assert node.watermark == WatermarkSpec(1_000_000, 60_000_000)


def test_a_source_that_declares_event_time_has_a_watermark_without_watermark_delay() -> (
    None
):
    p = a_pipeline()
    p.read("read", Clicks())
    assert p.graph().node("read").watermark == WatermarkSpec()


def test_a_source_without_event_time_has_no_watermark() -> None:
    p = a_pipeline()
    p.read("read", Clicks(UNTIMED))
    assert p.graph().node("read").watermark is None


def test_watermark_delay_without_event_time_is_refused() -> None:
    p = a_pipeline()
    p.read("read", Clicks(UNTIMED), watermark_delay="1s")
    with pytest.raises(
        UserError, match="'read': watermark_delay and idle_timeout are about event"
    ):
        p.graph()


def test_a_watermark_delay_that_is_no_duration_is_refused() -> None:
    p = a_pipeline()
    p.read("read", Clicks(), watermark_delay="soon")
    with pytest.raises(UserError, match="'soon' is not a valid watermark_delay"):
        p.graph()


def test_an_event_time_that_is_no_timestamp_is_refused_naming_the_operator() -> None:
    p = a_pipeline()
    p.read("read", Clicks(), event_time="page")
    with pytest.raises(SchemaError, match="'page' has the type int64") as raised:
        p.graph()
    adding, written = raised.value.__notes__
    assert adding == "while adding operator 'read' to the pipeline"
    assert written.endswith(", in read 'read'")


def test_an_unknown_kind_fails_before_anything_runs() -> None:
    p = a_pipeline()
    p.read("read", OperatorSpec("click"))
    with pytest.raises(UserError, match="did you mean 'clicks'") as raised:
        p.graph()
    assert raised.value.code is ErrorCode.UNKNOWN_KIND


def test_an_operator_is_not_read_from() -> None:
    p, q = a_pipeline(), a_pipeline()
    p.read("read", OperatorSpec("union"))
    with pytest.raises(UserError, match="'read' of kind 'union' is not a source"):
        p.graph()
    q.read("read", Pass())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="Pass is none"):
        q.graph()


def test_a_pipeline_without_a_source_is_told_so() -> None:
    with pytest.raises(GraphError, match="read from a source"):
        a_pipeline().graph()


def test_a_parallelism_that_cannot_work_is_reported_with_the_graph() -> None:
    p = a_pipeline()
    some_clicks(p).rebalance(parallelism=0).write("out", Drop())
    with pytest.raises(GraphError, match="'out': parallelism 0 cannot work"):
        p.graph()


def test_a_name_that_cannot_be_part_of_a_path_is_refused() -> None:
    with pytest.raises(UserError, match="is not a valid job id"):
        a_pipeline("a/b")
    p = a_pipeline()
    p.read("a b", Clicks())
    with pytest.raises(UserError, match="is not a valid operator id"):
        p.graph()


def test_a_pipeline_graph_travels_as_bytes() -> None:
    p = a_pipeline()
    some_clicks(p).map_batches(lambda batch: batch).write("out", Drop())
    assert decode_graph(encode_graph(p.graph())) == p.graph()


class NamedSpec(OperatorSpec):
    """A spec of a connector that knows more than its kind and config."""


def test_specs_of_connectors_become_plain_in_the_graph() -> None:
    p = a_pipeline()
    p.read("read", NamedSpec("clicks", {"rate": 2}))
    assert p.graph().node("read").spec == OperatorSpec("clicks", {"rate": 2})


def test_explaining_shows_supersteps_and_operators() -> None:
    p = a_pipeline("shop", parallelism=2)
    kept = some_clicks(p).filter(pl.col("page") > 0)
    kept.key_by("user").process("count", Pass()).write("out", Drop(), parallelism=1)
    assert p.explain() == (
        "job shop\n"
        "superstep 0: 2 tasks\n"
        "  chain 0 x2, tasks 0-1: read → filter-1\n"
        "    exchange 0 by-key(user): filter-1 → count[0], to chain 1\n"
        "superstep 1: 2 tasks\n"
        "  chain 1 x2, tasks 0-1: count\n"
        "    exchange 1 rebalance: count → out[0], to chain 2\n"
        "superstep 2: 1 task\n"
        "  chain 2 x1, task 0: out\n"
        "operators\n"
        "  read: clicks()\n"
        f"  filter-1: filter(predicate={pl.col('page') > 0})\n"
        "  count: pass()\n"
        "  out: drop()\n"
    )


def test_explaining_draws_the_graph_with_what_operators_say_of_themselves() -> None:
    p = a_pipeline()
    some_clicks(p).filter(pl.col("page") > 0).write("out", Drop())
    mermaid = p.explain("mermaid")
    assert mermaid.startswith("flowchart LR\n")
    assert "predicate=[(col(#quot;page#quot;)) #gt; " in mermaid
    drawn = json.loads(p.explain("json"))
    assert [operator["name"] for operator in drawn["operators"]] == [
        "read",
        "filter-1",
        "out",
    ]
    assert drawn["operators"][1]["facts"] == {"predicate": '[(col("page")) > (dyn int: 0)]'}


def test_a_pipeline_is_not_explained_in_a_form_that_does_not_exist() -> None:
    with pytest.raises(UserError, match="explained as 'mermad'; did you mean 'mermaid'"):
        a_pipeline().explain("mermad")  # type: ignore[arg-type]


def test_the_built_in_kinds_are_known_without_a_registry() -> None:
    p = Pipeline("shop", parallelism=2)
    rows = [{"user": "ann", "page": 1, "at": datetime(2024, 1, 1, tzinfo=UTC)}]
    clicks = p.read(
        "read", list_source(rows, splits=2), event_time="at", watermark_delay="5s"
    )
    other = p.read("other", list_source(rows), event_time="at")
    both = clicks.union(other).with_columns(double=pl.col("page") * 2)
    both.map_batches(lambda batch: batch).flat_map(lambda batch: [batch]).select(
        "user", "double"
    ).key_by("user").process("count", Pass()).write("out", list_sink("api-test"))
    graph = p.graph()
    assert [node.spec.kind for node in graph.nodes] == [
        "list_source",
        "list_source",
        "union",
        "with_columns",
        "map_batches",
        "flat_map",
        "select",
        "process",
        "list_sink",
    ]
    assert decode_graph(encode_graph(graph)) == graph
    assert len(compile_graph(graph).supersteps) == 3
    assert p.registry.constructors.keys() >= {"filter", "key_by", "source"}


class Socket(Clicks):
    """Reads what nobody can read again."""

    def is_rewindable(self) -> bool:
        return False


def test_explain_says_which_rows_are_processed_at_most_once() -> None:
    p = a_pipeline()
    p.read("lines", Socket()).write("out", list_sink("lines"))
    assert "delivery=at most once" in p.explain()
    assert "at most once" in p.explain("json")


def test_explain_says_which_sinks_deliver_at_least_once() -> None:
    p = a_pipeline()
    clicks = p.read("clicks", Clicks())
    clicks.write("out", list_sink("lines"))
    assert "at least once" not in p.explain()
    clicks.write("shown", stdout())
    assert "shown: stdout(format=json, delivery=at least once)" in p.explain()
    assert "at least once" in p.explain("json")
