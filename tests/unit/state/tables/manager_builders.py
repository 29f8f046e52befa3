"""A subtask's tables for tests: one of each kind, and writes to all of them."""

from typing import Any

import pyarrow as pa

from penstock.core.ids import Epoch
from penstock.state.proto import state_pb2
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.specs import global_table, keyed_table, time_keyed_table
from penstock.state.tables.table import Frontier
from penstock.state.tables.table_manager import SubtaskCheckpoint, TableManager
from penstock.testing import FaultyStore
from tests.builders.shop import owner_of_key
from tests.unit.state.tables.table_builders import an_environment

COLUMNS: dict[str, Any] = {
    "key": pa.string(),
    "value": pa.int64(),
    "time": pa.timestamp("us"),
}
ROWS = pa.schema(COLUMNS)
COUNTS = global_table("counts", str, int, uses_two_phase_commit=True)
PLAIN = global_table("plain", str, int)
TOTALS = keyed_table("totals", ROWS, key_columns=["key"])
PANES = time_keyed_table("panes", ROWS, time_column="time", key_columns=["key"])
SPECS = [COUNTS, PLAIN, TOTALS, PANES]
Restored = dict[int, state_pb2.OperatorCheckpointMetadata]


def some_rows(*keys: str, value: int = 1) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "key": list(keys),
        "value": [value] * len(keys),
        "time": [0] * len(keys),
    }
    return pa.RecordBatch.from_pydict(columns, schema=ROWS)


def a_manager(
    store: MemoryStore | FaultyStore | None = None,
    restored: Restored | None = None,
    *,
    index: int = 0,
    parallelism: int = 1,
    attempt: int = 1,
) -> TableManager:
    environment = an_environment(
        store, index=index, parallelism=parallelism, attempt=attempt
    )
    manager = TableManager.load(environment, SPECS, restored or {})
    manager.begin_epoch(Frontier(None, 0))
    return manager


def checkpoint(manager: TableManager, epoch: int) -> SubtaskCheckpoint:
    return manager.checkpoint(Epoch(epoch), Epoch(1), None)


def write_everywhere(manager: TableManager, key: str = "a", value: int = 1) -> None:
    manager.get_global_keyed_state("counts").insert(key, value)
    manager.get_keyed_state("totals").put(some_rows(key, value=value))
    manager.get_time_keyed_state("panes").insert(some_rows(key, value=value), None)


def contents(manager: TableManager) -> tuple[dict[str, int], list[str], list[str]]:
    totals: list[Any] = [
        key
        for batch in manager.get_keyed_state("totals").scan()
        for key in batch.column("key").to_pylist()
    ]
    panes: list[Any] = (
        manager.get_time_keyed_state("panes").rows().column("key").to_pylist()
    )
    return dict(manager.get_global_keyed_state("counts").items()), totals, panes


def two_subtasks(store: MemoryStore) -> Restored:
    """Two subtasks that wrote one key each: the metadata of both."""
    restored: Restored = {}
    for index in range(2):
        manager = a_manager(store, index=index, parallelism=2, attempt=index + 1)
        key = next(k for k in map(str, range(99)) if owner_of_key(k, 2) == index)
        write_everywhere(manager, key, index)
        restored[index] = checkpoint(manager, 1).metadata
    return restored
