"""The global table: what each subtask sees, what is written, and what survives a rescale."""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from penstock.errors import ErrorCode, StateError
from penstock.state.files.cache import FileCache
from penstock.state.files.migration import MigratableState
from penstock.state.files.reader import StateFileReader
from penstock.state.tables.global_keyed import GlobalKeyedView
from penstock.state.tables.specs import global_table
from tests.unit.state.tables.table_builders import NO_CACHE
from tests.unit.state.tables.table_cluster import TableCluster, Write

COUNTS = global_table("counts", str, int)


def inserts(*changes: tuple[int, str, int | None]) -> Write:
    """Write `(subtask, key, value)` changes; None removes the key."""

    def write(index: int, view: GlobalKeyedView[str, int]) -> None:
        for subtask, key, value in changes:
            if subtask == index and value is None:
                view.remove(key)
            elif subtask == index and value is not None:
                view.insert(key, value)

    return write


def seen(cluster: TableCluster, index: int = 0, *, warm: bool = False) -> dict[str, int]:
    return dict(cluster.view(index, warm=warm).items())


def test_a_view_gets_inserts_removes_and_lists() -> None:
    view = TableCluster(COUNTS).view()
    assert view.get("a") is None
    assert view.get("a", 7) == 7
    view.insert("b", 2)
    view.insert("a", 1)
    view.insert("a", 3)
    assert (view.get("a"), "a" in view, "c" in view, len(view)) == (3, True, False, 2)
    assert list(view.items()) == [("a", 3), ("b", 2)]
    assert view.remove("a") == 3
    assert view.remove("a") is None
    assert ("a" in view, len(view)) == (False, 1)


@pytest.mark.parametrize("warm", [False, True])
def test_a_subtask_sees_others_writes_one_epoch_later(warm: bool) -> None:
    cluster = TableCluster(COUNTS, 2)
    during: list[dict[str, int]] = []

    def write(index: int, view: GlobalKeyedView[str, int]) -> None:
        view.insert(f"own-{index}", index)
        during.append(dict(view.items()))

    cluster.run_epoch(write, warm=warm)
    assert during == [{"own-0": 0}, {"own-1": 1}]
    assert (
        seen(cluster, 0, warm=warm)
        == seen(cluster, 1, warm=warm)
        == {"own-0": 0, "own-1": 1}
    )


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_of_one_epoch_the_highest_subtask_wins_for_everyone(warm: bool, index: int) -> None:
    cluster = TableCluster(COUNTS, 3)
    cluster.run_epoch(inserts((2, "k", 2), (0, "k", 0), (1, "k", 1)), warm=warm)
    assert seen(cluster, index, warm=warm) == {"k": 2}
    cluster.run_epoch(inserts((0, "k", 10)), warm=warm)
    assert seen(cluster, index, warm=warm) == {"k": 10}


@pytest.mark.parametrize("warm", [False, True])
def test_a_remove_hides_a_key_whoever_wrote_it(warm: bool) -> None:
    cluster = TableCluster(COUNTS, 2)
    cluster.run_epoch(inserts((0, "k", 1), (0, "l", 1)), warm=warm)
    cluster.run_epoch(inserts((1, "k", None)), warm=warm)
    assert seen(cluster, 0, warm=warm) == seen(cluster, 1, warm=warm) == {"l": 1}


def test_own_writes_stay_visible_until_the_view_catches_up() -> None:
    cluster = TableCluster(COUNTS)
    view = cluster.view()
    view.insert("a", 1)
    view.checkpointed(())
    view.insert("b", 2)
    assert dict(view.items()) == {"a": 1, "b": 2}
    assert view.remove("a") == 1
    assert dict(view.items()) == {"b": 2}


def test_changing_a_returned_value_changes_no_state() -> None:
    cluster = TableCluster(global_table("lists", str, list[int]))
    value = [1]
    view = cluster.view()
    view.insert("k", value)
    value.append(2)
    view.get("k").append(3)
    next(iter(view.items()))[1].append(4)
    assert view.get("k") == [1]


def test_an_insert_of_what_is_there_is_no_change() -> None:
    cluster = TableCluster(COUNTS)
    cluster.run_epoch(inserts((0, "a", 1)))
    cluster.run_epoch(inserts((0, "a", 1)))
    cluster.run_epoch(inserts((0, "a", 5), (0, "a", 1)))
    cluster.run_epoch(inserts((0, "x", 5), (0, "x", None)))
    cluster.run_epoch(inserts((0, "never", None)))
    assert len(cluster.files()) == 1


def test_only_changed_keys_are_written() -> None:
    cluster = TableCluster(COUNTS)
    cluster.run_epoch(inserts(*((0, f"k{n}", n) for n in range(1_000))))
    cluster.run_epoch(inserts((0, "k7", -1), (0, "k8", None)))
    newest = cluster.files()[-1]
    assert newest.row_count == 2
    rows = StateFileReader(cluster.store, NO_CACHE, newest).read()
    assert rows.schema.names == ["key", "value"]
    assert rows["value"].null_count == 1


