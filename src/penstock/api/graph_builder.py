"""GraphBuilder: the graph behind a fluent pipeline, as it grows step by step.

The registry builds every operator once when its step is added, so that the schema of its
output is known for the next step. A step that cannot work raises here;
`penstock.api.gathering` keeps its error.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from penstock.api.gathering import Problems
from penstock.core.clock import to_micros
from penstock.core.ids import JobId, OperatorId, is_whole
from penstock.core.schema import Settling, StreamSchema
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import (
    MAIN,
    Edge,
    Exchange,
    LogicalGraph,
    Node,
    OperatorSpec,
    WatermarkSpec,
)
from penstock.graph.validate import find_problems, validate
from penstock.operators.changelogs.envelopes import ToDebeziumConfig, ToUpsertsConfig
from penstock.operators.changelogs.settling import settle_spec
from penstock.operators.changes import check_append_only
from penstock.operators.expressions import EventTimeConfig, FilterConfig, event_time_spec
from penstock.operators.operator import ArrowOperator, DisplayableOperator, SourceOperator
from penstock.operators.registry import Registry
from penstock.operators.user_functions import ProcessConfig

_MEASURED_KINDS = (EventTimeConfig.kind, FilterConfig.kind)
"""The kinds of operators behind a source that decide which rows move its watermark."""

_ENVELOPES = (ToDebeziumConfig.kind, ToUpsertsConfig.kind)
"""The kinds of operators behind which changes are rows of another form, still in order."""


@dataclass(frozen=True, slots=True)
class Port:
    """One stream: the output it comes from, and how its rows travel to the next step."""

    operator: OperatorId
    output: str
    schema: StreamSchema
    """The schema of the next step's input; it has key columns only if rows are sent by them."""
    exchange: Exchange = Exchange.FORWARD
    parallelism: int | None = None
    """The parallelism wanted for the next step; None leaves it to `_parallelism_behind`."""

    def sent(self, exchange: Exchange, *, parallelism: int | None = None) -> "Port":
        """Return the same stream, its rows travelling in another way and without a key."""
        schema = self.schema.keyed_by()
        return replace(self, schema=schema, exchange=exchange, parallelism=parallelism)

    def sent_by(self, columns: Sequence[str]) -> "Port":
        """Return the same stream, its rows travelling to the owners of their keys."""
        schema = self.schema.keyed_by(*columns)
        return replace(self, schema=schema, exchange=Exchange.BY_KEY, parallelism=None)

    def check_append_only(self, step: str) -> None:
        """Refuse a step that cannot follow a changelog; one that is broken anyway may follow."""
        if not isinstance(self, BrokenPort):
            check_append_only(step, self.schema)


class BrokenPort(Port):
    """The stream of a step that cannot work. Further steps may follow; its schema is unknown."""

    __slots__ = ()

    def __init__(self) -> None:
        """Leave all fields unset."""

    def __getattr__(self, name: str) -> Any:
        """Raise for any field: only a step that works can fill it."""
        if name not in Port.__slots__:
            raise AttributeError(name)
        raise UserError(
            "a step in front of this one cannot work: Pipeline.graph says which and why",
            code=ErrorCode.BROKEN_INPUT,
        )


