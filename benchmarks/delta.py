"""Delta tables: rows per second written, read and merged, beside Polars and `deltalake`.

All read the same bids. Penstock runs a whole job in one process with one subtask: it reads files,
writes a table epoch by epoch, each with a durable checkpoint, exactly once. The others copy or read
everything in one go, without checkpoints, with as many threads as they like. What is written
is read back and compared.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake

import penstock as pen
from benchmarks.bids import BIDS
from benchmarks.inputs import FILES, QUICK_FILES, ROWS_PER_FILE
from benchmarks.sides import run_side
from benchmarks.suites import Row

_FOLDER = Path(__file__).resolve().parent / "results"


def write_by_penstock(bids: Path, table: Path) -> Row:
    """Copy the bids into a table, with a job."""
    pipeline = pen.Pipeline("write")
    rows = pipeline.read("bids", pen.files(bids / "*.parquet"))
    rows.write("out", pen.delta(table))
    return timed(partial(pipeline.run_in_process, str(table.parent / "checkpoints")))


def write_by_client(bids: Path, table: Path) -> Row:
    """Copy the bids into a table, with the client library."""
    source: Any = ds.dataset(bids, format="parquet").scanner().to_reader()
    return timed(partial(write_deltalake, str(table), source))


def read_by_penstock(table: Path) -> Row:
    """Read a table with a job, and drop its rows."""
    pipeline = pen.Pipeline("read")
    pipeline.read("bids", pen.delta(table)).write("out", pen.blackhole())
    return timed(partial(pipeline.run_in_process, "memory:"))


def read_by_polars(table: Path) -> Row:
    """Read all columns of a table with Polars."""
    return timed(lambda: pl.scan_delta(str(table)).collect(engine="streaming"))


def read_by_client(table: Path) -> Row:
    """Read all columns of a table with the client library."""

    def read() -> None:
        for _ in DeltaTable(str(table)).scan():
            pass

    return timed(read)


def merge_by_penstock(bids: Path, table: Path) -> Row:
    """Keep the number of bids of each auction in a table, with a job that merges changes."""
    pipeline = pen.Pipeline("merge")
    rows = pipeline.read("bids", pen.files(bids / "*.parquet"))
    rows.key_by("auction").aggregate("count", n=pen.count()).write("out", pen.delta(table))
    found = timed(partial(pipeline.run_in_process, str(table.parent / "merged")))
    versions = DeltaTable(str(table)).version()
    return {**found, "merges": versions}


def merge_by_client(bids: Path, table: Path, merges: int) -> Row:
    """Keep the same numbers: Polars counts, and the client library merges as many times."""

    def merge() -> None:
        files = sorted(bids.glob("*.parquet"))
        counts = pl.DataFrame(schema={"auction": pl.Int64, "n": pl.Int64})
        for number in range(merges):
            part = files[
                number * len(files) // merges : (number + 1) * len(files) // merges
            ]
            counting = (
                pl.scan_parquet(part).group_by("auction").agg(n=pl.len().cast(pl.Int64))
            )
            more = counting.collect(engine="streaming")
            changed = pl.concat([counts.join(more, on="auction", how="semi"), more])
            changed = changed.group_by("auction").agg(pl.col("n").sum())
            counts = pl.concat([counts.join(more, on="auction", how="anti"), changed])
            _merge(table, changed)

    return timed(merge)


def _merge(table: Path, changed: pl.DataFrame) -> None:
    rows = changed.to_arrow()
    if not DeltaTable.is_deltatable(str(table)):
        write_deltalake(str(table), rows)
        return
    merging = DeltaTable(str(table)).merge(
        rows, "old.auction = new.auction", source_alias="new", target_alias="old"
    )
    merging.when_matched_update_all().when_not_matched_insert_all().execute()


def timed(act: Callable[[], Any]) -> Row:
    """Run something and say how long it took."""
    started = time.perf_counter()
    act()
    return {"seconds": time.perf_counter() - started}


def run(quick: bool) -> list[Row]:  # noqa: FBT001 (the form of all suites)
    bids = BIDS.folder(quick=quick)
    rows = ROWS_PER_FILE * (QUICK_FILES if quick else FILES)
    _FOLDER.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="delta-", dir=_FOLDER))
    try:
        written = {
            "penstock": run_side(write_by_penstock, bids, folder / "own"),
            "deltalake": run_side(write_by_client, bids, folder / "peer"),
        }
        own, peer = (DeltaTable(str(folder / name)) for name in ("own", "peer"))
        sums = [
            pl.scan_delta(table).select(pl.len(), pl.col("price").sum()).collect()
            for table in (own, peer)
        ]
        read = {
            "penstock": run_side(read_by_penstock, folder / "peer"),
            "polars": run_side(read_by_polars, folder / "peer"),
            "deltalake": run_side(read_by_client, folder / "peer"),
        }
        merged = run_side(merge_by_penstock, bids, folder / "counts")
        merges = merged["merges"]
        merged_by = {
            "penstock": merged,
            "deltalake": run_side(merge_by_client, bids, folder / "peer-counts", merges),
        }
        counted = [
            pl.scan_delta(str(folder / name)).select(pl.len(), pl.col("n").sum()).collect()
            for name in ("counts", "peer-counts")
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    agrees = sums[0].equals(sums[1]) and sums[0].item(0, 0) == rows
    return [
        {
            **compared("written", rows, written),
            "table_versions": own.version(),
            "ok": agrees,
        },
        compared("read", rows, read),
        {
            **compared("counts per auction, merged", rows, merged_by),
            "keys": counted[0].item(0, 0),
            "merges": merges,
            "ok": counted[0].equals(counted[1]) and counted[0].item(0, 1) == rows,
        },
    ]


def compared(name: str, rows: int, sides: dict[str, Row]) -> Row:
    """Return the paces of all sides, and Penstock's beside the fastest other."""
    paces = {side: rows / row["seconds"] for side, row in sides.items()}
    best = max(pace for side, pace in paces.items() if side != "penstock")
    figures: Row = {"name": name, "rows": rows}
    for side, row in sides.items():
        figures[f"{side}_rows_per_second"] = round(paces[side])
        figures[f"{side}_peak_memory_bytes"] = row["peak_memory_bytes"]
    return {**figures, "ratio": round(paces["penstock"] / best, 3)}
