"""A pipeline in a process of its own, to be killed: counts per key, staged and committed to files.

    python killed_program.py FOLDER PARALLELISM

Emits each key's running count, so that a lost or doubled row changes every later line.
"""

import json
import sys
from pathlib import Path

import polars as pl
import pyarrow as pa

import penstock as pen
from penstock.api.in_process import run_in_process
from penstock.operators import ArrowOperator, global_table, keyed_table
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions

ROWS = 20_000
KEYS = 50
COUNTS = pa.schema([("key", pa.int64()), ("count", pa.int64())])


class RunningCount(ArrowOperator):
    """Counts rows per key and emits the new counts."""

    def name(self) -> str:
        return "running-count"

    def output_schema(self, inputs):  # type: ignore[no-untyped-def]
        return pen.StreamSchema(COUNTS)

    def tables(self):  # type: ignore[no-untyped-def]
        return [keyed_table("counts", COUNTS, key_columns=["key"])]

    def process_batch(self, batch, ctx, collector):  # type: ignore[no-untyped-def]
        counts = ctx.get_keyed_state("counts")
        frame = pl.DataFrame(pl.from_arrow(batch))
        new = frame.group_by("key", maintain_order=True).agg(count=pl.len().cast(pl.Int64))
        known = pl.DataFrame(pl.from_arrow(counts.get(new).rows))["count"].fill_null(0)
        changed = new.with_columns(count=pl.col("count") + known)
        counts.put(changed)
        collector.collect(changed)


class LinesFolder(ArrowOperator):
    """One file of JSON lines per subtask and epoch, visible once the epoch is committed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lines: list[str] = []

    def name(self) -> str:
        return "lines-folder"

    def output_schema(self, inputs):  # type: ignore[no-untyped-def]
        return None

    def tables(self):  # type: ignore[no-untyped-def]
        return [global_table("staged", uses_two_phase_commit=True)]

    def process_batch(self, batch, ctx, collector):  # type: ignore[no-untyped-def]
        self.lines += [json.dumps(row) for row in batch.to_pylist()]

    def handle_checkpoint(self, barrier, ctx, collector):  # type: ignore[no-untyped-def]
        if self.lines:
            name = f"{barrier.epoch:010}-{ctx.task.subtask.index}.jsonl"
            text = "".join(f"{line}\n" for line in self.lines)
            # The name says the epoch, not the attempt: an attempt that counts wrote it last.
            (Path(self.folder) / f".{name}").write_text(text)
            ctx.insert_committing_data("staged", name.encode())
        self.lines = []

    def handle_commit(self, epoch, commit_data, ctx):  # type: ignore[no-untyped-def]
        for data in commit_data["staged"].values():
            staged = Path(self.folder) / f".{data.decode()}"
            if staged.exists():
                staged.rename(staged.with_name(data.decode()))


def main(folder: str, parallelism: int) -> None:
    out = Path(folder) / "out"
    out.mkdir(parents=True, exist_ok=True)
    pipeline = pen.Pipeline("counts", parallelism=parallelism)
    numbers = pen.impulse(count=ROWS, splits=3, step="1ms")
    (
        pipeline.read("numbers", numbers)
        .with_columns(key=pl.col("counter") % KEYS)
        .key_by("key")
        .process("count", RunningCount())
        .write("out", LinesFolder(str(out)))
    )
    run_in_process(
        pipeline.graph(),
        pipeline.registry,
        RunOptions(
            checkpoint=str(Path(folder) / "checkpoints"),
            settings=DriverSettings(
                budget=SourceBudget(rows=400),
                adapts_budget=False,
                collect_every=2,
                keep_epochs=3,
            ),
        ),
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
