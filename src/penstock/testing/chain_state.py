"""Looking at the state of operators under test, as their last checkpoint holds it."""

from typing import Any

import pyarrow as pa

from penstock.core.ids import OperatorId, Subtask
from penstock.core.schema import StreamSchema
from penstock.core.suggestion import did_you_mean
from penstock.errors import ErrorCode, StateError, UserError
from penstock.operators.timer_rows import (
    DUE,
    FIRES_AT,
    in_firing_order,
    keys_of,
    micros_in,
    newest_rows,
    next_instant,
    set_rows,
)
from penstock.operators.timers import timer_tables
from penstock.operators.watermarks import event_time_of
from penstock.state.proto import state_pb2
from penstock.state.tables.keyed_rows import join_rows
from penstock.state.tables.specs import TableSpec, TimeDomain
from penstock.state.tables.table_manager import TableManager
from penstock.testing.chain_subtasks import ChainSubtasks


def read_table(subtasks: ChainSubtasks, table: str, subtask: int | None = None) -> Any:
    """Return a global table as a dictionary, another one as an Arrow table."""
    operator, spec = _find(subtasks, table)
    # One subtask of one owns all keys: it sees the state of all the others.
    seen_by = Subtask(0, 1) if subtask is None else Subtask(subtask, subtasks.parallelism)
    manager = subtasks.open_tables(operator, seen_by)
    try:
        return _contents(manager, spec)
    finally:
        manager.close()


def read_timers(subtasks: ChainSubtasks, domain: TimeDomain) -> list[dict[str, Any]]:
    """Return the timers that no clock has reached yet, of all operators, earliest first."""
    found: list[dict[str, Any]] = []
    declares_any = False
    for node in subtasks.nodes:
        if not node.inputs or not node.inputs[0].key_columns:
            continue
        table = timer_tables([domain], node.inputs[0])[0].name
        if all(spec.name != table for spec in subtasks.tables[node.operator]):
            continue
        declares_any = True
        found += _timers(subtasks, node.operator, node.inputs[0], domain)
    if not declares_any:
        raise UserError(
            f"no operator under test sets timers by {domain.value}: return "
            f"TimeDomain.{domain.name} from timers()",
            code=ErrorCode.UNDECLARED_TIMERS,
        )
    return sorted(found, key=lambda timer: timer["due_micros"])


def _find(subtasks: ChainSubtasks, table: str) -> tuple[OperatorId, TableSpec]:
    known = [
        (operator, spec) for operator, specs in subtasks.tables.items() for spec in specs
    ]
    found = [(operator, spec) for operator, spec in known if spec.name == table]
    if len(found) == 1:
        return found[0]
    names = [str(spec.name) for _, spec in known]
    raise StateError(
        f"{len(found) or 'no'} operators under test declare the table {table!r}"
        f"{did_you_mean(table, set(names))}; there is: {', '.join(names) or 'none'}",
        code=ErrorCode.NO_REGISTERED_TABLE,
        table=table,
    )


def _contents(manager: TableManager, spec: TableSpec) -> Any:
    if spec.table_type == state_pb2.GLOBAL_KEYED_TABLE:
        return dict(manager.get_global_keyed_state(spec.name).items())
    if spec.table_type == state_pb2.TIME_KEYED_TABLE:
        return manager.get_time_keyed_state(spec.name).rows()
    view = manager.get_keyed_state(spec.name)
    return pa.Table.from_batches(list(view.scan()), view.schema.declared)


def _timers(
    subtasks: ChainSubtasks, operator: OperatorId, keyed: StreamSchema, domain: TimeDomain
) -> list[dict[str, Any]]:
    table = timer_tables([domain], keyed)[0].name
    rows: pa.Table = read_table(subtasks, table)
    batches = [batch for batch in rows.to_batches() if batch.num_rows]
    if not batches:
        return []
    clock = subtasks.state.processing_time_micros
    if domain is TimeDomain.EVENT_TIME:
        known = event_time_of(subtasks.state.watermarks.get(operator, ()))
        clock = None if known is None else known.micros
    joined = join_rows(batches)
    if clock is not None:
        ahead = micros_in(joined, FIRES_AT) >= next_instant(clock)
        joined = joined.filter(pa.array(ahead))
    timers = in_firing_order(set_rows(newest_rows(joined)))
    due = micros_in(timers, DUE).tolist()
    return [
        {**key, "due_micros": micros}
        for key, micros in zip(keys_of(timers, keyed).to_pylist(), due, strict=True)
    ]
