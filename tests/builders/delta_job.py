"""A job that writes a Delta table, with every call to its store and its table in the test's hands.

`FaultyTables` makes calls of the client of Delta tables fail before they are made, after, or with
their answer lost, and processes die there. `DeltaJob` is a job of two splits and a Delta sink; what
a reader of the table sees must always be whole epochs, each once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from typing_extensions import override

import penstock as pen
from penstock.catalog import default_registry
from penstock.connectors.delta.actions import AddedFile, RemovedFile
from penstock.connectors.delta.connector import delta
from penstock.connectors.delta.marks import Mark
from penstock.connectors.delta.sink import DeltaSink, DeltaSinkConfig
from penstock.connectors.delta.table import (
    CommitOutcome,
    DeltaTables,
    MergePlan,
    OpenTable,
)
from penstock.core.ids import Epoch
from penstock.errors import ExternalError, UnknownOutcomeError
from penstock.graph.logical import OperatorSpec
from penstock.operators.registry import Registry
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.local_disk import LocalStore
from penstock.state.storage.object_store import ObjectStore
from penstock.testing import (
    CUT,
    CrashError,
    Fault,
    FaultMode,
    FaultyStore,
    LocalJob,
    ScriptedSource,
)
from tests.builders.files_job import ROUNDS, rows_of

TABLE_FAULTS = (
    FaultMode.FAIL_BEFORE,
    FaultMode.FAIL_AFTER,
    FaultMode.CRASH_BEFORE,
    FaultMode.CRASH_AFTER,
)


class TableCalls:
    """Counts the calls to a table in one process, and lets one of them go wrong."""

    def __init__(self, mode: FaultMode | None = None, at: int = 0) -> None:
        self.names: list[str] = []
        self.hook: Callable[[str], None] | None = None
        """Called before each call: what other writers do meanwhile."""
        self._mode, self._at = mode, at
        self._is_dead = False

    def call(self, name: str, act: Callable[[], Any]) -> Any:
        """Make a call, or what the fault makes of it."""
        if self._is_dead:
            raise CrashError(name)
        self.names.append(name)
        if self.hook is not None:
            self.hook(name)
        if len(self.names) != self._at:
            return act()
        is_after = self._mode in (FaultMode.FAIL_AFTER, FaultMode.CRASH_AFTER)
        if is_after:
            act()
        if self._mode in (FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER):
            self._is_dead = True
            raise CrashError(name)
        if name == "open":
            raise ExternalError("the table could not be opened, by design of the test")
        raise UnknownOutcomeError("no answer, by design of the test")

    def read_ahead(self, rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """Return what is merged next: the client reads it in the call."""
        return rows


class FaultyTables(DeltaTables):
    """A table whose calls go through `TableCalls`."""

    def __init__(self, calls: TableCalls, url: str, options: Mapping[str, Any]) -> None:
        super().__init__(url, options)
        self._calls = calls

    @override
    def open(self, version: int | str | None = None) -> OpenTable | None:
        found = self._calls.call("open", lambda: super(FaultyTables, self).open(version))
        return None if found is None else FaultyOpenTable(self._calls, found)

    @override
    def create(
        self,
        schema: pa.Schema,
        partition_by: Sequence[str],
        properties: Mapping[str, str | None],
    ) -> None:
        create = super().create
        self._calls.call("create", lambda: create(schema, partition_by, properties))


class FaultyOpenTable(OpenTable):
    """A version of such a table."""

    def __init__(self, calls: TableCalls, table: OpenTable) -> None:
        super().__init__(table.url, table._table)
        self._calls = calls

    @override
    def commit(
        self,
        added: Iterable[AddedFile],
        removed: Iterable[RemovedFile],
        marks: Sequence[Mark],
    ) -> CommitOutcome:
        commit = super().commit
        outcome: CommitOutcome = self._calls.call(
            "commit", lambda: commit(added, removed, marks)
        )
        return outcome

    @override
    def merge(
        self, rows: pa.RecordBatchReader, plan: MergePlan, marks: Sequence[Mark]
    ) -> CommitOutcome:
        merge, given = super().merge, self._calls.read_ahead(rows)
        outcome: CommitOutcome = self._calls.call(
            "merge", lambda: merge(given, plan, marks)
        )
        return outcome

    @override
    def add_columns(self, fields: Sequence[Any]) -> None:
        add = super().add_columns
        self._calls.call("add_columns", lambda: add(fields))


@dataclass
class DeltaJob:
    """A job of two splits that appends to a table or merges into it, run as often as wanted."""

    folder: Path
    options: dict[str, Any] = field(default_factory=dict)
    name: str = "delta"
    merges: bool = False
    """Write the number of rows of each day, which changes, instead of the rows."""

    def __post_init__(self) -> None:
        self.inner = LocalStore(self.folder, durable=False)
        self.output: ObjectStore = self.inner
        self.calls = TableCalls()
        spec, registry = sink_on(
            self.folder, lambda: self.output, lambda: self.calls, **self.options
        )
        script = {
            str(split): [
                step for turn in range(ROUNDS) for step in (rows_of(split, turn), CUT)
            ]
            for split in (0, 1)
        }
        pipeline = pen.Pipeline(self.name, registry=registry)
        rows = pipeline.read("rows", ScriptedSource(script))
        if self.merges:
            rows.key_by("day").aggregate("count", n=pen.count()).write("out", spec)
        else:
            rows.write("out", spec)
        self.job = LocalJob(pipeline, registry=registry)

    def run(
        self,
        *checkpoint_faults: Fault,
        output_faults: Sequence[Fault] = (),
        calls: TableCalls | None = None,
        parallelism: int = 2,
        restore: int | None = None,
    ) -> pen.JobStatus:
        """Run the job; what a reader sees is looked at before every call to the table."""
        self.output = FaultyStore(self.inner, *output_faults)
        self.calls = calls or TableCalls()
        which = None if restore is None else Epochs(Epoch(restore))
        return self.job.run(*checkpoint_faults, parallelism=parallelism, restore=which)

    def numbers(self) -> list[int]:
        """Return the rows of the table, by their numbers."""
        return numbers_in(self.folder)


def days_in(folder: Path) -> dict[str, int]:
    """Return the number of rows of each day that a table holds; none without a table."""
    if not DeltaTable.is_deltatable(str(folder)):
        return {}
    found: list[Any] = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    days = {row["day"]: row["n"] for row in found}
    assert len(days) == len(found)
    return days


def whole_days(count: int) -> dict[str, int]:
    """Return the number of rows of each day after so many epochs."""
    return {"d0": 4 * count, "d1": 4 * count} if count else {}


def numbers_in(folder: Path) -> list[int]:
    """Return the rows of a table, by their numbers; none without a table."""
    if not DeltaTable.is_deltatable(str(folder)):
        return []
    found: list[Any] = (
        DeltaTable(str(folder)).to_pyarrow_table(columns=["n"])["n"].to_pylist()
    )
    return sorted(found)


def sink_on(
    folder: Path,
    output: Callable[[], ObjectStore],
    calls: Callable[[], TableCalls],
    **options: Any,
) -> tuple[OperatorSpec, Registry]:
    """Return a Delta sink that writes to a store of the test, and the registry that knows it."""
    kind = "watched_delta_sink"
    registry = default_registry(load_plugins=False)

    def build(config: DeltaSinkConfig) -> DeltaSink:
        return DeltaSink(
            config,
            lambda _url, **_options: output(),
            lambda url, options: FaultyTables(calls(), url, options),
        )

    registry.add(kind, DeltaSinkConfig, build)
    spec = delta(folder, **options).sink_spec()
    return OperatorSpec(kind, spec.config), registry
