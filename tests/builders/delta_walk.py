"""Jobs that write a row per epoch to a Delta table, restored back and forth by tests."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

import penstock as pen
from penstock.core.ids import Epoch
from penstock.runtime.driver.environment import DriverSettings
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.testing import CUT, LocalJob, ScriptedSource

ROUNDS = 20
SHARED = "shared"


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

    def job(self, *steps: str, **settings: Any) -> LocalJob:
        """Return the job with sinks of these names."""
        script: list[Any] = []
        for n in range(ROUNDS):
            keys = [f"k{n}", SHARED] if self._merges else [f"k{n}"]
            counts = n not in self._quiet
            script += [[{"k": k, "n": n, "counts": counts} for k in keys], CUT]
        pipeline = pen.Pipeline("walk")
        rows = pipeline.read("rows", ScriptedSource({"0": script})).filter("counts")
        rows = rows.drop("counts")
        for step in steps or ("out",):
            given = rows.from_upserts(f"{step}-table", key="k") if self._merges else rows
            given.write(step, pen.delta(self.folder))
        return LocalJob(pipeline, store=self.store, settings=DriverSettings(**settings))

    def run(
        self,
        restore: int | None = None,
        *steps: str,
        epochs: int = 1,
        **settings: Any,
    ) -> None:
        """Run some epochs, after a restore if one is asked for."""
        which = None if restore is None else Epochs(Epoch(restore))
        self.job(*steps, **settings).run(epochs=epochs, restore=which)

    def rows(self) -> list[int]:
        """Return the rows of the table."""
        return rows_in(self.folder)

    def vacuum(self) -> None:
        """Remove the files that are not in the newest version."""
        self.table().vacuum(
            retention_hours=0, enforce_retention_duration=False, dry_run=False
        )

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
