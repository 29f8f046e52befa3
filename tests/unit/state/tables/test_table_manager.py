"""All tables of one subtask: what is restored, what is written, and what is refused."""

import pytest

from penstock.core.ids import Epoch
from penstock.errors import (
    CorruptStateError,
    ErrorCode,
    InternalError,
    StateError,
    StorageError,
    UserError,
)
from penstock.state.proto import state_pb2
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.specs import global_table, keyed_table
from penstock.state.tables.table import Frontier
from penstock.state.tables.table_manager import TableManager
from penstock.testing import Fault, FaultMode, FaultyStore
from tests.unit.state.tables.manager_builders import (
    PANES,
    ROWS,
    SPECS,
    TOTALS,
    a_manager,
    checkpoint,
    contents,
    some_rows,
    two_subtasks,
    write_everywhere,
)
from tests.unit.state.tables.table_builders import an_environment


def test_a_fresh_operator_starts_empty_and_an_idle_epoch_writes_nothing() -> None:
    store = MemoryStore()
    manager = a_manager(store)
    assert contents(manager) == ({}, [], [])
    done = checkpoint(manager, 1)
    assert done.bytes_written == 0
    assert not done.metadata.table_checkpoint_metadata
    assert set(done.metadata.table_configs) == {"counts", "plain", "totals", "panes"}
    assert store.contents() == {}


def test_what_was_written_is_there_after_a_restore() -> None:
    store = MemoryStore()
    manager = a_manager(store)
    write_everywhere(manager)
    done = checkpoint(manager, 1)
    assert done.changed
    assert done.bytes_written == sum(map(len, store.contents().values()))
    again = a_manager(store, {0: done.metadata}, attempt=2)
    assert contents(again) == contents(manager) == ({"a": 1}, ["a"], ["a"])


def test_an_unchanged_epoch_needs_no_metadata_of_its_own() -> None:
    store = MemoryStore()
    manager = a_manager(store)
    write_everywhere(manager)
    first = checkpoint(manager, 1)
    kept = store.contents()
    manager.catch_up(an_environment(store, attempt=2), {0: first.metadata})
    manager.begin_epoch(Frontier(None, 0))
    assert contents(manager) == ({"a": 1}, ["a"], ["a"])
    second = checkpoint(manager, 2)
    assert not second.changed
    assert second.bytes_written == 0
    assert store.contents() == kept
    tables = second.metadata.table_checkpoint_metadata
    assert dict(tables) == dict(first.metadata.table_checkpoint_metadata)


def test_a_new_declaration_is_a_change_even_without_writes() -> None:
    store = MemoryStore()
    first = checkpoint(a_manager(store), 1)
    environment = an_environment(store, attempt=2)
    manager = TableManager.load(
        environment, [*SPECS, global_table("new")], {0: first.metadata}
    )
    manager.begin_epoch(Frontier())
    assert checkpoint(manager, 2).changed


def test_commit_data_is_in_the_metadata_of_its_own_epoch_only() -> None:
    manager = a_manager()
    manager.insert_committing_data("counts", b"files to commit")
    first = checkpoint(manager, 1)
    assert dict(first.metadata.commit_data) == {"counts": b"files to commit"}
    manager.catch_up(an_environment(attempt=2), {0: first.metadata})
    manager.begin_epoch(Frontier())
    second = checkpoint(manager, 2)
    assert not second.metadata.commit_data
    assert second.changed, "carrying the first one's object on would commit its data again"


def test_commit_data_is_taken_once_per_epoch() -> None:
    manager = a_manager()
    manager.insert_committing_data("counts", b"one")
    with pytest.raises(
        StateError, match=r"already has commit data.*into one value"
    ) as raised:
        manager.insert_committing_data("counts", b"two")
    assert raised.value.code is ErrorCode.COMMIT_DATA_ALREADY_SET
    assert dict(checkpoint(manager, 1).metadata.commit_data) == {"counts": b"one"}


@pytest.mark.parametrize("table", ["plain", "totals", "panes"])
def test_commit_data_is_refused_at_once_by_a_table_that_cannot_hold_it(table: str) -> None:
    manager = a_manager()
    with pytest.raises(StateError, match=f"{table}.*uses_two_phase_commit") as raised:
        manager.insert_committing_data(table, b"data")
    assert raised.value.code is ErrorCode.WRONG_TABLE_KIND
    write_everywhere(manager)
    assert checkpoint(manager, 1).changed, "the manager goes on"


def test_a_table_that_is_not_declared_is_refused_by_name() -> None:
    manager = a_manager()
    for ask in (
        manager.get_global_keyed_state,
        manager.get_keyed_state,
        manager.get_time_keyed_state,
        manager.get_key_time_state,
    ):
        with pytest.raises(
            StateError, match=r"'typo'.*counts, panes, plain, totals"
        ) as raised:
            ask("typo")
        assert raised.value.code is ErrorCode.NO_REGISTERED_TABLE
    with pytest.raises(StateError, match="declares no table 'typo'"):
        manager.insert_committing_data("typo", b"data")


def test_a_table_asked_for_as_another_kind_says_what_it_is() -> None:
    manager = a_manager()
    for ask, table, kind in (
        (manager.get_keyed_state, "counts", "GlobalKeyedTable"),
        (manager.get_time_keyed_state, "totals", "KeyedTable"),
        (manager.get_key_time_state, "totals", "KeyedTable"),
        (manager.get_global_keyed_state, "panes", "TimeKeyedTable"),
    ):
        with pytest.raises(StateError, match=f"'{table}'.* is a {kind}") as raised:
            ask(table)
        assert raised.value.code is ErrorCode.WRONG_TABLE_KIND


