"""Builders of table environments for tests."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.core.ids import Epoch, Generation, JobId, OperatorId, Subtask, TaskInfo, Token
from penstock.state.files.cache import FileCache
from penstock.state.proto import state_pb2
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.operator_tables import plan_compactions, run_compactions
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import (
    CheckpointMessage,
    CompactionConfig,
    Frontier,
    TableEnvironment,
)

NO_CACHE = FileCache(Path("/nonexistent"), 0)
"""A cache with no room: everything is read from the store."""


def an_environment(
    store: ObjectStore | None = None,
    *,
    index: int = 0,
    parallelism: int = 1,
    cache: FileCache = NO_CACHE,
    attempt: int = 1,
    generation: int = 1,
) -> TableEnvironment:
    return TableEnvironment(
        task=TaskInfo(JobId("job"), OperatorId("operator"), Subtask(index, parallelism)),
        generation=Generation(generation),
        token=Token(f"{attempt:032x}"),
        store=MemoryStore() if store is None else store,
        cache=cache,
    )


def a_barrier(epoch: int, watermark_micros: int | None = None) -> CheckpointMessage:
    return CheckpointMessage(Epoch(epoch), Frontier(watermark_micros), Epoch(1))


def a_compaction(
    *,
    epoch: int = 1_000,
    watermark_micros: int | None = None,
    min_compaction_epochs: int = 4,
    compact_generations: frozenset[int] | None = None,
    target_file_bytes: int = 128 << 20,
) -> CompactionConfig:
    return CompactionConfig(
        epoch=Epoch(epoch),
        frontier=Frontier(watermark_micros),
        compact_generations=compact_generations,
        min_compaction_epochs=min_compaction_epochs,
        target_file_bytes=target_file_bytes,
    )


def compact_subtask(
    specs: Iterable[TableSpec],
    environment: TableEnvironment,
    config: CompactionConfig,
    metadata: Mapping[int, state_pb2.OperatorCheckpointMetadata],
) -> dict[str, state_pb2.TableCheckpointMetadata]:
    """Plan and run the compactions that are due for one subtask; the new files by table."""
    planned = plan_compactions(specs, environment.task, config, metadata)
    return run_compactions(planned, environment, config)
