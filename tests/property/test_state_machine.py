"""All of the state layer against plain dictionaries: whatever happens, no state is lost."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

from penstock.core.ids import Epoch, SavepointName
from penstock.state.files.cache import FileCache
from penstock.state.protocol.paths import slot_of
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.compaction import cut_runs
from penstock.testing import assert_job_is_whole, assert_no_restore_is_left_pinned
from tests.builders.kept_epochs import files_of, load_epoch, manifest_of, read_metadata
from tests.builders.protocol import RULES
from tests.builders.shop import (
    SHOP,
    Operation,
    ShopEpoch,
    ShopModel,
    check_contents,
    shop_specs,
)
from tests.builders.state_job import StateJob
from tests.unit.state.tables.table_builders import NO_CACHE

KEYS = ["", "a", "b", "ä", "鍵", "key with spaces", "x" * 40, "0"]
keys = st.sampled_from(KEYS)
some_keys = st.lists(keys, min_size=1, max_size=4)
numbers = st.integers(0, 99)
times = st.integers(-5, 60)
rows = st.lists(st.tuples(keys, numbers, times), min_size=1, max_size=4)
tables = st.sampled_from(["totals", "recent", "lines"])
indexes = st.integers(0, 3)
puts = st.tuples(st.just("put"), tables, rows)
deletes = st.tuples(st.just("delete"), tables, some_keys)
other_operations = st.one_of(
    st.tuples(st.just("insert_panes"), rows, st.none() | times),
    st.tuples(st.just("insert_marks"), indexes, rows, st.none() | times),
    st.tuples(st.just("count"), indexes, keys, st.none() | st.integers(0, 3)),
    st.tuples(st.just("commit"), indexes, st.sampled_from(["one", "two"])),
)
operations = st.lists(puts | deletes | other_operations, max_size=6)
advances = st.none() | st.integers(0, 12)


class StateMachine(RuleBasedStateMachine):
    """Random histories of a job, next to the model of each of its epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())

    def teardown(self) -> None:
        try:
            if hasattr(self, "job"):
                self.check_kept_epochs()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    @initialize(parallelism=st.integers(1, 4), cached=st.booleans())
    def begin(self, parallelism: int, cached: bool) -> None:
        self.version = 1
        self.store = MemoryStore()
        self.job = StateJob(
            shop_specs(1),
            store=self.store,
            cache=FileCache(self.folder, 1 << 20) if cached else NO_CACHE,
            parallelism=parallelism,
        )
        self.history: dict[int, ShopModel] = {0: ShopModel()}
        self.promised: dict[int, dict[int, bytes]] = {}
        self.pins: dict[str, int] = {}

    @rule(chosen=operations, advance=advances, asked=some_keys, check_at=st.integers(1, 4))
    def run_epoch(
        self,
        chosen: Sequence[Operation],
        advance: int | None,
        asked: list[str],
        check_at: int,
    ) -> None:
        epoch = ShopEpoch(self.job, self.history[self.base], self.version)
        epoch.check()
        epoch.apply(chosen)
        epoch.check()
        epoch.check_lookups(asked)
        self.finish(epoch, advance)
        self.check_epoch(self.base, check_at)

    @rule(chosen=st.lists(operations, min_size=2, max_size=5), advance=advances)
    def run_many_epochs(self, chosen: list[list[Operation]], advance: int | None) -> None:
        for one in chosen:
            epoch = ShopEpoch(self.job, self.history[self.base], self.version)
            epoch.apply(one)
            self.finish(epoch, advance)
        self.check_epoch(self.base)

    @rule(batch=rows, gone=some_keys, table=tables, advance=advances)
    def put_compact_and_delete(
        self, batch: list[Any], gone: list[str], table: str, advance: int | None
    ) -> None:
        """What a tombstone hides must stay hidden, wherever the files go meanwhile."""
        for chosen in (("put", table, batch), ("delete", table, gone)):
            for index in range(self.job.parallelism):
                self.job.compact(SHOP, index)
            epoch = ShopEpoch(self.job, self.history[self.base], self.version)
            epoch.apply([chosen])
            self.finish(epoch, advance)
        self.check_epoch(self.base)

    @rule(
        chosen=operations,
        advance=advances,
        fate=st.sampled_from(["files", "published", "sinks"]),
        keeps_views=st.booleans(),
    )
    def run_epoch_and_crash(
        self, chosen: list[Operation], advance: int | None, fate: str, keeps_views: bool
    ) -> None:
        """Die before the epoch is acknowledged, before its sinks commit, or after that."""
        epoch = ShopEpoch(self.job, self.history[self.base], self.version)
        epoch.apply(chosen)
        self.finish(epoch, advance, fate, keeps_views=keeps_views)

    def finish(
        self,
        epoch: ShopEpoch,
        advance: int | None,
        fate: str = "done",
        *,
        keeps_views: bool = False,
    ) -> None:
        """Publish a running epoch, or die on the way, with or without the executors."""
        watermark = self.job.watermark
        if advance is not None:
            watermark = advance if watermark is None else watermark + advance
        work = self.job.checkpoint_subtasks(watermark)
        if fate == "files":
            self.job.start(keeps_views=keeps_views)
            return
        permit = self.job.publish(work)
        self.history[epoch.epoch] = epoch.finished(watermark)
        self.promised[epoch.epoch] = epoch.committing
        assert (permit is not None) == bool(epoch.committing)
        if permit is not None and fate == "sinks":
            self.job.commit_sinks(permit)
        if fate != "done":
            self.job.start(keeps_views=keeps_views)
        elif permit is not None:
            self.job.commit(permit)
        assert self.base == epoch.epoch
        assert_no_restore_is_left_pinned(self.job.checkpoints)

    @precondition(lambda self: self.base > 0)
    @rule()
    def settle(self) -> None:
        """Waiting for compaction before each epoch soon brings runs below their limit."""
        for _ in range(6):
            epoch = ShopEpoch(self.job, self.history[self.base], self.version)
            self.finish(epoch, None)
            if not self.has_too_many_runs():
                return
        raise AssertionError("an idle job never gets below its limit of runs")

    @rule(parallelism=st.none() | st.integers(1, 4), keeps_views=st.booleans())
    def restart(self, parallelism: int | None, keeps_views: bool) -> None:
        """Take over with the same or another number of subtasks."""
        newest = self.base
        self.job.start(parallelism=parallelism, keeps_views=keeps_views)
        assert self.base == newest

    @precondition(lambda self: self.base > 0)
    @rule(
        data=st.data(),
        parallelism=st.none() | st.integers(1, 4),
        keeps_views=st.booleans(),
    )
    def restore(self, data: Any, parallelism: int | None, keeps_views: bool) -> None:
        epoch = data.draw(st.sampled_from(self.kept_epochs()))
        self.job.start(
            restore=Epochs(Epoch(epoch)), parallelism=parallelism, keeps_views=keeps_views
        )
        assert self.base == epoch

    @rule(
        index=indexes,
        min_files=st.integers(2, 4),
        target_bytes=st.sampled_from([1, 1 << 20]),
        delay=st.sampled_from([0, 0, 0, 1, 2, 3, 99]),
    )
    def compact(self, index: int, min_files: int, target_bytes: int, delay: int) -> None:
        """Merge files; the swap comes with the next epoch, later, too late or never."""
        self.job.compact(
            SHOP,
            index % self.job.parallelism,
            min_files=min_files,
            target_bytes=target_bytes,
            delay=delay,
        )

    @precondition(lambda self: self.version < 3)
    @rule()
    def migrate(self) -> None:
        """Start the next version of the program."""
        self.version += 1
        self.job.start(specs=shop_specs(self.version))

    @rule(micros=st.integers(1, 15))
    def let_time_pass(self, micros: int) -> None:
        self.job.clock.advance(micros)

    @rule(keep=st.integers(1, 3), sweeps=st.booleans())
    def collect(self, keep: int, sweeps: bool) -> None:
        self.job.checkpoints.collect(self.job.claim, keep_epochs=keep)
        if sweeps:
            self.job.checkpoints.sweep(self.job.claim)
            self.check_nothing_unreferenced()
        self.check_kept_epochs()

    @precondition(lambda self: self.base > 0)
    @rule(data=st.data(), name=st.sampled_from(["one", "two"]))
    def pin_or_unpin(self, data: Any, name: str) -> None:
        if name in self.pins:
            assert self.job.checkpoints.unpin(SavepointName(name))
            del self.pins[name]
        else:
            epoch = data.draw(st.sampled_from(self.kept_epochs()))
            self.job.checkpoints.pin(SavepointName(name), Epochs(Epoch(epoch)))
            self.pins[name] = epoch

    @rule(chosen=st.sets(indexes), loses_cache=st.booleans())
    def forget(self, chosen: set[int], loses_cache: bool) -> None:
        """Lose the memory of some subtasks: they will load while the others catch up."""
        for index in chosen:
            self.job.managers.pop((SHOP, index), None)
        if loses_cache:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def base(self) -> int:
        """The epoch that the next one is built on; 0 for none."""
        return 0 if self.job.base is None else int(self.job.base.ref.epoch)

    def kept_epochs(self) -> list[int]:
        return sorted(int(one.record.ref.epoch) for one in self.job.checkpoints.epochs())

    def check_epoch(self, epoch: int, parallelism: int = 1) -> None:
        """An epoch folds to what the model held, at whatever parallelism it is opened."""
        managers = load_epoch(
            self.job.checkpoints,
            SHOP,
            self.job.specs[SHOP],
            epoch,
            parallelism=parallelism,
        )
        check_contents(managers, self.history[epoch], self.version)

    def check_kept_epochs(self) -> None:
        kept = self.kept_epochs()
        assert not kept or max(self.history) in kept
        assert set(self.pins.values()) <= set(kept)
        for epoch in kept:
            self.check_epoch(epoch)

    def has_too_many_runs(self) -> bool:
        return any(
            len(cut_runs(files_of(metadata, table))) > 16
            for metadata in self.job.metadata[SHOP].values()
            for table in ("totals", "recent", "lines", "panes", "marks")
        )

    def check_nothing_unreferenced(self) -> None:
        """After a sweep only what is kept is left below the adoption window."""
        kept = self.kept_epochs()
        referenced = set()
        for manifest in [manifest_of(self.job.checkpoints, epoch) for epoch in kept]:
            for entry in manifest.operators:
                referenced |= {ref.path for ref in entry.subtasks}
            for metadata in read_metadata(self.store, manifest)[SHOP].values():
                for table in metadata.table_checkpoint_metadata:
                    referenced |= {file.path for file in files_of(metadata, table)}
        horizon = max(self.history) - RULES.adoption_window
        for info in self.store.list("job/generations"):
            slot = slot_of(info.path)
            if slot is not None and slot.ref.epoch <= horizon:
                is_of_kept = slot.rest in ("manifest.pb", "committed")
                assert info.path in referenced or (is_of_kept and slot.ref.epoch in kept)

    @invariant()
    def every_kept_epoch_has_all_it_needs(self) -> None:
        if hasattr(self, "job"):
            assert_job_is_whole(self.job.checkpoints)

    @invariant()
    def every_acknowledged_epoch_is_committed_as_promised(self) -> None:
        if not hasattr(self, "job"):
            return
        found: dict[int, dict[int, bytes]] = {}
        for epoch, _, index, _, data in self.job.sink:
            assert found.setdefault(epoch, {}).setdefault(index, data) == data
        assert found == {e: promised for e, promised in self.promised.items() if promised}


PROFILE = settings.get_profile(settings.get_current_profile_name())
StateMachine.TestCase.settings = settings(
    max_examples=PROFILE.max_examples // 3,  # each example is a few seconds of a job's life
    stateful_step_count=PROFILE.stateful_step_count * 4 // 5,
)
TestStateMachine = pytest.mark.slow(StateMachine.TestCase)
