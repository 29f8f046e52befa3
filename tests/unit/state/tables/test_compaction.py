"""Compaction plans: neighbours only, bounded runs, and deletions dropped only when safe."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import FULL_RANGE, KeyRange
from penstock.state.files.state_file import StateFile, apply_swap, merge_lists
from penstock.state.tables.compaction import (
    CompactionPlan,
    cut_runs,
    plan_compaction,
)
from tests.builders.kept_epochs import count_runs
from tests.unit.state.files.file_builders import a_state_file
from tests.unit.state.tables.table_builders import a_compaction

MANY_BYTES = 1 << 20
MAX_RUNS = 16
SMALL_BYTES = 256 << 10
LOW, HIGH = KeyRange(0, 1 << 63), KeyRange(1 << 63, 1 << 64)


def deltas(count: int, *, first: int = 1, size_bytes: int = 100) -> tuple[StateFile, ...]:
    return tuple(
        a_state_file(f"delta-{epoch}", epoch, size_bytes=size_bytes)
        for epoch in range(first, first + count)
    )


def merged(plan: CompactionPlan, name: str = "merged") -> StateFile:
    """The output that a compaction of `plan` would write, as one file."""
    described = plan.describe(0)
    return replace(
        a_state_file(name, described.epoch, size_bytes=plan.size_bytes),
        subtask_index=described.subtask_index,
        level=described.level,
        visible=described.visible,
        replaces=described.replaces,
    )


def test_nothing_is_due_below_the_minimum() -> None:
    assert plan_compaction((), a_compaction()) is None
    assert plan_compaction(deltas(3), a_compaction()) is None


def test_enough_deltas_become_one_file_of_the_next_level() -> None:
    plan = plan_compaction(deltas(4), a_compaction())
    assert plan is not None
    assert plan.inputs == deltas(4)
    output = plan.describe(0)
    assert (output.level, output.epoch, plan.drops_deleted) == (1, 4, True)
    assert output.replaces == tuple(file.identity for file in deltas(4))


def test_the_smallest_go_first_and_leave_larger_ones_alone() -> None:
    old = deltas(4, size_bytes=MANY_BYTES)
    plan = plan_compaction((*old, *deltas(5, first=5)), a_compaction())
    assert plan is not None
    assert plan.inputs == deltas(5, first=5)


def test_large_runs_merge_too() -> None:
    old = tuple(replace(file, level=7) for file in deltas(4, size_bytes=MANY_BYTES))
    plan = plan_compaction((*old, *deltas(3, first=5)), a_compaction())
    assert plan is not None
    assert (plan.inputs, plan.describe(0).level) == (old, 8)


def test_only_the_allowed_levels_merge() -> None:
    old = tuple(replace(file, level=1) for file in deltas(4, size_bytes=MANY_BYTES))
    config = a_compaction(compact_generations=frozenset({0}))
    assert plan_compaction((*old, *deltas(3, first=5)), config) is None
    plan = plan_compaction((*old, *deltas(4, first=5)), config)
    assert plan is not None
    assert plan.inputs == deltas(4, first=5)


def test_a_large_run_parts_small_ones_and_a_small_one_goes_with_large_ones() -> None:
    files = list(deltas(6))
    files[2] = replace(files[2], size_bytes=MANY_BYTES)
    assert plan_compaction(files, a_compaction()) is None
    files = list(deltas(6, size_bytes=MANY_BYTES))
    files[2] = replace(files[2], size_bytes=100)
    files[5] = replace(files[5], size_bytes=100)
    plan = plan_compaction(files, a_compaction())
    assert plan is not None
    assert plan.inputs == tuple(files[:5])


def test_runs_that_do_not_grow_when_they_merge_go_on_merging() -> None:
    """The same keys again and again; merging must not lift a run out of reach of the next."""
    files: tuple[StateFile, ...] = ()
    for epoch in range(1, 3_000):
        files += (a_state_file(f"delta-{epoch}", epoch, size_bytes=1_360),)
        plan = plan_compaction(files, a_compaction())
        if plan is not None:
            output = replace(merged(plan, f"merged-{epoch}"), size_bytes=1_360)
            swapped = apply_swap(files, [output])
            assert swapped is not None
            files = swapped
        assert len(files) < 4


def test_many_runs_merge_whatever_their_size() -> None:
    files = [
        replace(file, size_bytes=MANY_BYTES << (2 * index))
        for index, file in enumerate(deltas(20))
    ]
    files = files[::-1]
    assert plan_compaction(files[:6], replace(a_compaction(), max_runs=8)) is None
    plan = plan_compaction(files[:12], replace(a_compaction(), max_runs=8))
    assert plan is not None
    assert plan.inputs == tuple(files[5:12]), "the smallest, down to three quarters of 8"
    files = list(deltas(15, size_bytes=100))
    config = a_compaction(min_compaction_epochs=99)
    plan = plan_compaction(files, config)
    assert plan is not None
    assert len(plan.inputs) == 15 - 12 + 1


def test_the_cheapest_neighbours_merge_when_there_are_too_many() -> None:
    files = [replace(file, size_bytes=1_000 - 50 * n) for n, file in enumerate(deltas(14))]
    plan = plan_compaction(files, a_compaction(min_compaction_epochs=99))
    assert plan is not None
    assert plan.inputs[-1] == files[-1]


def test_deletions_stay_while_an_older_file_overlaps() -> None:
    base = deltas(1, size_bytes=MANY_BYTES)[0]
    plan = plan_compaction((base, *deltas(4, first=2)), a_compaction())
    assert plan is not None
    assert not plan.drops_deleted


def test_deletions_go_when_the_older_file_holds_no_hash_of_the_range() -> None:
    large = deltas(1, size_bytes=MANY_BYTES)[0]
    base = replace(large, min_key_hash=0, max_key_hash=5)
    newer = tuple(replace(file, visible=HIGH) for file in deltas(4, first=2))
    plan = plan_compaction((base, *newer), a_compaction())
    assert plan is not None
    assert plan.drops_deleted


def test_parts_of_one_compaction_are_one_run_and_never_parted() -> None:
    part = a_state_file("p", 3, level=1, replaces=("x", "y"))
    parts = tuple(replace(part, path=f"p{number}") for number in range(5))
    assert cut_runs(parts) == [parts]
    assert plan_compaction(parts, a_compaction()) is None


def test_disjoint_neighbours_are_one_run() -> None:
    files = (
        a_state_file("a", 1, subtask_index=0, visible=LOW),
        a_state_file("b", 1, subtask_index=1, visible=HIGH),
        a_state_file("c", 2, subtask_index=0, visible=LOW),
    )
    assert [len(run) for run in cut_runs(files)] == [2, 1]
    assert count_runs(files) == 2


def test_the_output_takes_the_place_of_its_newest_input_in_every_later_merge() -> None:
    """A list over two former subtasks, cut between their deltas of one epoch."""
    files = (
        a_state_file("a1", 1, subtask_index=0, visible=LOW),
        a_state_file("b1", 1, subtask_index=1, visible=HIGH),
        a_state_file("a2", 2, subtask_index=0, visible=LOW),
        a_state_file("b2", 2, subtask_index=1, visible=HIGH),
    )
    plan = CompactionPlan(files[:3], drops_deleted=True)
    output = merged(plan, name="zzz-written-last")
    swapped = apply_swap(files, [output])
    assert swapped == (output, files[3])
    assert merge_lists([swapped]) == swapped


def test_the_description_carries_what_the_list_needs() -> None:
    plan = CompactionPlan(deltas(3), drops_deleted=True)
    description = plan.describe(7, visible=LOW, time_column="t", expiry_column="e")
    assert (description.epoch, description.level, description.state_version) == (3, 1, 7)
    assert description.replaces == tuple(file.identity for file in plan.inputs)
    assert (description.visible, description.time_column) == (LOW, "t")
    assert plan.describe(7).visible == FULL_RANGE


@given(
    sizes=st.lists(
        st.integers(1, 40).map(lambda power: 1 << power), min_size=1, max_size=200
    ),
    every=st.integers(1, 20),
    minimum=st.integers(2, 30),
)
def test_planning_again_and_again_ends_with_bounded_runs(
    sizes: list[int], every: int, minimum: int
) -> None:
    config = a_compaction(min_compaction_epochs=minimum)
    files: tuple[StateFile, ...] = ()
    outputs = 0
    for epoch, size in enumerate(sizes, start=1):
        files += (a_state_file(f"delta-{epoch}", epoch, size_bytes=size),)
        if epoch % every:
            continue
        while (plan := plan_compaction(files, config)) is not None:
            before = len(cut_runs(files))
            outputs += 1
            swapped = apply_swap(files, [merged(plan, f"merged-{outputs}")])
            assert swapped is not None
            files = swapped
            assert len(cut_runs(files)) < before
        assert len(cut_runs(files)) <= MAX_RUNS
        assert count_runs(files) <= MAX_RUNS * 3 // 4


@given(st.lists(st.integers(15, 24), max_size=40), st.integers(2, 6))
def test_a_plan_takes_neighbours_and_its_swap_always_fits(
    powers: list[int], minimum: int
) -> None:
    files = tuple(
        a_state_file(f"f{epoch}", epoch, size_bytes=1 << power)
        for epoch, power in enumerate(powers, start=1)
    )
    plan = plan_compaction(files, a_compaction(min_compaction_epochs=minimum))
    if plan is None:
        assert len(files) <= MAX_RUNS * 3 // 4
        return
    assert len(plan.inputs) >= 2
    swapped = apply_swap(files, [merged(plan)])
    assert swapped is not None
    assert [file.epoch for file in swapped] == sorted(file.epoch for file in swapped)
    assert plan.drops_deleted == (plan.inputs[0] == files[0])


@pytest.mark.parametrize("size_bytes", [100, 100_000, 10_000_000])
@pytest.mark.parametrize("share", [1.0, 0.7, 0.0])
def test_a_long_history_rewrites_each_row_a_few_times_only(
    size_bytes: int, share: float
) -> None:
    """`share` of what is merged stays; at 0 the inputs hold the same keys."""
    epochs = 600
    config = a_compaction()
    files: tuple[StateFile, ...] = ()
    rewritten, most_runs = 0, 0
    for epoch in range(1, epochs + 1):
        files += (a_state_file(f"d{epoch}", epoch, size_bytes=size_bytes),)
        while (plan := plan_compaction(files, config)) is not None:
            sizes = [file.size_bytes for file in plan.inputs]
            rewritten += sum(sizes)
            left = max(*sizes, int(share * sum(sizes)))
            files = _swapped(files, plan, rewritten, left)
        most_runs = max(most_runs, len(files))
    # Five times each byte; small runs are of one tier, up to a size worth a file.
    assert rewritten <= epochs * (5 * size_bytes + SMALL_BYTES // 3)
    assert most_runs <= MAX_RUNS * 3 // 4


def _swapped(
    files: Sequence[StateFile], plan: CompactionPlan, number: int, size_bytes: int
) -> tuple[StateFile, ...]:
    output = replace(merged(plan, f"m{number}"), size_bytes=size_bytes)
    swapped = apply_swap(files, [output])
    assert swapped is not None
    return swapped
