"""A user's own operator: running count and sum by auction, against transformWithState.

Penstock's operator sees batches and keeps a `KeyedTable`; the peers see one key at a time,
as pandas frames or as rows, and keep a ValueState in RocksDB. The peers get a million rows at
most: they need minutes for those.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
)

import penstock as pen
from benchmarks.bids import BIDS
from benchmarks.comparison import difference
from benchmarks.penstock_side import default_rows_per_epoch, run_pipeline
from benchmarks.sides import run_side, run_warm
from benchmarks.structured_streaming import (
    QUICK_SETTLED_AFTER,
    ROCKSDB,
    open_peer,
    read_files,
)
from benchmarks.suites import Row
from penstock.operators import ArrowCollector, ArrowOperator, OperatorContext, keyed_table

GOAL_PANDAS, GOAL_ROWS = 300, 100
PEER_ROWS, QUICK_PEER_ROWS = 500_000, 50_000
"""Per trigger; there are two, and the second is timed."""
TOTALS = pa.schema([("auction", pa.int64()), ("bids", pa.int64()), ("total", pa.int64())])
_OUTPUT = "auction LONG, bids LONG, total LONG"
_STATE = "bids LONG, total LONG"
_FOLDER = Path(__file__).resolve().parent / "results"


class RunningTotals(ArrowOperator):
    """Keeps count and sum by auction and emits those that changed."""

    def name(self) -> str:
        return "running-totals"

    def output_schema(self, inputs: Any) -> pen.StreamSchema:
        return pen.StreamSchema(TOTALS)

    def tables(self) -> Any:
        return [keyed_table("totals", TOTALS, key_columns=["auction"])]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        totals = ctx.get_keyed_state("totals")
        new = (
            pl.DataFrame(batch)
            .group_by("auction")
            .agg(bids=pl.len().cast(pl.Int64), total=pl.col("price").sum())
        )
        known = pl.DataFrame(totals.get(new).rows)
        changed = new.with_columns(
            bids=pl.col("bids") + known["bids"].fill_null(0),
            total=pl.col("total") + known["total"].fill_null(0),
        )
        totals.put(changed)
        collector.collect(changed)


def build(bids: pen.Stream) -> pen.Stream:
    return bids.key_by("auction").process("totals", RunningTotals())


class _Totals(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("totals", _STATE)

    def _add(self, bids: int, total: int) -> tuple[int, int]:
        if self._state.exists():
            known = self._state.get()
            assert known is not None
            bids, total = bids + known[0], total + known[1]
        self._state.update((bids, total))
        return bids, total

    def close(self) -> None:
        pass


class PandasTotals(_Totals):
    """The peer over pandas frames."""

    # Spark names this method and its parameters.
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        import pandas as pd  # type: ignore[import-untyped]

        bids = total = 0
        for frame in rows:
            bids += len(frame)
            total += int(frame["price"].sum())
        bids, total = self._add(bids, total)
        yield pd.DataFrame({"auction": [key[0]], "bids": [bids], "total": [total]})


class RowTotals(_Totals):
    """The peer over rows."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        bids = total = 0
        for row in rows:
            bids += 1
            total += row["price"]
        bids, total = self._add(bids, total)
        yield SparkRow(auction=key[0], bids=bids, total=total)


def run(*, quick: bool) -> Row:
    folder = Path(tempfile.mkdtemp(prefix="custom-", dir=_FOLDER))
    bids = BIDS.folder(quick=quick)
    few = folder / "few"
    peer_rows = QUICK_PEER_ROWS if quick else PEER_ROWS
    _write_few(bids, few, peer_rows)
    try:
        pipeline = partial(
            run_pipeline,
            build,
            rows_per_epoch=default_rows_per_epoch(),
            settled_after=QUICK_SETTLED_AFTER,
            columns=("auction", "price", "ts"),
        )
        own = run_side(
            run_warm, pipeline, BIDS.warm_up_folder(), bids, folder / "own", quick=quick
        )
        run_side(
            run_pipeline,
            build,
            few,
            folder / "check",
            rows_per_epoch=peer_rows,
            settled_after=1,
        )
        row: Row = {
            "name": "custom",
            "penstock_rows": own["rows"],
            "penstock_seconds": own["seconds"],
            "penstock_rows_per_second": own["rows_per_second"],
            "penstock_seconds_per_epoch": own["seconds_per_epoch"],
            "penstock_peak_memory_bytes": own["peak_memory_bytes"],
            "bytes_checkpointed": own["bytes_checkpointed"],
        }
        problems = []
        for label in ("pandas", "rows"):
            peer = run_side(run_peer, label, few, folder / label)
            for figure in ("rows", "seconds", "rows_per_second", "peak_memory_bytes"):
                row[f"{label}_{figure}"] = peer[figure]
            problems.append(_same_totals(folder / "check" / "out", folder / label / "out"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    row["ratio"] = round(row["penstock_rows_per_second"] / row["pandas_rows_per_second"], 1)
    row["ratio_rows"] = round(
        row["penstock_rows_per_second"] / row["rows_rows_per_second"], 1
    )
    found = [problem for problem in problems if problem is not None]
    return {
        **row,
        "agrees": not found,
        "differences": found,
        "target": f"at least {GOAL_PANDAS} and {GOAL_ROWS} times transformWithState",
        "ok": row["ratio"] >= GOAL_PANDAS and row["ratio_rows"] >= GOAL_ROWS and not found,
    }


def run_peer(label: str, bids: Path, folder: Path) -> Row:
    """Run one of the peers over two files, a trigger each."""
    session = open_peer(ROCKSDB)
    stream = read_files(session, bids).select("auction", "price")
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
    grouped = stream.groupBy("auction")
    if label == "pandas":
        changes = grouped.transformWithStateInPandas(
            PandasTotals(), _OUTPUT, "Update", "None"
        )
    else:
        changes = grouped.transformWithState(RowTotals(), _OUTPUT, "Update", "None")
    query = (
        changes.writeStream.outputMode("update")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .foreachBatch(
            lambda frame, batch: frame.write.mode("overwrite").parquet(
                f"{folder}/out/batch={batch}"
            )
        )
        .trigger(availableNow=True)
        .start()
    )
    started = time.perf_counter()
    query.awaitTermination()
    triggers = [progress for progress in query.recentProgress if progress["numInputRows"]]
    last = triggers[-1]
    seconds = last["durationMs"]["triggerExecution"] / 1e3
    session.stop()
    return {
        "rows": last["numInputRows"],
        "seconds": round(seconds, 3),
        "rows_per_second": round(last["numInputRows"] / seconds),
        "seconds_with_start": round(time.perf_counter() - started, 1),
    }


def _write_few(bids: Path, folder: Path, rows: int) -> None:
    """Write two triggers of two files each, of so many rows a trigger."""
    folder.mkdir()
    table = pq.read_table(sorted(bids.glob("*.parquet"))[:2])
    for number in range(4):
        pq.write_table(
            table.slice(number * rows // 2, rows // 2), folder / f"{number}.parquet"
        )


def _same_totals(own: Path, theirs: Path) -> str | None:
    last = "SELECT auction, max(bids) AS bids, max(total) AS total FROM read_parquet('{}') GROUP BY 1"
    return difference(
        last.format(f"{own}/**/*.parquet"), last.format(f"{theirs}/**/*.parquet")
    )