def test_each_subtask_lists_its_own_files_and_the_table_all() -> None:
    cluster = TableCluster(COUNTS, 2)
    cluster.run_epoch(inserts((0, "a", 0), (1, "b", 1)))
    cluster.run_epoch(inserts((1, "c", 2)))
    own = [[file.subtask_index for file in cluster.files(index)] for index in (0, 1)]
    assert own == [[0], [1, 1]]
    order = [(file.epoch, file.subtask_index) for file in cluster.table(0).files]
    assert order == [(1, 0), (1, 1), (2, 1)]


@pytest.mark.parametrize("steps", [(1,), (2,), (5,), (1, 4), (2, 1, 3)])
def test_no_file_is_lost_or_carried_twice_by_a_rescale(steps: tuple[int, ...]) -> None:
    cluster = TableCluster(COUNTS, 3)
    cluster.run_epoch(inserts((0, "a", 0), (1, "b", 1), (2, "c", 2)))
    for parallelism in steps:
        before = {file.path for part in cluster.lists().values() for file in part}
        cluster.rescale(parallelism)
        carried = [file.path for part in cluster.lists().values() for file in part]
        assert sorted(carried) == sorted(before)
        cluster.run_epoch(inserts((0, f"at-{parallelism}", 1), (parallelism - 1, "a", 9)))
    expected = {"a": 9, "b": 1, "c": 2, **{f"at-{n}": 1 for n in steps}}
    for index in range(cluster.parallelism):
        assert seen(cluster, index) == expected


def test_compaction_folds_the_whole_table_into_one_file_of_subtask_0() -> None:
    cluster = TableCluster(COUNTS, 2)
    for epoch in range(4):
        cluster.run_epoch(
            inserts((0, "k", epoch), (1, f"e{epoch}", epoch), (1, "e0", None))
        )
    before = seen(cluster)
    assert cluster.compact_all() == 1
    assert [len(cluster.files(index)) for index in (0, 1)] == [1, 0]
    assert cluster.files()[0].level == 1
    assert cluster.files()[0].row_count == len(before)
    assert seen(cluster, 0) == seen(cluster, 1) == before


def test_only_subtask_0_compacts() -> None:
    cluster = TableCluster(COUNTS, 2)
    for epoch in range(4):
        cluster.run_epoch(inserts((1, "k", epoch)))
    assert cluster.compact(1) is None
    assert cluster.compact(0) is not None


def test_a_delta_written_while_compacting_is_kept_and_newer() -> None:
    cluster = TableCluster(COUNTS, 2)
    for epoch in range(4):
        cluster.run_epoch(inserts((0, "k", epoch), (1, "l", epoch)))
    compacted = cluster.compact()
    assert compacted is not None
    cluster.run_epoch(inserts((1, "k", 99), (0, "l", None)))
    assert cluster.swap(compacted)
    assert seen(cluster, 0) == seen(cluster, 1) == {"k": 99}


def test_a_swap_is_all_or_nothing_over_all_subtasks() -> None:
    cluster = TableCluster(COUNTS, 2)
    for epoch in range(4):
        cluster.run_epoch(inserts((0, "k", epoch), (1, "l", epoch)))
    first, second = cluster.compact(), cluster.compact()
    assert first is not None
    assert second is not None
    assert cluster.swap(first)
    after = dict(cluster.parts)
    assert not cluster.swap(second)
    assert cluster.parts == after


def test_a_swap_holds_after_a_rescale_between_plan_and_publication() -> None:
    cluster = TableCluster(COUNTS, 3)
    for epoch in range(4):
        cluster.run_epoch(inserts((0, "k", epoch), (2, "l", epoch)))
    compacted = cluster.compact()
    assert compacted is not None
    cluster.rescale(2)
    cluster.run_epoch(inserts((1, "m", 1)))
    assert cluster.swap(compacted)
    assert seen(cluster, 1) == {"k": 3, "l": 3, "m": 1}


def test_a_swap_reaches_a_subtask_0_that_had_written_nothing() -> None:
    cluster = TableCluster(COUNTS, 2)
    for epoch in range(4):
        cluster.run_epoch(inserts((1, "k", epoch)))
    assert sorted(cluster.parts) == [1]
    cluster.compact_all()
    assert len(cluster.files(0)) == 1
    cluster.run_epoch(inserts((1, "l", 1)))
    assert seen(cluster) == {"k": 3, "l": 1}


def test_a_swap_within_one_list_works_alone() -> None:
    cluster = TableCluster(COUNTS)
    for epoch in range(4):
        cluster.run_epoch(inserts((0, "k", epoch)))
    compacted = cluster.compact()
    assert compacted is not None
    swapped = cluster.kind.apply_compacted_checkpoint(compacted, {0: cluster.parts[0]})
    assert len(swapped[0]) == 1