def test_two_tables_of_one_name_are_refused() -> None:
    specs = [TOTALS, PANES, keyed_table("totals", ROWS, key_columns=["value"])]
    with pytest.raises(UserError, match="'totals' twice") as raised:
        TableManager.load(an_environment(), specs, {})
    assert raised.value.code is ErrorCode.INVALID_NAME


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_every_row_is_restored_exactly_once_at_any_parallelism(parallelism: int) -> None:
    store = MemoryStore()
    restored = two_subtasks(store)
    totals: list[str] = []
    panes: list[str] = []
    counts: dict[str, int] = {}
    for index in range(parallelism):
        manager = a_manager(
            store, restored, index=index, parallelism=parallelism, attempt=9
        )
        counts, own_totals, own_panes = contents(manager)
        assert sorted(counts.values()) == [0, 1], "every subtask sees all counts"
        totals += own_totals
        panes += own_panes
        assert checkpoint(manager, 2).changed is (parallelism != 2)
    assert sorted(totals) == sorted(panes) == sorted(counts)


def test_a_checkpoint_with_a_missing_subtask_is_refused() -> None:
    restored = two_subtasks(MemoryStore())
    for wrong in (
        {0: restored[0]},
        {0: restored[0], 1: restored[0]},
        {0: restored[1], 1: restored[0]},
        {1: restored[1], 2: restored[0]},
    ):
        with pytest.raises(
            CorruptStateError, match=r"incomplete.*restore another"
        ) as raised:
            a_manager(restored=wrong)
        assert raised.value.code is ErrorCode.PROTOCOL_VIOLATION


def test_an_index_beyond_the_parallelism_is_no_complete_checkpoint() -> None:
    restored = two_subtasks(MemoryStore())
    stray = state_pb2.OperatorCheckpointMetadata()
    stray.CopyFrom(restored[1])
    stray.operator_metadata.subtask_index = 7
    with pytest.raises(CorruptStateError, match="incomplete"):
        a_manager(restored={0: restored[0], 7: stray})


def test_metadata_of_another_operator_is_refused() -> None:
    done = checkpoint(a_manager(), 1)
    done.metadata.operator_metadata.operator_id = "somebody-else"
    with pytest.raises(CorruptStateError, match="'somebody-else'"):
        a_manager(restored={0: done.metadata})


def test_a_failed_checkpoint_ends_the_manager_and_loses_nothing_before_it() -> None:
    inner = MemoryStore()
    manager = a_manager(inner)
    write_everywhere(manager)
    restored = {0: checkpoint(manager, 1).metadata}
    faulty = FaultyStore(inner, Fault(FaultMode.FAIL_BEFORE, operation="create"))
    manager = a_manager(faulty, restored, attempt=2)
    write_everywhere(manager, "b", 2)
    with pytest.raises(StorageError):
        checkpoint(manager, 2)
    for use in (lambda: contents(manager), lambda: checkpoint(manager, 2)):
        with pytest.raises(InternalError, match="load them anew"):
            use()
    assert contents(a_manager(inner, restored, attempt=3)) == ({"a": 1}, ["a"], ["a"])


def test_catching_up_half_way_ends_the_manager() -> None:
    inner = MemoryStore()
    faulty = FaultyStore(inner, Fault(FaultMode.FAIL_BEFORE, at=None, operation="read"))
    restored = {0: checkpoint(a_manager(inner), 1).metadata}
    manager = a_manager(faulty, restored, attempt=2)
    assert contents(manager) == ({}, [], [])
    writer = a_manager(inner, restored, attempt=3)
    write_everywhere(writer)
    restored = {0: checkpoint(writer, 2).metadata}
    with pytest.raises(StorageError):
        manager.catch_up(an_environment(faulty, attempt=4), restored)
    with pytest.raises(InternalError, match="load them anew"):
        contents(manager)


def test_tables_cannot_be_used_before_their_time_is_known() -> None:
    manager = TableManager.load(an_environment(), SPECS, {})
    with pytest.raises(InternalError, match="begin_epoch"):
        manager.get_keyed_state("totals")
    manager.begin_epoch(Frontier(None, 7))
    done = checkpoint(manager, 1)
    manager.catch_up(an_environment(attempt=2), {0: done.metadata})
    for use in (lambda: manager.get_keyed_state("totals"), lambda: checkpoint(manager, 2)):
        with pytest.raises(InternalError, match="begin_epoch"):
            use()


def test_an_epoch_number_is_never_written_twice_into_one_list() -> None:
    store = MemoryStore()
    manager = a_manager(store)
    write_everywhere(manager)
    restored = {0: checkpoint(manager, 5).metadata}
    for epoch in (4, 5):
        again = a_manager(store, restored, attempt=epoch)
        with pytest.raises(InternalError, match=f"epoch {epoch}.*epoch 5"):
            checkpoint(again, epoch)


def test_stopping_releases_the_views() -> None:
    manager = a_manager()
    write_everywhere(manager)
    view = manager.get_keyed_state("totals")
    assert manager.checkpoint(Epoch(1), Epoch(1), None, then_stop=True).changed
    with pytest.raises(InternalError):
        view.get(some_rows("a"))
    with pytest.raises(InternalError):
        manager.get_keyed_state("totals")
