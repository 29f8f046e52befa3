"""All tables of one subtask: what is restored, what is written, and what is refused."""

from typing import Any

import pyarrow as pa
import pytest

from penstock.core.ids import Epoch, Subtask
from penstock.errors import (
    CorruptStateError,
    ErrorCode,
    InternalError,
    PenstockError,
    StateError,
    StorageError,
    UserError,
)
from penstock.state.proto import state_pb2
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.specs import global_table, keyed_table, time_keyed_table
from penstock.state.tables.table import Frontier
from penstock.state.tables.table_manager import SubtaskCheckpoint, TableManager
from penstock.testing import Fault, FaultMode, FaultyStore
from tests.builders.shop_tables import owner_of_key
from tests.builders.state_job import StateJob
from tests.unit.state.tables.table_builders import an_environment

COLUMNS: dict[str, Any] = {
    "key": pa.string(),
    "value": pa.int64(),
    "time": pa.timestamp("us"),
}
ROWS = pa.schema(COLUMNS)
COUNTS = global_table("counts", str, int, uses_two_phase_commit=True)
PLAIN = global_table("plain", str, int)
TOTALS = keyed_table("totals", ROWS, key_columns=["key"])
PANES = time_keyed_table("panes", ROWS, time_column="time", key_columns=["key"])
SPECS = [COUNTS, PLAIN, TOTALS, PANES]
Restored = dict[int, state_pb2.OperatorCheckpointMetadata]


def some_rows(*keys: str, value: int = 1) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "key": list(keys),
        "value": [value] * len(keys),
        "time": [0] * len(keys),
    }
    return pa.RecordBatch.from_pydict(columns, schema=ROWS)


def a_manager(
    store: MemoryStore | FaultyStore | None = None,
    restored: Restored | None = None,
    *,
    index: int = 0,
    parallelism: int = 1,
    attempt: int = 1,
) -> TableManager:
    environment = an_environment(
        store, index=index, parallelism=parallelism, attempt=attempt
    )
    manager = TableManager.load(environment, SPECS, restored or {})
    manager.begin_epoch(Frontier(None, 0))
    return manager


def checkpoint(manager: TableManager, epoch: int) -> SubtaskCheckpoint:
    return manager.checkpoint(Epoch(epoch), Epoch(1), None)


def write_everywhere(manager: TableManager, key: str = "a", value: int = 1) -> None:
    manager.get_global_keyed_state("counts").insert(key, value)
    manager.get_keyed_state("totals").put(some_rows(key, value=value))
    manager.get_time_keyed_state("panes").insert(some_rows(key, value=value), None)


def contents(manager: TableManager) -> tuple[dict[str, int], list[str], list[str]]:
    totals: list[Any] = [
        key
        for batch in manager.get_keyed_state("totals").scan()
        for key in batch.column("key").to_pylist()
    ]
    panes: list[Any] = (
        manager.get_time_keyed_state("panes").rows().column("key").to_pylist()
    )
    return dict(manager.get_global_keyed_state("counts").items()), totals, panes


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


def two_subtasks(store: MemoryStore) -> Restored:
    """Two subtasks that wrote one key each: the metadata of both."""
    restored: Restored = {}
    for index in range(2):
        manager = a_manager(store, index=index, parallelism=2, attempt=index + 1)
        key = next(k for k in map(str, range(99)) if owner_of_key(k, 2) == index)
        write_everywhere(manager, key, index)
        restored[index] = checkpoint(manager, 1).metadata
    return restored


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


@pytest.mark.parametrize("table", ["counts", "totals", "panes"])
def test_a_view_that_was_let_go_never_looks_empty(table: str) -> None:
    """An operator that kept it would see no state, and its writes would vanish."""
    manager = a_manager()
    write_everywhere(manager)
    counts = manager.get_global_keyed_state("counts")
    totals = manager.get_keyed_state("totals")
    panes = manager.get_time_keyed_state("panes")
    checkpoint(manager, 1)
    manager.close()
    uses = {
        "counts": (
            lambda: counts.get("a"),
            lambda: counts.insert("a", 2),
            lambda: counts.remove("a"),
            lambda: list(counts.items()),
            lambda: len(counts),
            lambda: "a" in counts,
        ),
        "totals": (
            lambda: totals.get(some_rows("a")),
            lambda: totals.put(some_rows("a")),
            lambda: totals.delete(some_rows("a")),
            totals.scan,
        ),
        "panes": (
            panes.rows,
            panes.batches,
            panes.min_time,
            panes.expire,
            lambda: panes.insert(some_rows("a"), None),
            lambda: panes.by_key().get(some_rows("a")),
        ),
    }
    for use in uses[table]:
        with pytest.raises(InternalError, match="released"):
            use()


def moved(manager: TableManager, restored: Restored, subtask: Subtask) -> None:
    environment = an_environment(
        index=subtask.index, parallelism=subtask.parallelism, attempt=2
    )
    manager.catch_up(environment, restored)
    manager.begin_epoch(Frontier())


