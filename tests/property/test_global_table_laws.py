"""A global table is one dictionary, one epoch late for others' writes, warm or cold."""

from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from penstock.state.tables.specs import global_table
from penstock.state.tables.table import Files
from tests.unit.state.tables.table_cluster import TableCluster

KEYS = ["", "a", "b", "é", "k" * 40]
changes_per_subtask = st.lists(
    st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 3)), max_size=4),
    min_size=5,
    max_size=5,
)


class GlobalTableMachine(RuleBasedStateMachine):
    """Random histories of one table over several subtasks, next to a dictionary."""

    @initialize(parallelism=st.integers(1, 4))
    def start(self, parallelism: int) -> None:
        self.cluster = TableCluster(global_table("state", str, int), parallelism)
        self.model: dict[str, int] = {}
        self.running: list[Files] = []

    @rule(changes=changes_per_subtask, warm=st.booleans())
    def run_epoch(self, changes: list[list[tuple[str, int | None]]], warm: bool) -> None:
        before = dict(self.model)

        def write(index: int, view: Any) -> None:
            own = dict(before)
            for key, value in changes[index]:
                if value is None:
                    assert view.remove(key) == own.pop(key, None)
                else:
                    view.insert(key, value)
                    own[key] = value
                assert view.get(key) == own.get(key)
            assert dict(view.items()) == own
            assert len(view) == len(own)
            # Subtasks write in order of index; what did not change is not written.
            for key in {*own, *before}:
                if own.get(key) != before.get(key):
                    self.model.pop(key, None)
                    if key in own:
                        self.model[key] = own[key]

        self.cluster.run_epoch(write, warm=warm)

    @rule(parallelism=st.integers(1, 5))
    def rescale(self, parallelism: int) -> None:
        self.cluster.rescale(parallelism)

    @rule(minimum=st.integers(2, 4))
    def compact(self, minimum: int) -> None:
        compacted = self.cluster.compact(0, min_compaction_epochs=minimum)
        if compacted is not None:
            self.running.append(compacted)

    @precondition(lambda self: self.running)
    @rule(choice=st.integers(0, 9))
    def swap(self, choice: int) -> None:
        """Publish a compaction, however old: all subtasks' lists change, or none does."""
        self.cluster.swap(self.running.pop(choice % len(self.running)))

    @invariant()
    def a_cold_subtask_sees_the_model(self) -> None:
        index = self.cluster.epoch % self.cluster.parallelism
        assert dict(self.cluster.view(index).items()) == self.model

    @invariant()
    def every_file_is_carried_once(self) -> None:
        carried = [file.identity for part in self.cluster.lists().values() for file in part]
        assert len(carried) == len(set(carried))

    def teardown(self) -> None:
        """Look at the end through every subtask, warm and cold."""
        if not hasattr(self, "cluster"):
            return
        for index in range(self.cluster.parallelism):
            for warm in (False, True):
                view = self.cluster.view(index, warm=warm)
                assert dict(view.items()) == self.model


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_long_histories_keep_every_law(seed: int) -> None:
    """Hypothesis leaves rules out to find small failures; here all of them mix."""
    random = Random(seed)
    machine = GlobalTableMachine()
    machine.start(parallelism=random.randint(1, 4))

    def a_change() -> tuple[str, int | None]:
        return random.choice(KEYS), random.choice([None, 0, 1, 2, 3])

    for _ in range(30):
        action = random.randrange(6)
        if action < 3:
            changes = [[a_change() for _ in range(random.randrange(4))] for _ in range(5)]
            machine.run_epoch(changes=changes, warm=random.random() < 0.7)
        elif action == 3:
            machine.rescale(parallelism=random.randint(1, 5))
        elif action == 4:
            machine.compact(minimum=random.randint(2, 4))
        elif machine.running:
            machine.swap(choice=random.randrange(10))
        machine.a_cold_subtask_sees_the_model()
        machine.every_file_is_carried_once()
    machine.teardown()


TestGlobalTable = pytest.mark.slow(GlobalTableMachine.TestCase)
