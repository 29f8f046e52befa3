"""All subtasks of one operator with one table, driven by hand as a driver would drive them."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from penstock.core.ids import Epoch
from penstock.state.files.cache import FileCache
from penstock.state.files.state_file import StateFile, derive_missing, restrict
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.operator_tables import open_table, table_kind_of
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import Files, Frontier, Table, TableEnvironment
from tests.unit.state.tables.table_builders import (
    NO_CACHE,
    a_barrier,
    a_compaction,
    an_environment,
)

Parts = dict[int, Files]
Write = Callable[[int, Any], None]


class TableCluster:
    """Runs epochs of one table at any parallelism; restores from metadata alone, or warm."""

    new_store: ClassVar[Callable[[], ObjectStore]] = MemoryStore
    """Makes the store of a cluster that is given none."""

    def __init__(
        self,
        spec: TableSpec,
        parallelism: int = 1,
        *,
        store: ObjectStore | None = None,
        cache: FileCache = NO_CACHE,
    ) -> None:
        self.spec = spec
        self.store: ObjectStore = type(self).new_store() if store is None else store
        self.parallelism = parallelism
        self.parts: Parts = {}
        self.epoch = 0
        self.watermark: int | None = None
        self.bytes_written = 0
        self._cache = cache
        self._warm: dict[tuple[int, int], Any] = {}
        self._attempts = 0

    @property
    def kind(self) -> type[Table[Any]]:
        return table_kind_of(self.spec.table_type, table=self.spec.name)

    def files(self, index: int = 0) -> tuple[StateFile, ...]:
        """The list of one subtask."""
        return self.parts.get(index, ())

    def merged(self) -> Files | None:
        return self.kind.merge_checkpoint_metadata(self.parts.values()) or None

    def table(self, index: int) -> Table[Any]:
        return open_table(self.spec, self.environment(index), self.merged() or ())

    def environment(self, index: int) -> TableEnvironment:
        self._attempts += 1
        return an_environment(
            self.store,
            index=index,
            parallelism=self.parallelism,
            cache=self._cache,
            attempt=self._attempts,
        )

    def view(self, index: int = 0, *, warm: bool = False) -> Any:
        """Open a view as the next epoch would see it, cold unless a warm one can catch up."""
        table = self.table(index)
        kept = self._warm.get((index, self.parallelism)) if warm else None
        if kept is not None:
            missing = derive_missing(kept.files, table.files)
            if missing is not None:
                kept.catch_up(missing, table.files)
                kept.advance(Frontier(self.watermark))
                return kept
        view = table.view()
        view.advance(Frontier(self.watermark))
        return view

    def run_epoch(
        self,
        write: Write | None = None,
        *,
        watermark: int | None = None,
        warm: bool = False,
    ) -> None:
        """Let every subtask write, then checkpoint all of them."""
        self.epoch += 1
        self.watermark = self.watermark if watermark is None else watermark
        self.bytes_written = 0
        parts: Parts = {}
        views = {index: self.view(index, warm=warm) for index in range(self.parallelism)}
        for index, view in views.items():
            if write is not None:
                write(index, view)
            part = self._checkpoint(index, view)
            if part is not None:
                parts[index] = part
        self.parts = parts
        self._warm = {(index, self.parallelism): view for index, view in views.items()}

    def rescale(self, parallelism: int) -> None:
        """Hand the whole table to another number of subtasks."""
        merged = self.merged()
        self.parallelism = parallelism
        parts: Parts = {}
        for index in range(parallelism):
            if merged is not None:
                task = self.environment(index).task
                part = self.kind.subtask_metadata_from_table(merged, task)
                if part:
                    parts[index] = part
        self.parts = parts

    def compact(self, index: int = 0, **options: Any) -> Files | None:
        """Run a due compaction of one subtask; the result is not swapped in yet."""
        merged, table = self.merged(), self.table(index)
        if merged is None or (table.is_shared and index != 0):
            return None
        config = a_compaction(
            epoch=self.epoch + 1, watermark_micros=self.watermark, **options
        )
        own = (
            merged
            if table.is_shared
            else restrict(merged, table.environment.task.key_range)
        )
        plan = self.kind.plan_compaction(own, config)
        return None if plan is None else table.compact_data(plan, config)

    def swap(self, compacted: Files, expired: Collection[str] = ()) -> bool:
        """Apply a compaction to all subtasks' lists; tell whether anything changed."""
        before = self.lists()
        self.parts = self.kind.apply_compacted_checkpoint(compacted, self.parts, expired)
        return self.lists() != before

    def compact_all(self, **options: Any) -> int:
        """Compact and swap until nothing is due; return how often."""
        rounds = 0
        for index in range(self.parallelism):
            while (compacted := self.compact(index, **options)) is not None:
                assert self.swap(compacted)
                rounds += 1
        return rounds

    def lists(self) -> Mapping[int, tuple[StateFile, ...]]:
        return {index: self.files(index) for index in range(self.parallelism)}

    def _checkpoint(self, index: int, view: Any) -> Files | None:
        table = self.table(index)
        checkpointer = table.epoch_checkpointer(Epoch(self.epoch), self.files(index))
        view.flush(checkpointer)
        finished = checkpointer.finish(a_barrier(self.epoch, self.watermark))
        if finished is None:
            view.checkpointed(())
            return None
        part, size = finished
        self.bytes_written += size
        view.checkpointed(part)
        return part
