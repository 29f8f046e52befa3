"""ChangelogSteps: the steps of a stream that make changelogs of rows, and other forms of them.

| step | from | to |
|---|---|---|
| `to_table`, `from_upserts`, `from_debezium` | rows | a changelog |
| `to_debezium`, `to_upserts`, `to_rows` | a changelog | rows |

Rows that count in the order in which they come must not be mixed before: steps that mix them are
refused, and sources that may bring them mixed are warned of.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from penstock.api.gathering import step
from penstock.api.graph_builder import BrokenPort, GraphBuilder, Port
from penstock.core.spellings import OnBad, diverts_bad
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import BAD, Edge, Exchange, Node
from penstock.operators.changelogs.debezium import from_debezium_spec, order_expression
from penstock.operators.changelogs.envelopes import (
    ToDebeziumConfig,
    ToRowsConfig,
    ToUpsertsConfig,
)
from penstock.operators.changelogs.latest import latest_spec
from penstock.operators.changes import check_changelog
from penstock.operators.frames import to_name, to_names
from penstock.operators.operator import SourceOperator
from penstock.operators.stateless import check_columns
from penstock.operators.udfs.async_operator import AsyncUdfOperator
from penstock.operators.udfs.specs import AsyncUdfSpec, CallUdfSpec

if TYPE_CHECKING:
    from penstock.api.stream import Stream

_log = logging.getLogger(__name__)


def _broken(stream: Any) -> Any:
    return type(stream)(stream.builder, BrokenPort())


class ChangelogSteps:
    """The part of `Stream` that is about changelogs."""

    builder: GraphBuilder
    port: Port
    _then: "Callable[..., Stream]"
    """Adds an operator behind the stream; `Stream` has it."""

    @step(_broken)
    def to_debezium(self) -> "Stream":
        """Turn a changelog into Debezium's records `{before, after, op}`, one per changed row.

        >>> import penstock as pen
        >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-to-debezium")
        >>> sales = p.read("sales", pen.list_source([{"user": "ada", "price": 7}]))
        >>> spent = sales.key_by("user").aggregate("spent", total=pen.sum("price"))
        >>> spent.to_debezium().write("out", out)
        >>> status = p.run_in_process("memory:")
        >>> out.rows()
        [{'before': None, 'after': {'user': 'ada', 'total': 7}, 'op': 'c'}]
        """
        check_changelog("to_debezium", self.port.schema)
        return self._then(ToDebeziumConfig().to_operator_spec(), settles=True)

    @step(_broken)
    def to_upserts(self) -> "Stream":
        """Turn a changelog into the latest row of each changed key, and a column `deleted`.

        A row that is gone has only its key, and `deleted` is true.

        >>> import penstock as pen
        >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-to-upserts")
        >>> sales = p.read("sales", pen.list_source([{"user": "ada", "price": 7}]))
        >>> spent = sales.key_by("user").aggregate("spent", total=pen.sum("price"))
        >>> spent.to_upserts().write("out", out)
        >>> status = p.run_in_process("memory:")
        >>> out.rows()
        [{'user': 'ada', 'total': 7, 'deleted': False}]
        """
        check_changelog("to_upserts", self.port.schema)
        return self._then(ToUpsertsConfig().to_operator_spec(), settles=True)

    @step(_broken)
    def to_rows(self) -> "Stream":
        """Turn a changelog into append-only rows: each change stands for itself.

        >>> import penstock as pen, polars as pl
        >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-to-rows")
        >>> sales = p.read("sales", pen.list_source([{"user": "ada", "price": 7}]))
        >>> spent = sales.key_by("user").aggregate("spent", total=pen.sum("price"))
        >>> spent.to_rows().filter(pl.col("change") == "insert").write("out", out)
        >>> status = p.run_in_process("memory:")
        >>> out.rows()
        [{'change': 'insert', 'user': 'ada', 'total': 7}]
        """
        check_changelog("to_rows", self.port.schema)
        return self._then(ToRowsConfig().to_operator_spec(), settles=True)

    @step(_broken, is_named=True)
    def to_table(
        self,
        name: str,
        *,
        key: str | Sequence[str],
        order_by: str | None = None,
        parallelism: int | None = None,
    ) -> "Stream":
        """Keep the last row of each key and emit how it changes: a changelog of the table.

        The last row is the one with the latest event time, or the greatest value of `order_by`;
        of several rows at the same instant it is the greatest one by its columns in order.

        >>> import penstock as pen
        >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-to-table")
        >>> rows = [{"user": "ada", "v": 2}, {"user": "ada", "v": 1}]
        >>> users = p.read("users", pen.list_source(rows))
        >>> users.to_table("users-by-name", key="user", order_by="v").write("out", out)
        >>> status = p.run_in_process("memory:")
        >>> out.rows()
        [{'change': 'insert', 'user': 'ada', 'v': 2}]
        """
        self.port.check_append_only("to_table")
        given = to_name("order_by", order_by, where=f"to_table {name!r}: ")
        order = self.port.schema.time_column if given is None else given
        if order is None:
            raise UserError(
                f"to_table {name!r} keeps the last row of each key, and nothing says which one "
                "that is: give order_by=, a column that grows, or read the rows with an "
                "event_time. from_upserts takes rows in the order in which they come",
                code=ErrorCode.INVALID_CONFIG,
                operator=name,
            )
        keys = to_names("key", key, where=f"to_table {name!r}: ")
        return self._latest(name, self.port, keys, order=order, parallelism=parallelism)

    @step(_broken, is_named=True)
    def from_upserts(
        self,
        name: str,
        *,
        key: str | Sequence[str],
        deleted: str | None = None,
        order_by: str | None = None,
        parallelism: int | None = None,
    ) -> "Stream":
        """Take each row as the new row of its key, and emit how the table changes.

        Rows of a key count in the order in which their source brings them, which must then be
        one split, such as a partition of a topic; or by the values of `order_by`. Where the
        column `deleted` is true the row of the key is gone.

        >>> import penstock as pen
        >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-from-upserts")
        >>> rows = [{"user": "ada", "city": "Rom"}, {"user": "ada", "city": "Ulm"}]
        >>> users = p.read("users", pen.list_source(rows))
        >>> users.from_upserts("users-by-name", key="user").write("out", out)
        >>> status = p.run_in_process("memory:")
        >>> out.rows()
        [{'change': 'insert', 'user': 'ada', 'city': 'Ulm'}]
        """
        self.port.check_append_only("from_upserts")
        where = f"from_upserts {name!r}: "
        keys = to_names("key", key, where=where)
        order_by = to_name("order_by", order_by, where=where)
        deleted = to_name("deleted", deleted, where=where)
        return self._latest(
            name, self.port, keys, order=order_by, deleted=deleted, parallelism=parallelism
        )

    @step(_broken, is_named=True)
    def from_debezium(
        self,
        name: str,
        *,
        key: str | Sequence[str],
        on_bad: OnBad = "fail",
        order_by: str | pl.Expr | None = None,
        parallelism: int | None = None,
    ) -> "Stream":
        """Read Debezium's records `{before, after, op}` as a changelog of their table.

        `key` names columns of `after`. State tells what a row was before, so records may lack
        it or come twice; those of a key must come in order, from one split. With `order_by`,
        a field of the record such as `"ts_ms"` or `"source.lsn"`, or an expression of the
        stream's columns, they may come in any order: the greatest counts, of several the last
        to come, and deleted keys are remembered for ever. With `on_bad="divert"` records that
        cannot be read go to the side output `BAD`.

        >>> import penstock as pen
        >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-from-debezium")
        >>> records = [{"before": None, "after": {"id": 1, "n": 5}, "op": "c"}]
        >>> orders = p.read("orders", pen.list_source(records))
        >>> orders.from_debezium("orders-by-id", key="id").write("out", out)
        >>> status = p.run_in_process("memory:")
        >>> out.rows()
        [{'change': 'insert', 'id': 1, 'n': 5}]
        """
        self.port.check_append_only("from_debezium")
        diverts_bad(on_bad, where=f"from_debezium {name!r}: ")
        builder = self.builder
        keys = to_names("key", key, where=f"from_debezium {name!r}: ")
        order: pl.Expr | None = None
        if not isinstance(order_by, pl.Expr):
            order_by = to_name("order_by", order_by, where=f"from_debezium {name!r}: ")
        if order_by is not None:
            order = order_expression(order_by, self.port.schema.arrow)
        spec = from_debezium_spec(keys, on_bad, order)
        records = builder.add_step(f"{name}-records", spec, [self.port])
        sides = {BAD: builder.port(records, BAD)} if on_bad == "divert" else {}
        rows = builder.port(records)
        *_, version, deleted = rows.schema.arrow.names
        marks: dict[str, str] = {"deleted": deleted}
        if order is not None:
            marks |= {"version": version, "version_of": str(order)}
        return self._latest(name, rows, keys, parallelism=parallelism, sides=sides, **marks)

    def _latest(
        self,
        name: str,
        rows: Port,
        keys: tuple[str, ...],
        *,
        parallelism: int | None,
        order: str | None = None,
        deleted: str | None = None,
        version: str | None = None,
        version_of: str = "",
        sides: Mapping[str, Port] | None = None,
    ) -> "Stream":
        check_columns(keys, rows.schema.arrow.names, f"the key of {name!r}")
        if not keys:
            raise UserError(
                f"{name!r} needs a key: name the columns that tell its rows apart",
                code=ErrorCode.INVALID_CONFIG,
                operator=name,
            )
        if order is None and version is None:
            for node, edges in self.builder.passed_through(rows):
                self._check_unmixed(name, node, edges)
        sent = rows.sent_by(keys)
        spec = latest_spec(
            sent.schema, order, deleted, version=version, version_of=version_of
        )
        operator = self.builder.add_step(name, spec, [sent], parallelism=parallelism)
        stream: Any = type(self)
        changelog: Stream = stream(self.builder, self.builder.port(operator), sides)
        return changelog

    def _check_unmixed(self, name: str, node: Node, edges: Sequence[Edge]) -> None:
        """Refuse a step that mixes the rows of a key; warn of a source that may."""
        problem = ""
        if any(edge.exchange is Exchange.REBALANCE for edge in edges):
            problem = "gets them mixed, by rebalance or from another number of subtasks: leave that out"
        elif node.spec.kind in (AsyncUdfSpec.kind, CallUdfSpec.kind):
            called = self.builder.registry.construct(node.spec).operator
            if isinstance(called, AsyncUdfOperator) and not called.config.is_ordered:
                problem = "lets them go on as answers come: declare it with ordered=True"
        if problem:
            raise UserError(
                f"{name!r} takes the rows of a key in the order in which they come, and "
                f"{node.operator!r} in front of it {problem}, or say by order_by= which row is "
                "the last",
                code=ErrorCode.INVALID_CONFIG,
                operator=name,
            )
        if edges or node.parallelism == 1:
            return
        source = self.builder.registry.construct(node.spec).operator
        if isinstance(source, SourceOperator) and source.has_keys_in_several_splits():
            _log.warning(
                "%r takes the rows of a key in the order in which they come, and %d subtasks read "
                "%r at the same time: if rows of one key are in several files or splits, chance "
                "decides which is the last. Read them one after the other, by "
                "p.read(…, parallelism=1), or say by order_by= which row is the last",
                name,
                node.parallelism,
                str(node.operator),
            )