def test_removed_keys_do_not_come_back_after_compaction() -> None:
    cluster = TableCluster(COUNTS)
    for epoch in range(4):
        cluster.run_epoch(inserts((0, "gone", epoch), (0, "kept", epoch)))
    cluster.compact_all()
    cluster.run_epoch(inserts((0, "gone", None)))
    for epoch in range(4):
        cluster.run_epoch(inserts((0, "kept", 10 + epoch)))
        cluster.compact_all()
    assert seen(cluster) == {"kept": 13}


def test_a_large_base_is_not_rewritten_for_small_deltas() -> None:
    cluster = TableCluster(COUNTS)
    for epoch in range(4):
        cluster.run_epoch(inserts(*((0, f"{epoch}-{n}" * 10, n) for n in range(4_000))))
    assert cluster.compact_all() == 1
    for epoch in range(15):
        cluster.run_epoch(inserts((0, "k", epoch)))
        assert cluster.compact() is None
    cluster.run_epoch(inserts((0, "k", 99)))
    assert cluster.compact() is not None


def test_a_swap_costs_a_warm_view_no_read(tmp_path: Path) -> None:
    cluster = TableCluster(COUNTS, cache=FileCache(tmp_path, 1 << 20))
    for epoch in range(4):
        cluster.run_epoch(inserts((0, "k", epoch)), warm=True)
    cluster.view(warm=True)
    cluster.compact_all()
    misses = cluster._cache.statistics().misses
    assert seen(cluster, warm=True) == {"k": 3}
    assert cluster._cache.statistics().misses == misses


class CountV0(msgspec.Struct):
    n: int


@dataclasses.dataclass
class CountV1(MigratableState):
    VERSION: ClassVar[int] = 1
    PreviousVersion: ClassVar[Any] = CountV0
    n: int
    label: str

    @classmethod
    def migrate(cls, previous: CountV0) -> "CountV1":
        if previous.n < 0:
            raise ValueError("negative count")
        return cls(previous.n, "migrated")


def upgraded(cluster: TableCluster, value_type: Any) -> TableCluster:
    """The same checkpoint opened by a program with another state class."""
    cluster.spec = global_table("counts", str, value_type)
    return cluster


def test_values_of_an_older_version_are_migrated_file_by_file() -> None:
    cluster = TableCluster(global_table("counts", str, CountV0))
    cluster.run_epoch(lambda _, view: view.insert("a", CountV0(1)))
    cluster.run_epoch(lambda _, view: view.insert("b", CountV0(2)))
    cluster.run_epoch(lambda _, view: view.remove("b"))
    upgraded(cluster, CountV1).run_epoch(
        lambda _, view: view.insert("c", CountV1(3, "new"))
    )
    expected = {"a": CountV1(1, "migrated"), "c": CountV1(3, "new")}
    assert dict(cluster.view().items()) == expected
    assert [file.state_version for file in cluster.files()] == [0, 0, 0, 1]
    assert cluster.compact_all() == 1
    assert [file.state_version for file in cluster.files()] == [1]
    assert dict(cluster.view().items()) == expected


def test_a_failing_migration_is_reported_and_changes_nothing() -> None:
    cluster = TableCluster(global_table("counts", str, CountV0))
    cluster.run_epoch(lambda _, view: view.insert("a", CountV0(-1)))
    with pytest.raises(StateError, match="negative count") as raised:
        upgraded(cluster, CountV1).view()
    assert raised.value.code is ErrorCode.MIGRATION_FAILED
    assert dict(upgraded(cluster, CountV0).view().items()) == {"a": CountV0(-1)}


def test_a_newer_version_is_refused() -> None:
    cluster = TableCluster(global_table("counts", str, CountV1))
    cluster.run_epoch(lambda _, view: view.insert("a", CountV1(1, "")))
    with pytest.raises(StateError, match="newer program") as raised:
        upgraded(cluster, CountV0).view()
    assert raised.value.code is ErrorCode.UNSUPPORTED_STATE_VERSION


def test_a_class_that_changed_without_a_version_is_reported() -> None:
    cluster = TableCluster(global_table("counts", str, str))
    cluster.run_epoch(lambda _, view: view.insert("a", "text"))
    view = upgraded(cluster, int).view()
    with pytest.raises(StateError, match="VERSION and a migration"):
        view.get("a")


def test_huge_and_odd_values_round_trip() -> None:
    cluster = TableCluster(global_table("odd", tuple[str, int], dict[str, bytes]))
    values = {("é中🦊", -1): {"b": b"x" * 3_000_000}, ("", 0): {}}

    def write(_: int, view: Any) -> None:
        for key, value in values.items():
            view.insert(key, value)

    cluster.run_epoch(write)
    assert dict(cluster.view().items()) == values


def test_only_the_allowed_levels_are_compacted() -> None:
    cluster = TableCluster(COUNTS)
    for epoch in range(4):
        cluster.run_epoch(inserts((0, "k", epoch)))
    assert cluster.compact(compact_generations=frozenset({5})) is None
    assert cluster.compact(compact_generations=frozenset({0})) is not None
