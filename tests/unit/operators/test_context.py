import pytest

from penstock.core.ids import JobId, OperatorId, Subtask, TaskInfo
from penstock.errors import ErrorCode, StateError, UserError
from penstock.operators.context import OperatorContext, SourceContext
from penstock.operators.splits import SplitState
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.specs import (
    TableSpec,
    TimeDomain,
    global_table,
    keyed_table,
    time_keyed_table,
)
from penstock.state.tables.table import Frontier
from penstock.state.tables.table_manager import TableManager
from tests.builders.kept_epochs import an_attempt
from tests.builders.scripted import PLAIN, SCHEMA

TASK = TaskInfo(JobId("job"), OperatorId("op"), Subtask(2, 4))
TABLES: list[TableSpec] = [
    global_table("offsets", str, int),
    keyed_table("rows", SCHEMA, key_columns=["user"]),
    time_keyed_table("panes", SCHEMA, key_columns=["user"], time_column="at"),
]


def tables_of(*specs: TableSpec) -> TableManager:
    tables = TableManager.load(an_attempt(MemoryStore(), TASK), specs, {})
    tables.begin_epoch(Frontier())
    return tables


def a_context(*specs: TableSpec) -> OperatorContext:
    return OperatorContext(
        TASK, inputs=(PLAIN,), outputs={"main": PLAIN}, tables=tables_of(*specs)
    )


def test_it_hands_out_the_views_of_the_tables_that_were_declared() -> None:
    context = a_context(*TABLES)
    context.get_global_keyed_state("offsets").insert("a", 1)
    assert context.get_global_keyed_state("offsets").get("a") == 1
    assert context.get_keyed_state("rows") is not None
    assert context.get_time_keyed_state("panes") is not None
    assert context.get_key_time_state("panes") is not None


def test_a_table_that_was_not_declared_is_named() -> None:
    with pytest.raises(
        StateError, match="operator 'op' declares no table 'rows'"
    ) as raised:
        a_context().get_keyed_state("rows")
    assert raised.value.code is ErrorCode.NO_REGISTERED_TABLE


def test_a_table_of_another_kind_is_refused() -> None:
    context = a_context(*TABLES)
    with pytest.raises(StateError) as raised:
        context.get_global_keyed_state("rows")
    assert raised.value.code is ErrorCode.WRONG_TABLE_KIND


@pytest.mark.parametrize("domain", list(TimeDomain))
def test_timers_that_were_not_declared_are_refused(domain: TimeDomain) -> None:
    context = a_context()
    with pytest.raises(UserError, match=f"return TimeDomain.{domain.name} from timers"):
        _ = (
            context.event_timers
            if domain is TimeDomain.EVENT_TIME
            else context.processing_timers
        )


def test_the_earliest_wish_to_wake_up_counts() -> None:
    context = a_context()
    assert context.wake_up_micros is None
    for micros in (30, 10, 20):
        context.wake_at(micros)
    assert context.wake_up_micros == 10


def test_counters_add_up() -> None:
    context = a_context()
    context.count("late")
    context.count("late", 4)
    assert context.counters == {"late": 5}


def test_a_source_notes_offsets_and_ends_of_its_own_splits_only() -> None:
    context = SourceContext(TASK, outputs={"main": PLAIN}, tables=tables_of())
    context.split_states = {"a": SplitState(offset=1, max_event_time_micros=7)}
    context.advance("a", 2)
    context.end_split("a")
    assert context.split_state("a") == SplitState(2, ended=True, max_event_time_micros=7)
    with pytest.raises(UserError) as raised:
        context.advance("b", 1)
    assert raised.value.code is ErrorCode.UNKNOWN_SPLIT
    assert "subtask 2 does not read in this epoch; it reads: 'a'" in raised.value.message


def test_a_subtask_without_splits_says_so() -> None:
    context = SourceContext(TASK, outputs={"main": PLAIN}, tables=tables_of())
    with pytest.raises(UserError, match="it reads: none"):
        context.end_split("b")
