"""How close a stream with checkpoints comes to a batch: the tumbling query against DuckDB.

DuckDB reads all files at once with two threads and writes the result. Penstock reads them
in epochs of its own choice, each with a durable checkpoint, exactly once.
"""

import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

import duckdb

from benchmarks.bids import (
    FILES,
    QUICK_FILES,
    ROWS_PER_FILE,
    bids_folder,
    warm_up_folder,
)
from benchmarks.comparison import difference
from benchmarks.penstock_side import run_pipeline
from benchmarks.sides import run_side, run_warm
from benchmarks.structured_streaming import CORES
from benchmarks.suites import Row
from benchmarks.tumbling import build

GOAL = 0.5
ROWS_PER_EPOCH = 4_000_000
QUICK_ROWS_PER_EPOCH = 1_000_000
_QUERY = """
    SELECT auction, time_bucket(INTERVAL 10 SECOND, ts) + INTERVAL 10 SECOND AS window_end,
           count(*) AS bids, sum(price)::BIGINT AS total, max(price) AS top
    FROM read_parquet('{bids}/*.parquet') GROUP BY 1, 2
"""
_FOLDER = Path(__file__).resolve().parent / "results"


def run(*, quick: bool) -> Row:
    bids = bids_folder(quick=quick)
    rows = ROWS_PER_FILE * (QUICK_FILES if quick else FILES)
    folder = Path(tempfile.mkdtemp(prefix="limit-", dir=_FOLDER))
    rows_per_epoch = QUICK_ROWS_PER_EPOCH if quick else ROWS_PER_EPOCH
    try:
        pipeline = partial(
            run_pipeline,
            build,
            rows_per_epoch=rows_per_epoch,
            settled_after=1,
            columns=("auction", "price", "ts"),
        )
        own = run_side(
            run_warm, pipeline, warm_up_folder(), bids, folder / "own", quick=quick
        )
        peer = run_side(run_batch, bids, folder / "peer.parquet")
        results = "auction, window_end, bids, total, top"
        problem = difference(
            f"SELECT {results} FROM read_parquet('{folder}/own/out/**/*.parquet')",
            f"SELECT {results} FROM read_parquet('{folder}/peer.parquet')",
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    peer_pace = rows / peer["seconds"]
    ratio = own["rows_per_second"] / peer_pace
    return {
        "name": "tumbling, of a batch's pace",
        "rows": rows,
        "rows_per_epoch": rows_per_epoch,
        "penstock_rows": own["rows"],
        "penstock_seconds": own["seconds"],
        "penstock_rows_per_second": own["rows_per_second"],
        "penstock_seconds_per_epoch": own["seconds_per_epoch"],
        "penstock_peak_memory_bytes": own["peak_memory_bytes"],
        "bytes_checkpointed": own["bytes_checkpointed"],
        "duckdb_seconds": round(peer["seconds"], 3),
        "duckdb_rows_per_second": round(peer_pace),
        "duckdb_peak_memory_bytes": peer["peak_memory_bytes"],
        "ratio": round(ratio, 3),
        "agrees": problem is None,
        "differences": problem,
        "target": f"at least {GOAL} of DuckDB's pace",
        "ok": ratio >= GOAL and problem is None,
    }


def run_batch(bids: Path, out: Path) -> Row:
    """Run the query as one batch, the second time, and write what comes out."""
    with duckdb.connect(config={"threads": CORES}) as database:
        database.execute("SET TimeZone = 'UTC'")
        # A progress bar would land among the results.
        database.execute("SET enable_progress_bar = false")
        copy = f"COPY ({_QUERY.format(bids=bids)}) TO '{out}' (FORMAT parquet)"
        database.execute(copy)
        started = time.perf_counter()
        database.execute(copy)
        return {"seconds": time.perf_counter() - started}
