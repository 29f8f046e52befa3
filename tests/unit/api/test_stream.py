"""Streams: what graph each step adds, and which mistakes the graph is refused for."""

import polars as pl
import pyarrow as pa
import pytest

from penstock.api.stream import Stream
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import (
    BAD,
    LATE,
    MAIN,
    Edge,
    Exchange,
    LogicalGraph,
    OperatorSpec,
)
from penstock.operators.operator import DisplayableOperator
from tests.builders.graphs import BY_USER, CLICKS, schema_of
from tests.builders.pipelines import Clicks, Drop, Pass, a_pipeline, some_clicks


def edges_of(graph: LogicalGraph) -> list[str]:
    return [f"{edge} {edge.exchange}" for edge in graph.edges]


def only_edge(graph: LogicalGraph, target: str) -> Edge:
    (edge,) = graph.edges_into(target)
    return edge


def test_steps_without_state_are_named_by_kind_and_number() -> None:
    p = a_pipeline()
    stream = some_clicks(p).filter(pl.col("page") > 0).filter(pl.col("page") < 9)
    stream.select("user").write("out", Drop())
    assert edges_of(p.graph()) == [
        "read → filter-1[0] forward",
        "filter-1 → filter-2[0] forward",
        "filter-2 → select-1[0] forward",
        "select-1 → out[0] forward",
    ]


def test_an_automatic_name_that_is_taken_is_passed_over() -> None:
    p = a_pipeline()
    some_clicks(p, "filter-1").filter(pl.col("page") > 0)
    assert [node.operator for node in p.graph().nodes] == ["filter-1", "filter-2"]


def test_columns_are_derived_from_step_to_step() -> None:
    clicks = some_clicks(a_pipeline())
    stream = clicks.with_columns(
        pl.col("page") + 1, twice=pl.col("page") * 2, one=1
    ).select("at", "twice", copy="one")
    assert stream.schema.arrow.names == ["at", "twice", "copy"]
    assert stream.schema.time_column == "at"


def test_a_column_that_does_not_exist_is_refused_with_a_suggestion() -> None:
    p = a_pipeline()
    some_clicks(p).filter(pl.col("pag") > 0)
    with pytest.raises(SchemaError, match="did you mean 'page'") as raised:
        p.graph()
    adding, written = raised.value.__notes__
    assert adding == "while adding operator 'filter-1' to the pipeline"
    assert written.endswith(", in filter")


def test_a_value_that_is_no_expression_is_refused() -> None:
    p = a_pipeline()
    some_clicks(p).with_columns(page=object())
    with pytest.raises(UserError, match="is no expression") as raised:
        p.graph()
    assert raised.value.code is ErrorCode.INVALID_CONFIG


def test_a_function_over_batches_keeps_columns_unless_a_schema_says_otherwise() -> None:
    clicks = some_clicks(a_pipeline())
    assert clicks.map_batches(lambda batch: batch).schema == CLICKS
    assert clicks.flat_map(lambda batch: [batch]).schema == CLICKS


def test_a_function_with_a_plain_schema_keeps_event_time_if_it_keeps_the_column() -> None:
    clicks = some_clicks(a_pipeline())
    kept = schema_of(at=CLICKS.arrow.field("at").type, n=pa.int64())
    lost = schema_of(n=pa.int64())
    assert clicks.map_batches(lambda b: b, schema=kept).schema == StreamSchema(kept, "at")
    assert clicks.flat_map(lambda b: b, schema=lost).schema == StreamSchema(lost)


def test_a_function_with_a_stream_schema_emits_exactly_that() -> None:
    wanted = StreamSchema(schema_of(n=pa.int64()))
    clicks = some_clicks(a_pipeline())
    assert clicks.map_batches(lambda batch: batch, schema=wanted).schema == wanted


def test_a_keyed_operator_reads_by_key_and_its_output_is_no_longer_keyed() -> None:
    p = a_pipeline()
    keyed = some_clicks(p).key_by("user")
    counted = keyed.process("count", Pass())
    counted.filter(pl.col("page") > 0)
    graph = p.graph()
    assert keyed.schema == BY_USER
    assert counted.schema == CLICKS
    assert graph.node("count").inputs == (BY_USER,)
    assert graph.node("filter-1").inputs == (CLICKS,)
    assert only_edge(graph, "count").exchange is Exchange.BY_KEY
    assert only_edge(graph, "filter-1").exchange is Exchange.FORWARD


def test_a_key_column_that_does_not_exist_is_refused_with_a_suggestion() -> None:
    p = a_pipeline()
    some_clicks(p).key_by("usr")
    with pytest.raises(SchemaError, match="'usr' is not a column; did you mean 'user'"):
        p.graph()


def test_a_key_of_no_columns_is_refused() -> None:
    p = a_pipeline()
    some_clicks(p).key_by()
    with pytest.raises(UserError, match="key_by needs at least one column"):
        p.graph()


def test_an_operator_with_several_inputs_takes_them_in_order() -> None:
    p = a_pipeline()
    left, right, rules = (some_clicks(p, name) for name in ("left", "right", "rules"))
    left.key_by("user").process("join", Pass(), right.key_by("user"), rules.broadcast())
    assert edges_of(p.graph()) == [
        "left → join[0] by-key",
        "right → join[1] by-key",
        "rules → join[2] broadcast",
    ]


