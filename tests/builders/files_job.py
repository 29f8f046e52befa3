"""A job that writes files, its output store in the test's hands, and what must always hold."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import penstock as ps
from penstock.catalog import default_registry
from penstock.connectors.files.commit import committed_files, read_committed
from penstock.connectors.files.connector import files
from penstock.connectors.files.sink import FilesSink, FilesSinkConfig
from penstock.core.ids import Epoch
from penstock.graph.logical import OperatorSpec
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.testing import (
    CUT,
    Call,
    Fault,
    FaultMode,
    FaultyStore,
    LocalJob,
    ScriptedSource,
)
from tests.builders.files_output import KIND

ROUNDS = 3
"""How many epochs have rows."""


def rows_of(split: int, turn: int) -> list[dict[str, Any]]:
    """Return what a split gives in one epoch; all its numbers tell the epoch."""
    start = turn * 100 + split * 10
    return [{"n": n, "day": f"d{n % 2}"} for n in range(start, start + 4)]


def whole_epochs(count: int) -> list[int]:
    """Return the numbers of the first epochs."""
    return sorted(
        row["n"]
        for turn in range(count)
        for split in (0, 1)
        for row in rows_of(split, turn)
    )


@dataclass
class FilesJob:
    """A job of two splits and a files sink, run as often as wanted."""

    options: dict[str, Any] = field(default_factory=dict)
    inner: ObjectStore = field(default_factory=MemoryStore)
    """The output as it really is."""

    def __post_init__(self) -> None:
        self.output = FaultyStore(self.inner)
        registry = default_registry(load_plugins=False)
        registry.add(
            KIND,
            FilesSinkConfig,
            lambda config: FilesSink(config, lambda _url: self.output),
        )
        script = {
            str(split): [
                step for turn in range(ROUNDS) for step in (rows_of(split, turn), CUT)
            ]
            for split in (0, 1)
        }
        pipeline = ps.Pipeline("files", registry=registry)
        spec = files("memory:unused", **self.options).sink_spec()
        pipeline.read("rows", ScriptedSource(script)).write(
            "out", OperatorSpec(KIND, spec.config)
        )
        self.job = LocalJob(pipeline, registry=registry)
        self.seen = 0
        self.restored: int | None = None
        """The oldest epoch that was ever restored: from there on readers may see fewer rows."""

    def run(
        self,
        *checkpoint_faults: Fault,
        output_faults: Sequence[Fault] = (),
        parallelism: int = 2,
        restore: int | None = None,
    ) -> ps.JobStatus:
        """Run the job; before every call to the output a reader looks at it."""
        if restore is not None:
            self.restored = min(restore, self.restored or restore)
        watch = Fault(FaultMode.DELAY, at=None, hook=self.look)
        self.output = FaultyStore(self.inner, *output_faults, watch)
        which = None if restore is None else Epochs(Epoch(restore))
        return self.job.run(*checkpoint_faults, parallelism=parallelism, restore=which)

    def look(self, call: Call | None = None) -> None:
        """Check that a reader sees whole epochs, each once, and never fewer than before."""
        del call
        numbers = sorted(row["n"] for row in read_committed(self.inner).to_pylist())
        epochs = len({file.epoch for file in committed_files(self.inner)})
        assert numbers == whole_epochs(epochs)
        assert epochs >= (self.seen if self.restored is None else self.restored)
        self.seen = epochs

    def check(self) -> None:
        """Check that every row is there once, and that nothing but abandoned files is left over."""
        self.look()
        assert self.seen == ROUNDS
        listed = {file.path for file in committed_files(self.inner)}
        found = {info.path for info in self.inner.list("")}
        parts = {path for path in found if not path.startswith("_")}
        assert parts == listed if self.restored is None else parts >= listed
