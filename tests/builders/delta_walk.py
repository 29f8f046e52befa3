"""Jobs that write a row per epoch to a Delta table, restored back and forth by tests."""

import json
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

import penstock as pen
from penstock.connectors.delta.log import entry_path
from penstock.core.ids import Epoch
from penstock.runtime.driver.environment import DriverSettings
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.local_disk import LocalStore
from penstock.state.storage.memory import MemoryStore
from penstock.testing import CUT, LocalJob, ScriptedSource
from tests.builders.delta_job import TableCalls, sink_on

ROUNDS = 20
SHARED = "shared"
KEEP = "keep"
"""The name of a step that writes elsewhere, so that a job may be without a sink of the table."""


class Steps:
    """A job whose epochs write the rows n = 0, 1, 2, … to a table, as appends or by merges.

    A merge also updates a row that all epochs share, so its file is written anew each time.
    """

    def __init__(
        self, folder: Path, *, merges: bool = False, quiet: Collection[int] = ()
    ) -> None:
        """Write nothing yet; rows that are `quiet` are read and not written."""
        self.folder, self._merges, self._quiet = folder, merges, quiet
        self.store = MemoryStore()

    def job(
        self, *steps: str, calls: TableCalls | None = None, **settings: Any
    ) -> LocalJob:
        """Return the job with sinks of these names."""
        given, output = calls or TableCalls(), LocalStore(self.folder, durable=False)
        spec, registry = sink_on(self.folder, lambda: output, lambda: given)
        script: list[Any] = []
        for n in range(ROUNDS):
            keys = [f"k{n}", SHARED] if self._merges else [f"k{n}"]
            counts = n not in self._quiet
            script += [[{"k": k, "n": n, "counts": counts} for k in keys], CUT]
        pipeline = pen.Pipeline("walk", registry=registry)
        rows = pipeline.read("rows", ScriptedSource({"0": script})).filter("counts")
        rows = rows.drop("counts")
        if self._merges:
            rows = rows.from_upserts("upserts", key="k")
        for step in steps or ("out",):
            rows.write(step, pen.list_sink("elsewhere") if step == KEEP else spec)
        driver = DriverSettings(**settings)
        return LocalJob(pipeline, registry=registry, store=self.store, settings=driver)

    def run(
        self,
        restore: int | None = None,
        *steps: str,
        epochs: int = 1,
        calls: TableCalls | None = None,
        **settings: Any,
    ) -> None:
        """Run some epochs, after a restore if one is asked for."""
        which = None if restore is None else Epochs(Epoch(restore))
        self.job(*steps, calls=calls, **settings).run(epochs=epochs, restore=which)

    def rows(self) -> list[int]:
        """Return the rows of the table."""
        return rows_in(self.folder)

    def vacuum(self) -> None:
        """Remove the files that are not in the newest version."""
        self.table().vacuum(
            retention_hours=0, enforce_retention_duration=False, dry_run=False
        )

    def go_back(self, number: int, *, by_time: bool = False) -> None:
        """Make the table as of a version. If it is told by its time, the log does not name it."""
        if not by_time:
            self.table().restore(number)
            return
        entry = (self.folder / entry_path(number)).read_text()
        told = json.loads(entry.splitlines()[0])["commitInfo"]["timestamp"]
        self.table().restore(datetime.fromtimestamp(told / 1_000, UTC))

    def clean_up(self, number: int) -> None:
        """Remove the log entries before a version, as the log's retention does."""
        self.table().create_checkpoint()
        for each in range(number):
            (self.folder / entry_path(each)).unlink(missing_ok=True)

    def table(self) -> DeltaTable:
        """Return the newest version."""
        return DeltaTable(str(self.folder))


def rows_in(folder: Path) -> list[int]:
    """Return the rows of a table, by their numbers; the one that is shared must fit to them."""
    found: list[Any] = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    rows = sorted(row["n"] for row in found if row["k"] != SHARED)
    shared = [row["n"] for row in found if row["k"] == SHARED]
    assert shared in ([], rows[-1:])
    return rows