def test_a_kept_view_does_not_take_keys_of_its_former_range() -> None:
    store = MemoryStore()
    manager = a_manager(store)
    assert contents(manager) == ({}, [], [])
    restored = {0: checkpoint(manager, 1).metadata}
    moved(manager, restored, Subtask(0, 2))
    foreign = next(key for key in map(str, range(99)) if owner_of_key(key, 2) == 1)
    with pytest.raises(StateError, match="does not belong to subtask 0 of 2"):
        manager.get_keyed_state("totals").put(some_rows(foreign))
    with pytest.raises(StateError, match="does not belong to subtask 0 of 2"):
        manager.get_time_keyed_state("panes").insert(some_rows(foreign), None)


def test_after_a_rescale_every_subtask_writes_metadata_of_its_own() -> None:
    manager = a_manager()
    restored = {0: checkpoint(manager, 1).metadata}
    moved(manager, restored, Subtask(0, 2))
    done = checkpoint(manager, 2)
    assert done.changed, "the object of subtask 0 of 1 does not describe subtask 0 of 2"
    assert done.metadata.operator_metadata.parallelism == 2


def test_a_kept_view_shows_expired_rows_again_when_an_older_epoch_is_restored() -> None:
    """Its part of a shared file had died as a whole, and was let go while the file stayed."""
    store = MemoryStore()
    writer = a_manager(store)
    own, other = (
        next(k for k in map(str, range(99)) if owner_of_key(k, 2) == i) for i in (0, 1)
    )
    writer.get_time_keyed_state("panes").insert(some_rows(own), 10)
    writer.get_time_keyed_state("panes").insert(some_rows(other), None)
    restored = {0: checkpoint(writer, 1).metadata}
    manager = a_manager(store, restored, index=0, parallelism=2, attempt=2)
    for epoch, watermark, seen in (
        (2, 5, [own]),
        (3, 20, []),
        (4, 5, [own]),
        (5, None, [own]),
    ):
        manager.begin_epoch(Frontier(watermark, 0))
        assert contents(manager)[2] == seen
        part = manager.checkpoint(Epoch(epoch), Epoch(1), watermark).metadata
        both = {0: part, 1: state_pb2.OperatorCheckpointMetadata()}
        both[1].CopyFrom(part)
        both[1].operator_metadata.subtask_index = 1
        manager.catch_up(
            an_environment(store, index=0, parallelism=2, attempt=epoch + 1), both
        )


def test_a_kept_view_forgets_rows_that_were_never_written_because_they_had_expired() -> (
    None
):
    store = MemoryStore()
    manager = a_manager(store)
    restored = {0: checkpoint(manager, 1).metadata}
    manager.catch_up(an_environment(store, attempt=2), restored)
    manager.begin_epoch(Frontier(5, 0))
    manager.get_time_keyed_state("panes").insert(some_rows("a"), 10)
    lost = manager.checkpoint(Epoch(2), Epoch(1), 20)
    assert lost.bytes_written == 0
    manager.catch_up(an_environment(store, attempt=3), restored)
    manager.begin_epoch(Frontier(5, 0))
    assert contents(manager) == ({}, [], [])


def test_time_never_goes_back_within_an_epoch() -> None:
    manager = a_manager()
    manager.begin_epoch(Frontier(5, 5))
    for earlier in (Frontier(4, 5), Frontier(None, 5), Frontier(5, 4)):
        with pytest.raises(InternalError, match="goes back"):
            manager.begin_epoch(earlier)


def test_catching_up_costs_nothing_for_the_typed_tables_of_other_subtasks() -> None:
    """With many subtasks it would be most of an epoch's time."""
    store = MemoryStore()
    restored = two_subtasks(store)
    manager = a_manager(store, restored, index=0, parallelism=2, attempt=8)
    before = contents(manager)
    for table in ("totals", "panes"):
        restored[1].table_checkpoint_metadata[table].data = b"never decoded"
    manager.catch_up(an_environment(store, index=0, parallelism=2, attempt=9), restored)
    manager.begin_epoch(Frontier())
    assert contents(manager) == before
    assert not checkpoint(manager, 2).changed


def test_rows_that_expire_leave_the_list_without_being_read() -> None:
    job = StateJob({"op": SPECS})
    job.run_epoch(
        lambda _o, _s, m: m.get_time_keyed_state("panes").insert(some_rows("a"), 10)
    )
    job.start()
    work = job.run_subtasks(watermark=10)
    job.publish(work)
    assert "panes" not in job.metadata["op"][0].table_checkpoint_metadata
    assert work["op", 0].changed


def test_the_table_the_error_is_about_is_named_together_with_its_operator() -> None:
    manager = a_manager()
    with pytest.raises(PenstockError, match="operator 'operator'"):
        manager.get_keyed_state("nothing")
