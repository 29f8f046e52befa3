"""A Delta table read as a changelog in small epochs: after each of them the changes are a table."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import penstock as pen
from penstock.connectors.delta.planning import TABLE, read_name, read_place
from penstock.operators.operator import SourceOperator
from penstock.operators.splits import SourceBudget, SplitState
from penstock.runtime.driver.environment import DriverSettings
from penstock.testing import LocalJob, SourceHarness
from penstock.testing.given import shared_registry
from tests.builders.delta_history import (
    FEED,
    add,
    delete,
    make_history,
    table_of,
    update,
)

SMALL = SourceBudget(rows=15)
"""A row group and a half."""


@pytest.fixture(scope="module", params=[True, False], ids=["feed", "no-feed"])
def history(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A table that only grows older: its tests read it."""
    folder = tmp_path_factory.mktemp("history")
    make_history(folder, has_feed=request.param)
    return folder


def a_source(
    folder: Path, parallelism: int = 1, budget: SourceBudget = SMALL, **options: Any
) -> SourceHarness:
    spec = pen.delta(folder, follow=True, rewrites="changelog", key="n", **options)
    return SourceHarness(spec.source_spec(), parallelism=parallelism, budget=budget)


class Fold:
    """The table that changes lead to, as all steps behind the source understand them."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[tuple[str, Any], ...]] = Counter()

    def take(self, changes: Iterable[Mapping[str, Any]]) -> None:
        """Take the changes of an epoch, in any order; check that they lead to a table."""
        for change in changes:
            row = tuple((name, value) for name, value in change.items() if name != "change")
            added = change["change"] in ("insert", "update-after")
            self._counts[row] += 1 if added else -1
        counts = +self._counts
        assert not -self._counts, "a row was removed that was not there"
        keys = [dict(row)["n"] for row in counts.elements()]
        assert len(set(keys)) == len(keys), "a row came before the one it replaces went"
        self._counts = counts

    def rows(self) -> Mapping[int, Mapping[str, Any]]:
        return {dict(row)["n"]: dict(row) for row in self._counts}


def finished_version(source: SourceHarness) -> int | None:
    """Return the version that was read to its end, with all before it; None within one."""
    place = read_place(source.splits)
    if place is None or place.upto < place.first:
        return None
    open_ones = [
        name
        for name, state in source.splits.items()
        if name != TABLE and (not state.ended or read_name(name)[0] > place.upto)
    ]
    return None if open_ones else place.upto


def epochs_of(source: SourceHarness, folder: Path) -> Iterator[list[dict[str, Any]]]:
    """Read epoch by epoch up to the newest version; yield the changes of each."""
    newest = DeltaTable(str(folder)).version()
    for _ in range(200):
        yield source.read().rows()
        if finished_version(source) == newest:
            return
        source.advance("1s")
    raise AssertionError("the source does not come to its end")


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("snapshot", [True, False], ids=["snapshot", "later-only"])
def test_after_every_epoch_the_changes_are_a_table_and_after_a_version_that_version(
    history: Path, parallelism: int, *, snapshot: bool
) -> None:
    fold, compared = Fold(), set()
    if not snapshot:
        fold.take({"change": "insert", **row} for row in table_of(history, 0).values())
    with a_source(history, parallelism, version=0, snapshot=snapshot) as source:
        for changes in epochs_of(source, history):
            fold.take(changes)
            version = finished_version(source)
            if version is not None:
                assert fold.rows() == table_of(history, version)
                compared.add(version)
    assert len(compared) > 4


def test_restarts_and_rescaling_change_nothing_about_that(history: Path) -> None:
    fold = Fold()
    with a_source(history, version=0) as source:
        for count, changes in enumerate(epochs_of(source, history)):
            fold.take(changes)
            source.rescale(1 + count % 3)
    assert fold.rows() == table_of(history)


def copy_by_a_merge(folder: Path, copy: Path, parallelism: int) -> None:
    """Run a job that merges the changes of a table into another, up to the newest version."""
    with a_source(folder, parallelism, version=0) as source:
        epochs = len(list(epochs_of(source, folder)))
    pipeline = pen.Pipeline("copy")
    changes = pen.delta(folder, version=0, follow=True, rewrites="changelog", key="n")
    pipeline.read("in", changes, parallelism=parallelism).write("out", pen.delta(copy))
    settings = DriverSettings(budget=SMALL, adapts_budget=False)
    LocalJob(pipeline, settings=settings).run(epochs=epochs)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_merge_of_the_changes_makes_the_same_table(
    history: Path, tmp_path: Path, parallelism: int
) -> None:
    copy_by_a_merge(history, tmp_path, parallelism)
    assert table_of(tmp_path) == table_of(history)


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("has_feed", [True, False], ids=["feed", "no-feed"])
def test_an_update_of_all_rows_leaves_no_row_behind(
    tmp_path: Path, parallelism: int, *, has_feed: bool
) -> None:
    folder, copy = tmp_path / "table", tmp_path / "copy"
    add(folder, *range(40), configuration=FEED if has_feed else None)
    update(folder)
    copy_by_a_merge(folder, copy, parallelism)
    assert table_of(copy) == table_of(folder)


def test_rows_that_are_only_added_or_only_removed_keep_to_the_budget(
    tmp_path: Path,
) -> None:
    add(tmp_path, *range(40))
    add(tmp_path, *range(40, 80))
    delete(tmp_path, "part = 0")
    fold, sizes = Fold(), []
    with a_source(tmp_path, version=0) as source:
        for changes in epochs_of(source, tmp_path):
            fold.take(changes)
            sizes.append(len(changes))
    assert max(sizes) <= 20
    assert sum(sizes) == 80 + 40
    assert fold.rows() == table_of(tmp_path)


def test_many_small_versions_are_read_in_few_epochs(tmp_path: Path) -> None:
    add(tmp_path, 1, 3, 5)
    for _ in range(12):
        update(tmp_path, "n = 3")
    with a_source(tmp_path, version=0) as source:
        sizes = [len(changes) for changes in epochs_of(source, tmp_path)]
    # Each version removes a file of three rows and adds another.
    assert sizes == [15, 12, 12, 12, 12, 12]


def test_a_version_that_is_larger_than_the_budget_counts_as_more_for_triggers(
    tmp_path: Path,
) -> None:
    add(tmp_path, *range(40))
    update(tmp_path)
    spec = pen.delta(
        tmp_path, version=0, snapshot=False, follow=True, rewrites="changelog", key="n"
    )
    planner = shared_registry().construct(spec.source_spec()).operator
    assert isinstance(planner, SourceOperator)
    for rows, has_more in ((15, True), (79, True), (80, False)):
        assert planner.plan_splits({}, SourceBudget(rows=rows), 0).has_more == has_more
    planner.release()


def test_a_slow_reader_does_not_cut_a_version(history: Path) -> None:
    # Its time is up when it begins, and another minute later its epoch would fail: a source that
    # may stop half-way does so behind the first piece of each file.
    late = SourceBudget(rows=15, wall_micros=-60_000_000, overrun_micros=120_000_000)
    fold = Fold()
    with a_source(history, 2, budget=late, version=0) as source:
        for changes in epochs_of(source, history):
            fold.take(changes)
    assert fold.rows() == table_of(history)


def test_a_job_that_was_stopped_within_versions_reads_the_rest_of_each_in_one_epoch(
    tmp_path: Path,
) -> None:
    add(tmp_path, *range(40))
    for _ in range(2):
        update(tmp_path)
    spec = pen.delta(tmp_path, version=0, follow=True, rewrites="changelog", key="n")
    planner = shared_registry().construct(spec.source_spec()).operator
    assert isinstance(planner, SourceOperator)
    splits = planner.plan_splits({}, SourceBudget(), 0).splits
    # Releases that read files in any order have begun the snapshot, and additions of both versions.
    known = {
        split.name: SplitState((*split.start[:1], 1, 10, split.start[3]))
        for split in splits
        if split.name != TABLE and "+" in split.name
    }
    table = next(split for split in splits if split.name == TABLE)
    known[TABLE] = SplitState((*table.end[:2], 0), ended=True)
    seen = []
    while True:
        planner.release()
        planner = shared_registry().construct(spec.source_spec()).operator
        assert isinstance(planner, SourceOperator)
        plan = planner.plan_splits(known, replace(SMALL, subtasks=2), 0)
        if not plan.splits:
            break
        files = [split for split in plan.splits if split.name != TABLE]
        seen.append((sorted({split.name[:11] for split in files}), plan.is_indivisible))
        known |= {split.name: SplitState(split.end, ended=True) for split in plan.splits}
    planner.release()
    assert seen == [
        (["0000000000+"], False),
        (["0000000001+", "0000000001-"], True),
        (["0000000002+", "0000000002-"], True),
    ]
