"""File lists fold to the same table whatever is written, rescaled, compacted and swapped."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, groupby
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from penstock.core.ids import Epoch, KeyRange, Subtask, owner_of
from penstock.state.files.state_file import (
    StateFile,
    apply_swap,
    derive_missing,
    merge_lists,
    restrict,
)
from penstock.state.tables.compaction import (
    CompactionPlan,
    cut_runs,
    plan_compaction,
)
from tests.unit.state.files.file_builders import a_state_file
from tests.unit.state.tables.table_builders import a_compaction

HASHES = 4
"""Keys 0 to 3, spread over the whole space of hashes."""
DELETED = None

Content = dict[int, int | None]
"""What a file holds: per key a version, or its deletion."""


choices = st.integers(0, 99)
"""A choice among however many there are."""


def hash_of(key: int) -> int:
    return key * ((1 << 64) // HASHES) + 12_345


class FileListMachine(RuleBasedStateMachine):
    """A keyed table without storage: files are names, their contents a dictionary."""

    @initialize(parallelism=st.integers(1, 3))
    def start(self, parallelism: int) -> None:
        self.model: dict[int, int] = {}
        self.contents: dict[str, Content] = {}
        self.lists: list[tuple[StateFile, ...]] = [()] * parallelism
        self.epoch = 0
        self.names = 0
        self.running: list[list[StateFile]] = []
        self.held: list[tuple[int, tuple[StateFile, ...], Content]] = []

    @rule(
        changes=st.lists(
            st.tuples(st.integers(0, HASHES - 1), st.booleans()), min_size=1, max_size=6
        )
    )
    def run_epoch(self, changes: list[tuple[int, bool]]) -> None:
        """Every subtask writes a delta of the keys it owns that changed."""
        self.epoch += 1
        deltas: list[Content] = [{} for _ in self.lists]
        for key, is_deleted in changes:
            owner = owner_of(hash_of(key), len(self.lists))
            deltas[owner][key] = DELETED if is_deleted else self.epoch
            if is_deleted:
                self.model.pop(key, None)
            else:
                self.model[key] = self.epoch
        for index, delta in enumerate(deltas):
            if delta:
                visible = Subtask(index, len(self.lists)).key_range
                file = self._write(delta, self.epoch, index, visible)
                self.lists[index] += (file,)

    @rule(parallelism=st.integers(1, 3))
    def rescale(self, parallelism: int) -> None:
        merged = merge_lists(self.lists)
        assert merge_lists([merged]) == merged
        self.lists = [
            restrict(merged, Subtask(index, parallelism).key_range)
            for index in range(parallelism)
        ]
        self.held = []

    @rule(index=choices, first=choices, length=choices, cut=choices, waits=st.booleans())
    def compact_any_neighbours(
        self, index: int, first: int, length: int, cut: int, waits: bool
    ) -> None:
        """Merge any neighbours that do not part one epoch's files of one subtask."""
        classes = [
            tuple(same)
            for _, same in groupby(
                self.lists[index % len(self.lists)],
                key=lambda file: (file.epoch, file.subtask_index),
            )
        ]
        if len(classes) < 2:
            return
        start = first % (len(classes) - 1)
        end = start + 2 + length % (len(classes) - start - 1)
        inputs = tuple(chain.from_iterable(classes[start:end]))
        older = list(chain.from_iterable(classes[:start]))
        hides = any(restrict(older, file.visible) for file in inputs)
        self._start(CompactionPlan(inputs, drops_deleted=not hides), cut, waits=waits)

    @rule(index=choices, minimum=st.integers(2, 3), cut=choices, waits=st.booleans())
    def compact_as_planned(self, index: int, minimum: int, cut: int, waits: bool) -> None:
        files = self.lists[index % len(self.lists)]
        plan = plan_compaction(files, a_compaction(min_compaction_epochs=minimum))
        if plan is not None:
            self._start(plan, cut, waits=waits)

    @precondition(lambda self: self.running)
    @rule(choice=choices)
    def swap(self, choice: int) -> None:
        """Publish a compaction, however old; it is void where its inputs have changed."""
        outputs = self.running.pop(choice % len(self.running))
        self.lists = [apply_swap(files, outputs) or files for files in self.lists]

    @rule(index=choices)
    def keep_a_view(self, index: int) -> None:
        """Remember a fold, as a worker that stays warm would."""
        index %= len(self.lists)
        self.held.append((index, self.lists[index], self._fold(self.lists[index])))

    @invariant()
    def every_key_is_seen_by_its_owner_alone(self) -> None:
        seen: dict[int, int] = {}
        for index, files in enumerate(self.lists):
            live = {key: v for key, v in self._fold(files).items() if v is not None}
            assert all(owner_of(hash_of(key), len(self.lists)) == index for key in live)
            seen.update(live)
        assert seen == self.model

    @invariant()
    def a_rescale_to_any_parallelism_would_show_the_same(self) -> None:
        merged = merge_lists(self.lists)
        for parallelism in (1, 2, 3):
            for index in range(parallelism):
                key_range = Subtask(index, parallelism).key_range
                owned = {k: v for k, v in self.model.items() if hash_of(k) in key_range}
                assert _live(self._fold(restrict(merged, key_range))) == owned

    @invariant()
    def a_warm_fold_equals_a_cold_one(self) -> None:
        for index, files, folded in self.held:
            missing = derive_missing(files, self.lists[index])
            if missing is not None:
                warm = {**folded, **self._fold(missing)}
                cold = self._fold(self.lists[index])
                assert _live(warm) == _live(cold)

    @invariant()
    def lists_are_in_order(self) -> None:
        for files in self.lists:
            order = [(file.epoch, file.subtask_index) for file in files]
            assert order == sorted(order)

    def teardown(self) -> None:
        """Compact to the end: it ends, and leaves few runs."""
        for number, files in enumerate(getattr(self, "lists", [])):
            current = files
            while (plan := plan_compaction(current, a_compaction())) is not None:
                swapped = apply_swap(current, self._compact(plan, 0))
                assert swapped is not None
                current = swapped
            assert len(cut_runs(current)) <= 16
            assert _live(self._fold(current)) == _live(self._fold(files)), number

    def _start(self, plan: CompactionPlan, cut: int, *, waits: bool) -> None:
        """Compact, and publish it now or some time later."""
        self.running.append(self._compact(plan, cut))
        if not waits:
            self.swap(len(self.running) - 1)

    def _fold(self, files: Sequence[StateFile]) -> Content:
        folded: Content = {}
        for file in files:
            for key, version in self.contents[file.path].items():
                if hash_of(key) in file.visible:
                    folded[key] = version
        return folded

    def _compact(self, plan: CompactionPlan, cut: int) -> list[StateFile]:
        folded = self._fold(plan.inputs)
        if plan.drops_deleted:
            folded = {key: v for key, v in folded.items() if v is not None}
        border = hash_of(cut % (HASHES + 1))
        planned = plan.describe(0)
        ranges = [planned.visible]
        if planned.visible.start < border < planned.visible.end:
            ranges = [
                KeyRange(planned.visible.start, border),
                KeyRange(border, planned.visible.end),
            ]
        outputs = []
        for visible in ranges:
            part = {key: v for key, v in folded.items() if hash_of(key) in visible}
            file = self._write(part, planned.epoch, planned.subtask_index, visible)
            outputs.append(replace(file, level=planned.level, replaces=planned.replaces))
        return outputs

    def _write(
        self, content: Content, epoch: int, subtask_index: int, visible: KeyRange
    ) -> StateFile:
        self.names += 1
        # Names do not sort in the order of writing: generations and parts are not padded.
        path = f"{self.names % 7}-{self.names}"
        self.contents[path] = dict(content)
        hashes = [hash_of(key) for key in content]
        bounds = (min(hashes), max(hashes)) if hashes else None
        file = a_state_file(
            path, subtask_index=subtask_index, visible=visible, hashes=bounds
        )
        return replace(file, epoch=Epoch(epoch), row_count=len(content))