def test_a_union_reads_from_all_its_streams() -> None:
    p = a_pipeline()
    first, second, third = (some_clicks(p, name) for name in "abc")
    first.union(second, third).write("out", Drop())
    assert edges_of(p.graph()) == [
        "a → union-1[0] forward",
        "b → union-1[1] forward",
        "c → union-1[2] forward",
        "union-1 → out[0] forward",
    ]


def test_a_union_of_one_is_the_stream_itself() -> None:
    clicks = some_clicks(a_pipeline())
    assert clicks.union() is clicks


def test_streams_of_two_pipelines_do_not_meet() -> None:
    ours, theirs = a_pipeline("ours"), a_pipeline("theirs")
    some_clicks(ours).union(some_clicks(theirs))
    with pytest.raises(UserError, match="'union-1' of pipeline 'ours' cannot read from"):
        ours.graph()
    assert [node.operator for node in theirs.graph().nodes] == ["read"]


def test_side_outputs_are_read_by_name() -> None:
    p = a_pipeline()
    clicks = some_clicks(p)
    clicks.side_output(BAD).write("bad", Drop())
    late = clicks.key_by("user").process("count", Pass()).side_output(LATE)
    late.write("late", Drop())
    graph = p.graph()
    assert only_edge(graph, "bad").output == BAD
    assert only_edge(graph, "late").output == LATE
    assert late.schema.key_columns == ()


@pytest.mark.parametrize("name", ["lat", MAIN])
def test_a_side_output_that_does_not_exist_is_refused(name: str) -> None:
    p = a_pipeline()
    some_clicks(p).process("pass", Pass()).side_output(name)
    with pytest.raises(UserError, match=f"'pass' has no side output {name!r}") as raised:
        p.graph()
    assert raised.value.code is ErrorCode.UNKNOWN_OUTPUT
    assert "'late'" in raised.value.message


def test_a_sink_is_not_processed_and_an_operator_is_not_written_to() -> None:
    p, q = a_pipeline(), a_pipeline()
    some_clicks(p).process("out", Drop())
    with pytest.raises(UserError, match="'out' emits nothing that could be read on"):
        p.graph()
    some_clicks(q).write("out", Pass())
    with pytest.raises(UserError, match="'out' is not a sink: its rows would be lost"):
        q.graph()


def test_a_source_is_not_put_behind_a_stream() -> None:
    p = a_pipeline()
    some_clicks(p).process("again", OperatorSpec("clicks"))
    with pytest.raises(UserError, match="'again' of kind 'clicks' is a source"):
        p.graph()


def test_the_class_of_an_operator_is_no_operator() -> None:
    p = a_pipeline()
    some_clicks(p).process("pass", Pass)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"write Pass\(…\), an instance"):
        p.graph()


def test_a_name_is_used_once() -> None:
    p = a_pipeline()
    clicks = some_clicks(p)
    clicks.process("pass", Pass())
    clicks.process("pass", Pass())
    with pytest.raises(UserError, match="has an operator named 'pass' already") as raised:
        p.graph()
    assert raised.value.code is ErrorCode.NAME_TAKEN


def test_several_steps_may_follow_one_stream() -> None:
    p = a_pipeline()
    clicks = some_clicks(p)
    clicks.filter(pl.col("page") > 0).write("some", Drop())
    clicks.write("all", Drop())
    assert [edge.target for edge in p.graph().edges_out_of("read")] == ["filter-1", "all"]


class TestParallelism:
    def parallelism_of(self, stream: Stream) -> int:
        graph = stream.builder.graph()
        return graph.node(stream.port.operator).parallelism

    def test_a_step_has_that_of_its_producer(self) -> None:
        p = a_pipeline(parallelism=4)
        clicks = p.read("read", Clicks(), parallelism=2)
        assert self.parallelism_of(clicks.filter(pl.col("page") > 0)) == 2

    def test_a_step_behind_an_exchange_has_that_of_the_pipeline(self) -> None:
        clicks = a_pipeline(parallelism=4).read("read", Clicks(), parallelism=2)
        assert self.parallelism_of(clicks.key_by("user").process("a", Pass())) == 4
        assert self.parallelism_of(clicks.rebalance().process("b", Pass())) == 4
        assert self.parallelism_of(clicks.broadcast().process("c", Pass())) == 4

    def test_rebalancing_asks_for_one_of_its_own(self) -> None:
        p = a_pipeline()
        wide = some_clicks(p).rebalance(parallelism=3).filter(pl.col("page") > 0)
        assert self.parallelism_of(wide) == 3
        assert only_edge(p.graph(), "filter-1").exchange is Exchange.REBALANCE

    def test_a_step_that_asks_for_another_one_is_rebalanced(self) -> None:
        p = a_pipeline()
        some_clicks(p).write("out", Drop(), parallelism=2)
        assert only_edge(p.graph(), "out").exchange is Exchange.REBALANCE

    def test_a_union_of_different_ones_rebalances_those_that_differ_from_the_first(
        self,
    ) -> None:
        p = a_pipeline()
        first = p.read("first", Clicks(), parallelism=2)
        first.union(p.read("second", Clicks(), parallelism=3))
        assert edges_of(p.graph()) == [
            "first → union-1[0] forward",
            "second → union-1[1] rebalance",
        ]


def test_an_exception_in_what_an_operator_shows_names_the_step() -> None:
    class Shy(Pass):
        def display(self) -> DisplayableOperator:
            raise ValueError("shy")

    with pytest.raises(ValueError, match="shy") as caught:
        some_clicks(a_pipeline()).process("shy", Shy())
    assert caught.value.__notes__ == ["while adding operator 'shy' to the pipeline"]