class GraphBuilder:
    """Nodes and edges so far. Only grows; owned by one pipeline and shared by its streams."""

    def __init__(self, job: JobId, parallelism: int, registry: Registry) -> None:
        self.job = job
        self._parallelism = parallelism
        self.registry = registry
        self._nodes: dict[OperatorId, Node] = {}
        self._edges: list[Edge] = []
        self._names: set[str] = set()
        """The names taken by steps in the graph and by steps that cannot work."""
        self.problems = Problems()
        """The mistakes of steps that are not in the graph."""
        self.displays: dict[OperatorId, DisplayableOperator] = {}
        """How each operator shows itself."""
        self._with_watermark: set[OperatorId] = set()
        """The operators that a watermark reaches, or that make one."""

    def graph(self) -> LogicalGraph:
        """Return the graph, or raise with everything that is wrong with it or its steps."""
        nodes = tuple(map(self._measured, self._nodes.values()))
        graph = LogicalGraph(self.job, nodes, tuple(self._edges))
        if self.problems:
            # Without its broken steps the graph is well-formed, so its own problems are real.
            self.problems.refuse(self.job, find_problems(graph) if graph.nodes else ())
        validate(graph)
        return graph

    def schema_of(self, port: Port) -> StreamSchema:
        """Return what the rows of a stream are, or raise every mistake so far."""
        if isinstance(port, BrokenPort):
            self.problems.refuse(self.job)
        return port.schema

    def outputs_of(self, operator: OperatorId) -> Mapping[str, StreamSchema]:
        """Return what an operator emits, by output."""
        return self._nodes[operator].outputs

    def settled(self, port: Port) -> Port:
        """Return a stream as others than operators for changelogs may see it.

        Of a changelog each key has at most one change per epoch, of an exact kind: what does
        not settle its changes itself gets an operator behind it that does.
        """
        if isinstance(port, BrokenPort):
            return port
        stream = port.schema
        sent_by = [] if stream.table_key is None else stream.key_columns
        is_split = not set(sent_by) <= set(stream.table_key or ())
        if stream.table_key is None or not (
            is_split or stream.settling is not Settling.SETTLED
        ):
            return port
        rows = port
        if port.exchange in (Exchange.BY_KEY, Exchange.BROADCAST):
            rows = port.sent(Exchange.FORWARD)
        parallelism = None
        if stream.settling is Settling.APART and not stream.is_bag:
            if stream.table_key:
                rows = rows.sent_by(stream.table_key)
            else:
                parallelism = 1
        operator = self.add_step(
            self.name_for("settle"),
            settle_spec(sent_by if is_split else ()),
            [rows],
            parallelism=parallelism,
        )
        settled = self.port(operator)
        if port.exchange is Exchange.BY_KEY:
            return settled.sent_by(stream.key_columns)
        return settled if rows.exchange is port.exchange else settled.sent(port.exchange)

    def name_for(self, kind: str) -> OperatorId:
        """Return the first free automatic name of a kind: `filter-1`, then `filter-2`."""
        number = 1
        while f"{kind}-{number}" in self._names:
            number += 1
        return OperatorId(f"{kind}-{number}")

    def reserve(self, name: str) -> None:
        """Make a name unavailable, whether it is free, taken or not a valid name."""
        self._names.add(name)

    def claim(self, name: str) -> OperatorId:
        """Take a name for a step that `place` will add; raise if it cannot be a name.

        A name that is taken is noted as a mistake, and the step is checked under a free name.
        """
        operator = OperatorId(name)
        if operator in self._names:
            taken = UserError(
                f"pipeline {self.job!r} has an operator named {name!r} already, and a name is "
                "the identity of state: choose another one",
                code=ErrorCode.NAME_TAKEN,
                operator=operator,
            )
            self.problems.note(taken)
            operator = self.name_for(name)
        self._names.add(operator)
        return operator

    def add_source(
        self,
        name: str,
        spec: OperatorSpec,
        *,
        event_time: str | pl.Expr | None,
        watermark: WatermarkSpec | None,
        parallelism: int | None,
    ) -> Port:
        """Add a source; it makes watermarks if its stream has an event time.

        `event_time` names its column, or is the expression that computes it in a step of its
        own behind the source; it replaces the one that the source declares.
        """
        computed = event_time if isinstance(event_time, pl.Expr) else None
        operator = self.claim(name)
        with _naming(operator):
            source = self.registry.construct(spec).operator
            if not isinstance(source, SourceOperator):
                raise UserError(
                    f"operator {operator!r} of kind {spec.kind!r} is not a source: it cannot "
                    "be read from. Put it behind a stream with process or write",
                    operator=operator,
                )
            stream = source.output_schema().keyed_by()
            if event_time is not None:
                column = None if isinstance(event_time, pl.Expr) else event_time
                stream = replace(stream, time_column=column)
            sides = source.side_outputs()
            shown = source.display()
        has_time = stream.time_column is not None or computed is not None
        if watermark is not None and not has_time:
            raise UserError(
                f"operator {operator!r}: watermark_delay and idle_timeout are about event time, but "
                "its rows have none: name their timestamp column as event_time",
                operator=operator,
            )
        count = self._parallelism if parallelism is None else parallelism
        outputs = {MAIN: stream, **sides}
        node = Node(operator, _plain(spec), count, outputs=outputs)
        self._nodes[operator] = node
        if not source.is_rewindable():
            shown = replace(shown, fields={**shown.fields, "delivery": "at most once"})
        self.displays[operator] = shown
        port = Port(operator, MAIN, stream)
        if not has_time:
            return port
        self._with_watermark.add(operator)
        if computed is not None:
            step = event_time_spec(computed)
            port = self.port(self.add_step(f"{operator}-event-time", step, [port]))
        rule = watermark or WatermarkSpec()
        idle = source.idle_timeout()
        if rule.idle_timeout_micros is None and idle is not None:
            rule = replace(rule, idle_timeout_micros=to_micros(idle, "idle timeout"))
        self._nodes[operator] = replace(node, watermark=rule)
        return port

    def add_step(
        self,
        name: str,
        spec: OperatorSpec,
        inputs: Sequence[Port],
        *,
        parallelism: int | None = None,
        is_sink: bool = False,
    ) -> OperatorId:
        """Add an operator behind others. Only a sink may have no output."""
        return self.place(
            self.claim(name), spec, inputs, parallelism=parallelism, is_sink=is_sink
        )

    def place(
        self,
        operator: OperatorId,
        spec: OperatorSpec,
        inputs: Sequence[Port],
        *,
        parallelism: int | None = None,
        is_sink: bool = False,
    ) -> OperatorId:
        """Add an operator whose name was claimed before; otherwise as `add_step`."""
        with _naming(operator):
            _check_parallelism(operator, parallelism)
            step = self.registry.construct(spec).operator
            if not isinstance(step, ArrowOperator):
                raise UserError(
                    f"operator {operator!r} of kind {spec.kind!r} is a source: it takes no "
                    "stream. Read from it with Pipeline.read",
                    operator=operator,
                )
            if parallelism is None:
                parallelism = self._parallelism_behind(inputs)
            inputs = [self._fitted(port, parallelism) for port in inputs]
            schemas = tuple(port.schema for port in inputs)
            if step.generates_watermarks():
                self._with_watermark.add(operator)
            else:
                self._follow_watermarks(operator, inputs)
            stream = step.output_schema(schemas)
            if stream is not None and spec.kind == ProcessConfig.kind:
                # What users' operators promise of changes is not known.
                stream = replace(stream, settling=Settling.APART)
            _check_end(operator, stream, is_sink=is_sink)
            sides = step.side_outputs(schemas)
            shown = step.display()
            if step.why_at_least_once() is not None:
                shown = replace(shown, fields={**shown.fields, "delivery": "at least once"})
        outputs = sides if stream is None else {MAIN: stream, **sides}
        self._nodes[operator] = Node(operator, _plain(spec), parallelism, schemas, outputs)
        for index, port in enumerate(inputs):
            edge = Edge(port.operator, operator, port.output, index, port.exchange)
            self._edges.append(edge)
        self.displays[operator] = shown
        return operator

    def _fitted(self, port: Port, parallelism: int) -> Port:
        """Return a stream as it travels to a step of some parallelism, by key if it is a table's."""
        if (
            port.exchange is not Exchange.FORWARD
            or self._parallelism_of(port) == parallelism
        ):
            return port
        # A forward edge needs the same parallelism at both ends.
        # Changes of one key stay in one subtask.
        if port.schema.table_key and not port.schema.is_bag:
            return port.sent_by(port.schema.table_key)
        if parallelism > 1 and self._is_in_order(port):
            raise UserError(
                "the changes that it reads come from "
                f"{self._parallelism_of(port)} subtasks and have no key columns by which to send "
                f"them to {parallelism}: changes of one key would overtake each other. Give the "
                f"step that makes them parallelism={parallelism} as well, or take 1 here",
                code=ErrorCode.INVALID_GRAPH,
            )
        return port.sent(Exchange.REBALANCE)

    def _is_in_order(self, port: Port) -> bool:
        """Return whether rows are changes whose order counts, but which have no key to go by."""
        if port.schema.table_key == ():
            return True
        if self._nodes[port.operator].spec.kind in _ENVELOPES:
            return True
        sources = [edge for edge in self._edges if edge.target == port.operator]
        if len(sources) != 1 or sources[0].exchange is not Exchange.FORWARD:
            return False
        return self._is_in_order(self.port(sources[0].source, sources[0].output))

    def passed_through(self, port: Port) -> Iterator[tuple[Node, Sequence[Edge]]]:
        """Yield the steps through which rows have come as they are, each with what it reads.

        The last ones are sources, and steps that get their rows by key or dealt out.
        """
        edges = [edge for edge in self._edges if edge.target == port.operator]
        yield self._nodes[port.operator], edges
        for edge in edges:
            if edge.exchange is Exchange.FORWARD:
                yield from self.passed_through(self.port(edge.source, edge.output))

    def port(self, operator: OperatorId, output: str = MAIN) -> Port:
        """Return an output of an operator, which must have it."""
        return Port(operator, output, self.outputs_of(operator)[output].keyed_by())

    def _follow_watermarks(self, operator: OperatorId, inputs: Sequence[Port]) -> None:
        """Note whether a watermark reaches an operator; refuse event time that has none."""
        for port in inputs:
            if port.operator in self._with_watermark:
                self._with_watermark.add(operator)
            elif port.schema.time_column is not None:
                column = port.schema.time_column
                raise UserError(
                    f"operator {operator!r} reads rows of {port.operator!r} whose event time is "
                    f"{column!r}, but no watermark can ever come: the source in front of them "
                    "makes none, so windows would never close. Give it event_time=… in read, "
                    f"or put .watermark('a-name', {column!r}) in front of {operator!r}",
                    operator=operator,
                )

    def _measured(self, node: Node) -> Node:
        """Return a node; a source with the operators behind which its watermark is measured.

        These are the one that computes event time, and the filters that follow one by one: a
        row that is not wanted must not move the watermark.
        """
        if node.watermark is None:
            return node
        behind: list[OperatorId] = []
        reader = self._only_reader(node.operator)
        while reader is not None and reader.spec.kind in _MEASURED_KINDS:
            behind.append(reader.operator)
            reader = self._only_reader(reader.operator)
        return replace(node, watermark=replace(node.watermark, behind=tuple(behind)))

    def _only_reader(self, operator: OperatorId) -> Node | None:
        """Return what reads an operator's rows in the same chain, if nothing else does."""
        edges = [e for e in self._edges if (e.source, e.output) == (operator, MAIN)]
        if len(edges) != 1 or edges[0].exchange is not Exchange.FORWARD:
            return None
        return self._nodes[edges[0].target]

    def _parallelism_behind(self, inputs: Sequence[Port]) -> int:
        """Return the default parallelism of a step: that of its port, else of its producer."""
        for port in inputs:
            if port.parallelism is not None:
                return port.parallelism
        for port in inputs:
            if port.exchange is Exchange.FORWARD:
                return self._parallelism_of(port)
        return self._parallelism

    def _parallelism_of(self, port: Port) -> int:
        return self._nodes[port.operator].parallelism


