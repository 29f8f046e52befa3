"""A job that writes files, with its output store in the test's hands, and files to read.

`FilesJob` checks after every call to the store what a reader must always see. `sink_on` makes
a files sink for a harness, `write_file` a file for the files source.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import penstock as pen
from penstock.catalog import default_registry
from penstock.connectors.files.committed import committed_files, read_committed
from penstock.connectors.files.compressed import codec_of
from penstock.connectors.files.connector import files
from penstock.connectors.files.sink import FilesSink, FilesSinkConfig
from penstock.core.clock import new_token
from penstock.core.ids import Epoch
from penstock.graph.logical import OperatorSpec
from penstock.operators.registry import Registry
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
from tests.builders.graphs import schema_of

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
        spec, registry = sink_on(lambda _url: self.output, **self.options)
        script = {
            str(split): [
                step for turn in range(ROUNDS) for step in (rows_of(split, turn), CUT)
            ]
            for split in (0, 1)
        }
        pipeline = pen.Pipeline("files", registry=registry)
        pipeline.read("rows", ScriptedSource(script)).write("out", spec)
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
    ) -> pen.JobStatus:
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
        # The last epoch has no rows.
        kept = self.seen if self.restored is None else min(self.restored, ROUNDS)
        assert epochs >= kept
        self.seen = epochs

    def check(self) -> None:
        """Check that every row is there once, and that nothing but abandoned files is left over."""
        self.look()
        assert self.seen == ROUNDS
        listed = {file.path for file in committed_files(self.inner)}
        found = {info.path for info in self.inner.list("")}
        parts = {path for path in found if not path.startswith("_")}
        assert parts == listed if self.restored is None else parts >= listed


def an_output() -> str:
    """Return the URL of an empty output that nobody else writes to."""
    return f"memory:out-{new_token()}"


def sink_on(
    open_output: Callable[[str], ObjectStore], **options: Any
) -> tuple[OperatorSpec, Registry]:
    """Return a files sink that writes to a store of the test, and the registry that knows it."""
    kind = "watched_files_sink"
    registry = default_registry(load_plugins=False)
    registry.add(kind, FilesSinkConfig, lambda config: FilesSink(config, open_output))
    spec = files("memory:unused", **options).sink_spec()
    return OperatorSpec(kind, spec.config), registry


def paths_in(store: ObjectStore, prefix: str = "") -> list[str]:
    """Return the names of all objects."""
    return [info.path for info in store.list(prefix)]


def parts_in(store: ObjectStore) -> list[str]:
    """Return the final names, listed or not."""
    return [path for path in paths_in(store) if not path.startswith("_")]


def as_list_of_version_1(data: bytes) -> bytes:
    """Return a list of committed files as it was before lists had a checksum."""
    members = json.loads(data)
    del members["checksum"]
    return json.dumps(members | {"version": 1}, indent=1).encode()


def numbers(*values: int) -> pa.Table:
    """Return rows of one column."""
    return pa.table({"n": pa.array(values, pa.int64())})


Rows = Sequence[Mapping[str, Any]]

SCHEMA = schema_of(n=pa.int64(), s=pa.string())


def some_rows(start: int, stop: int) -> list[dict[str, Any]]:
    """Return rows numbered from `start` to before `stop`."""
    return [{"n": n, "s": f"row {n}"} for n in range(start, stop)]


def compress(ending: str, data: bytes) -> bytes:
    """Return data compressed as a file's ending says, in two frames, as appending leaves it."""
    codec: Any = codec_of(f"f.{ending}")
    if codec is None:
        return data
    out = b""
    for part in (data[:20], data[20:]):
        frame = pa.BufferOutputStream()
        with pa.CompressedOutputStream(frame, codec) as stream:
            stream.write(part)
        out += frame.getvalue().to_pybytes()
    return out


def to_bytes(format_: str, rows: Rows, *, row_group_size: int = 7) -> bytes:
    """Return a file of the columns n and s."""
    if format_ == "parquet":
        out = pa.BufferOutputStream()
        table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
        pq.write_table(table, out, row_group_size=row_group_size)
        return out.getvalue().to_pybytes()
    if format_ == "jsonl":
        return "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    text = io.StringIO()
    writer = csv.DictWriter(
        text, SCHEMA.names, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC
    )
    text.write("n,s\n")
    writer.writerows(rows)
    return text.getvalue().encode()


def write_file(path: Path, rows: Rows, *, row_group_size: int = 7) -> None:
    """Write a file of the format that its ending names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    format_ = path.suffix.removeprefix(".")
    path.write_bytes(to_bytes(format_, rows, row_group_size=row_group_size))
