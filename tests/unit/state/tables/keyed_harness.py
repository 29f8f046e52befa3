"""A keyed table at work: all subtasks of one operator over one store, epoch after epoch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.clock import new_token
from penstock.core.ids import Epoch, Generation, JobId, OperatorId, Subtask, TaskInfo
from penstock.core.key_hash import hash_keys, owners_of
from penstock.state.files.cache import FileCache
from penstock.state.files.state_file import StateFile, derive_missing
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.columns import KeyedSchema
from penstock.state.tables.expiry import TimeToLive
from penstock.state.tables.keyed import KeyedTable
from penstock.state.tables.keyed_view import KeyedView
from penstock.state.tables.table import (
    CheckpointMessage,
    CompactionConfig,
    Files,
    Frontier,
    TableEnvironment,
)


def a_schema(
    columns: Mapping[str, Any],
    *keys: str,
    ttl: TimeToLive | None = None,
    routed_by: tuple[str, ...] = (),
) -> KeyedSchema:
    """A declaration of columns given by type or as fields."""
    fields = [
        kind if isinstance(kind, pa.Field) else pa.field(name, kind)
        for name, kind in columns.items()
    ]
    return KeyedSchema("table", pa.schema(fields), keys, ttl, routed_by)


SIMPLE = a_schema({"key": pa.int64(), "value": pa.string()}, "key")


def an_environment(
    cache_root: Path,
    *,
    store: ObjectStore | None = None,
    subtask: Subtask | None = None,
    memory_budget_bytes: int = 64 << 20,
) -> TableEnvironment:
    return TableEnvironment(
        TaskInfo(JobId("job"), OperatorId("operator"), subtask or Subtask(0, 1)),
        Generation(1),
        new_token(),
        store or MemoryStore(),
        FileCache(cache_root, 1 << 30),
        memory_budget_bytes,
    )


def rows_of(view: KeyedView) -> list[dict[str, Any]]:
    return [row for batch in view.scan() for row in batch.to_pylist()]


@dataclass
class Turning:
    """A checkpointer that is handed rows of equal hash in the opposite order."""

    checkpointer: Any

    def insert_data(self, rows: pa.RecordBatch) -> None:
        backwards = np.arange(rows.num_rows)[::-1]
        hashes: Any = rows.column("_key_hash").to_numpy()
        order = backwards[np.argsort(hashes[backwards], kind="stable")]
        self.checkpointer.insert_data(rows.take(pa.array(order, pa.int64())))


@dataclass
class KeyedHarness:
    """Views of all subtasks, plus lagging copies that catch up as cached views do."""

    cache_root: Path
    schema: KeyedSchema = SIMPLE
    parallelism: int = 1
    store: ObjectStore = field(default_factory=MemoryStore)
    memory_budget_bytes: int = 64 << 20
    state_version: int = 0
    state_type: type | None = None
    frontier: Frontier = field(default_factory=Frontier)
    epoch: int = 0
    message: Files | None = None
    subtasks: dict[int, Files] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.restore(self.parallelism)

    def restore(self, parallelism: int) -> None:
        """Start anew from the last checkpoint; what was not in it is lost."""
        self.parallelism = parallelism
        self.tables = [self.open_table(index) for index in range(parallelism)]
        self.subtasks = {}
        if self.message is not None:
            for index, table in enumerate(self.tables):
                task = table.environment.task
                part = table.subtask_metadata_from_table(self.message, task)
                if part:
                    self.subtasks[index] = part
        self.views = [table.view() for table in self.tables]
        self.lagging = [table.view() for table in self.tables]
        self.advance(self.frontier)

    def open_table(self, index: int) -> KeyedTable:
        environment = an_environment(
            self.cache_root,
            store=self.store,
            subtask=Subtask(index, self.parallelism),
            memory_budget_bytes=self.memory_budget_bytes,
        )
        return KeyedTable.from_config(
            self.schema.to_config(),
            environment,
            self.message or (),
            self.state_version,
            self.state_type,
        )

    def advance(self, frontier: Frontier) -> None:
        self.frontier = frontier
        for view in (*self.views, *self.lagging):
            view.advance(frontier)

    def put(self, rows: pa.RecordBatch) -> None:
        for view, part in self.routed(rows):
            view.put(part)

    def delete(self, keys: pa.RecordBatch) -> None:
        for view, part in self.routed(keys):
            view.delete(part)

    def get(self, keys: pa.RecordBatch) -> list[dict[str, Any] | None]:
        """Return the row of each key, or None."""
        return self._get(self.views, keys)

    def get_lagging(self, keys: pa.RecordBatch) -> list[dict[str, Any] | None]:
        return self._get(self.lagging, keys)

    def get_all(self, prefixes: pa.RecordBatch, **options: Any) -> list[list[Any]]:
        """Return the rows of each prefix."""
        return self._get_all(self.views, prefixes, **options)

    def get_all_lagging(self, prefixes: pa.RecordBatch) -> list[list[Any]]:
        return self._get_all(self.lagging, prefixes)

    def delete_all(self, prefixes: pa.RecordBatch) -> None:
        for view, part in self.routed(prefixes):
            view.delete_all(part)

    def scan(self) -> list[dict[str, Any]]:
        return [row for view in self.views for row in rows_of(view)]

    def checkpoint(self, *, turned: bool = False) -> int:
        """Checkpoint all subtasks and return the bytes written.

        In `turned` files rows of equal hash lie in the wrong order, as in files from before
        there was one.
        """
        self.epoch += 1
        written = 0
        for index, (table, view) in enumerate(zip(self.tables, self.views, strict=True)):
            checkpointer = table.epoch_checkpointer(
                Epoch(self.epoch), self.subtasks.pop(index, ())
            )
            view.flush(Turning(checkpointer) if turned else checkpointer)  # type: ignore[arg-type]  # stands in
            result = checkpointer.finish(
                CheckpointMessage(Epoch(self.epoch), self.frontier, Epoch(1))
            )
            if result is not None:
                self.subtasks[index] = result[0]
                written += result[1]
            view.checkpointed(self.files(index))
        self._merge()
        return written

    def catch_up(self) -> None:
        """Bring the lagging views to the last checkpoint, as a cached view is brought."""
        for index, view in enumerate(self.lagging):
            wanted = self.files(index)
            missing = derive_missing(view.files, wanted)
            if missing is None:
                view.release()
                self.lagging[index] = self.tables[index].view()
                self.lagging[index].advance(self.frontier)
                missing = wanted
            self.lagging[index].catch_up(missing, wanted)

    def compact(
        self,
        *,
        min_files: int = 2,
        target_file_bytes: int = 128 << 20,
        levels: frozenset[int] | None = None,
    ) -> int:
        """Compact every subtask once, swap the results in, and return how many there were."""
        if self.message is None:
            return 0
        swapped = 0
        for index in range(self.parallelism):
            config = CompactionConfig(
                Epoch(self.epoch + 1),
                self.frontier,
                compact_generations=levels,
                min_compaction_epochs=min_files,
                target_file_bytes=target_file_bytes,
            )
            table = self.open_table(index)
            plan = table.plan_compaction(table.files, config)
            if plan is not None:
                compacted = table.compact_data(plan, config)
                before = self.files(index)
                swapped_in = table.apply_compacted_checkpoint(
                    compacted, {index: self.subtasks[index]}
                )
                self.subtasks[index] = swapped_in[index]
                swapped += self.files(index) != before
                self.views[index].catch_up((), self.files(index))
        self._merge()
        return swapped

    def files(self, index: int = 0) -> tuple[StateFile, ...]:
        return self.subtasks.get(index, ())

    def routed(self, batch: pa.RecordBatch) -> Iterable[tuple[KeyedView, pa.RecordBatch]]:
        if self.parallelism == 1:
            yield self.views[0], batch
            return
        for index, positions in self._positions(batch):
            yield self.views[index], batch.take(pa.array(positions, pa.int64()))

    def _positions(self, batch: pa.RecordBatch) -> Iterable[tuple[int, Any]]:
        names = self.schema.routing_columns or self.schema.key_columns
        keys = [batch.column(name) for name in names]
        owners = owners_of(hash_keys(keys, row_count=batch.num_rows), self.parallelism)
        for index in range(self.parallelism):
            yield index, np.flatnonzero(owners == index)

    def _get(
        self, views: Sequence[KeyedView], keys: pa.RecordBatch
    ) -> list[dict[str, Any] | None]:
        answers: list[dict[str, Any] | None] = [None] * keys.num_rows
        for index, positions in self._positions(keys):
            part = keys
            if self.parallelism > 1:
                part = keys.take(pa.array(positions, pa.int64()))
            answer = views[index].get(part)
            for position, row, found in zip(
                positions, answer.rows.to_pylist(), answer.found, strict=True
            ):
                answers[position] = row if found else None
                assert found or not any(value is not None for value in row.values())
        return answers

    def _get_all(
        self, views: Sequence[KeyedView], prefixes: pa.RecordBatch, **options: Any
    ) -> list[list[Any]]:
        answers: list[list[Any]] = [[] for _ in range(prefixes.num_rows)]
        for index, positions in self._positions(prefixes):
            part = prefixes.take(pa.array(positions, pa.int64()))
            answer = views[index].get_all(part, **options)
            for number, position in enumerate(positions):
                answers[position] = answer.rows_of(number).to_pylist()
        return answers

    def _merge(self) -> None:
        self.message = KeyedTable.merge_checkpoint_metadata(self.subtasks.values()) or None
