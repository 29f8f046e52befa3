"""Views kept between epochs: caught up, let go, and never showing what is not there."""

from pathlib import Path

import pytest

from penstock.core.ids import Epoch, Subtask
from penstock.errors import InternalError, PenstockError, StateError
from penstock.state.files.cache import FileCache
from penstock.state.proto import state_pb2
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.table import Frontier, View
from penstock.state.tables.table_manager import TableManager
from penstock.testing import FaultyStore
from tests.builders.shop import owner_of_key
from tests.builders.state_job import StateJob
from tests.unit.state.tables.manager_builders import (
    PANES,
    SPECS,
    Restored,
    a_manager,
    checkpoint,
    contents,
    some_rows,
    two_subtasks,
    write_everywhere,
)
from tests.unit.state.tables.table_builders import an_environment


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


def test_closing_after_a_failed_catch_up_releases_the_views_of_all_tables() -> None:
    store = MemoryStore()
    manager = a_manager(store)
    write_everywhere(manager)
    views: list[View] = [
        manager.get_global_keyed_state("counts"),
        manager.get_keyed_state("totals"),
        manager.get_time_keyed_state("panes"),
    ]
    restored = {0: checkpoint(manager, 1).metadata}
    write_everywhere(manager)
    with pytest.raises(InternalError, match="not checkpointed"):
        manager.catch_up(an_environment(store, attempt=2), restored)
    manager.close()
    assert [view.is_released for view in views] == [True, True, True]


def test_a_view_that_an_operator_kept_is_the_same_view_in_every_later_epoch() -> None:
    """Also when time goes back, when a list is not extended, and after a merge elsewhere."""
    store = MemoryStore()
    manager = a_manager(store)
    write_everywhere(manager)
    counts = manager.get_global_keyed_state("counts")
    totals = manager.get_keyed_state("totals")
    panes = manager.get_time_keyed_state("panes")
    by_key = manager.get_key_time_state("panes")
    first = {0: manager.checkpoint(Epoch(1), Epoch(1), 20).metadata}
    for epoch, frontier, restored in (
        (2, Frontier(5, 7), first),
        (3, Frontier(None, 3), {}),
        (4, Frontier(9, 9), first),
    ):
        manager.catch_up(an_environment(store, attempt=epoch), restored)
        manager.begin_epoch(frontier)
        assert manager.get_global_keyed_state("counts") is counts
        assert manager.get_keyed_state("totals") is totals
        assert manager.get_time_keyed_state("panes") is panes
        held = 1 if restored else 0
        assert len(counts) == held
        assert totals.get(some_rows("a")).found.sum() == held
        assert panes.rows().num_rows == held
        assert by_key.get(some_rows("a")).rows.num_rows == held
        manager.checkpoint(Epoch(epoch), Epoch(1), 20)


def test_tables_that_never_expire_are_not_folded_again_when_time_goes_back() -> None:
    """Behind a forward edge time goes back in every epoch of a subtask that is ahead."""
    store = FaultyStore(MemoryStore())
    manager = a_manager(store)
    write_everywhere(manager)
    restored = {0: manager.checkpoint(Epoch(1), Epoch(1), 20).metadata}
    manager.catch_up(an_environment(store, attempt=2), restored)
    before = len(store.calls)
    manager.begin_epoch(Frontier(5, 0))
    assert contents(manager) == ({"a": 1}, ["a"], ["a"])
    read = [call.path for call in store.calls[before:]]
    assert not [path for path in read if "counts" in path]
    assert any("panes" in path for path in read)


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


def test_a_file_stays_cached_while_any_list_holds_a_part_of_it(tmp_path: Path) -> None:
    """After a rescale subtasks share files; one of them merges its part earlier than others."""
    store, cache = MemoryStore(), FileCache(tmp_path, limit_bytes=1 << 30)
    keys = [str(number) for number in range(20)]
    writer = TableManager.load(an_environment(store), [PANES], {})
    writer.begin_epoch(Frontier())
    writer.get_time_keyed_state("panes").insert(some_rows(*keys), None)
    whole = {0: checkpoint(writer, 1).metadata}
    parts, managers = {}, []
    for index in range(2):
        environment = an_environment(store, index=index, parallelism=2, cache=cache)
        manager = TableManager.load(environment, [PANES], whole)
        manager.begin_epoch(Frontier())
        assert manager.get_time_keyed_state("panes").rows().num_rows
        managers.append(manager)
        parts[index] = checkpoint(manager, 2).metadata
    for index, is_left in ((0, True), (1, False)):
        del parts[index].table_checkpoint_metadata["panes"]
        managers[index].catch_up(managers[index].environment, parts)
        managers[index].begin_epoch(Frontier())
        assert bool([*tmp_path.glob("*.arrow")]) == is_left


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