def _plain(spec: OperatorSpec) -> OperatorSpec:
    """Return a plain `OperatorSpec`, without the further fields of a connector's subclass."""
    return OperatorSpec(spec.kind, spec.config)


def _check_parallelism(operator: str, parallelism: object) -> None:
    """Refuse what is no number of subtasks; how many there can be is checked with the graph."""
    if parallelism is not None and not is_whole(parallelism):
        raise UserError(
            f"operator {operator!r}: parallelism {parallelism!r:.80} cannot work: use a whole "
            "number, such as 2",
            code=ErrorCode.INVALID_NUMBER,
            operator=operator,
        )


def _check_end(operator: str, stream: StreamSchema | None, *, is_sink: bool) -> None:
    if is_sink and stream is not None:
        raise UserError(
            f"operator {operator!r} is not a sink: its rows would be lost. Put it into the "
            "pipeline with process, or let its output_schema return None",
            operator=operator,
        )
    if not is_sink and stream is None:
        raise UserError(
            f"operator {operator!r} emits nothing that could be read on: put a sink into the "
            "pipeline with write, or let its output_schema return what it emits",
            operator=operator,
        )


@contextmanager
def _naming(operator: OperatorId) -> Iterator[None]:
    """Add the operator's name to any error that the body raises."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while adding operator {operator!r} to the pipeline")
        raise