def _live(content: Content) -> Content:
    return {key: version for key, version in content.items() if version is not None}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(150))
def test_long_histories_keep_every_law(seed: int) -> None:
    """Hypothesis leaves rules out to find small failures; here all of them mix."""
    random = Random(seed)
    machine = FileListMachine()
    machine.start(parallelism=random.randint(1, 3))

    def choose() -> int:
        return random.randrange(100)

    def waits() -> bool:
        return random.random() < 0.4

    for _ in range(40):
        action = random.randrange(7)
        if action < 3:
            keys = random.choices(range(HASHES), k=random.randint(1, 6))
            machine.run_epoch(changes=[(key, random.random() < 0.3) for key in keys])
        elif action == 3:
            machine.rescale(parallelism=random.randint(1, 3))
        elif action == 4:
            machine.compact_any_neighbours(
                index=choose(), first=choose(), length=choose(), cut=choose(), waits=waits()
            )
        elif action == 5:
            machine.compact_as_planned(
                index=choose(), minimum=random.randint(2, 3), cut=choose(), waits=waits()
            )
        elif machine.running:
            machine.swap(choice=choose())
        if random.random() < 0.2:
            machine.keep_a_view(index=choose())
        machine.every_key_is_seen_by_its_owner_alone()
        machine.a_rescale_to_any_parallelism_would_show_the_same()
        machine.a_warm_fold_equals_a_cold_one()
        machine.lists_are_in_order()
    machine.teardown()


TestFileLists = pytest.mark.slow(FileListMachine.TestCase)
TestFileLists.settings = settings(max_examples=2 * settings().max_examples)
