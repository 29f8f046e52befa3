"""A stream with checkpoints against a batch: the same query by Penstock and by DuckDB.

DuckDB reads all files at once with two threads and writes the result. Penstock reads them
in epochs of its own choice, each with a durable checkpoint, exactly once.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import duckdb

from benchmarks.bids import BIDS
from benchmarks.inputs import FILES, QUICK_FILES, ROWS_PER_FILE
from benchmarks.penstock_side import Build, run_pipeline
from benchmarks.sides import run_side, run_warm
from benchmarks.structured_streaming import CORES
from benchmarks.suites import Row

ROWS_PER_EPOCH = 4_000_000
QUICK_ROWS_PER_EPOCH = 1_000_000
_FOLDER = Path(__file__).resolve().parent / "results"


def compare_with_batch(
    name: str,
    build: Build,
    query: str,
    *,
    columns: Sequence[str],
    agree: Callable[[Path, Path], str | None],
    goal: float,
    quick: bool,
) -> Row:
    """Run Penstock and DuckDB over the bids; `query` has `{bids}` where it reads their folder."""
    bids = BIDS.folder(quick=quick)
    rows = ROWS_PER_FILE * (QUICK_FILES if quick else FILES)
    folder = Path(
        tempfile.mkdtemp(prefix=f"{name.split(',', maxsplit=1)[0]}-", dir=_FOLDER)
    )
    rows_per_epoch = QUICK_ROWS_PER_EPOCH if quick else ROWS_PER_EPOCH
    try:
        pipeline = partial(
            run_pipeline,
            build,
            rows_per_epoch=rows_per_epoch,
            settled_after=1,
            columns=columns,
        )
        own = run_side(
            run_warm, pipeline, BIDS.warm_up_folder(), bids, folder / "own", quick=quick
        )
        out = folder / "peer.parquet"
        peer = run_side(run_batch, query.format(bids=bids), out)
        problem = agree(folder / "own" / "out", out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    peer_pace = rows / peer["seconds"]
    ratio = own["rows_per_second"] / peer_pace
    return {
        "name": name,
        "rows": rows,
        "rows_per_epoch": rows_per_epoch,
        "penstock_rows": own["rows"],
        "penstock_seconds": own["seconds"],
        "penstock_rows_per_second": own["rows_per_second"],
        "penstock_seconds_per_epoch": own["seconds_per_epoch"],
        "penstock_peak_memory_bytes": own["peak_memory_bytes"],
        **({"penstock_profile": own["profile"]} if "profile" in own else {}),
        "bytes_checkpointed": own["bytes_checkpointed"],
        "duckdb_seconds": round(peer["seconds"], 3),
        "duckdb_rows_per_second": round(peer_pace),
        "duckdb_peak_memory_bytes": peer["peak_memory_bytes"],
        "ratio": round(ratio, 3),
        "agrees": problem is None,
        "differences": problem,
        "target": f"at least {goal} of DuckDB's pace",
        "ok": ratio >= goal and problem is None,
    }


def run_batch(query: str, out: Path) -> Row:
    """Run the query as one batch, the second time, and write what comes out."""
    with duckdb.connect(config={"threads": CORES}) as database:
        database.execute("SET TimeZone = 'UTC'")
        # A progress bar would land among the results.
        database.execute("SET enable_progress_bar = false")
        copy = f"COPY ({query}) TO '{out}' (FORMAT parquet)"
        database.execute(copy)
        started = time.perf_counter()
        database.execute(copy)
        return {"seconds": time.perf_counter() - started}
