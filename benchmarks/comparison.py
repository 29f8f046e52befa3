"""One query on both sides: run, compare the results, and put the figures into a row."""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import duckdb
from pyspark.sql import DataFrame

from benchmarks.bids import BIDS
from benchmarks.inputs import Input
from benchmarks.penstock_side import Build, default_rows_per_epoch, run_pipeline
from benchmarks.sides import run_side, run_warm
from benchmarks.structured_streaming import (
    DEFAULT,
    QUICK_SETTLED_AFTER,
    ROCKSDB,
    SETTLED_AFTER,
    run_query,
)
from benchmarks.suites import Row

FIGURES = (
    "rows",
    "seconds",
    "rows_per_second",
    "seconds_per_epoch",
    "seconds_per_trigger",
    "peak_memory_bytes",
    "bytes_checkpointed",
    "profile",
)
_FOLDER = Path(__file__).resolve().parent / "results"

Side: TypeAlias = Callable[..., Row]


def compare(
    name: str,
    build: Build,
    query: Callable[[DataFrame], DataFrame],
    *,
    columns: Sequence[str],
    mode: str,
    agree: Callable[[Path, Path], str | None],
    goal: float,
    goal_default: float,
    quick: bool,
    read_from: Input = BIDS,
    settled_after: int = SETTLED_AFTER,
) -> Row:
    """Run Penstock, then the peer on both of its stores, on the same files."""
    settled_after = QUICK_SETTLED_AFTER if quick else settled_after
    pipeline = partial(
        run_pipeline,
        build,
        rows_per_epoch=default_rows_per_epoch(),
        settled_after=settled_after,
        columns=columns,
        read_from=read_from,
    )
    peers = {
        store: partial(
            run_query,
            query,
            store,
            mode=mode,
            settled_after=settled_after,
            read_from=read_from,
        )
        for store in (ROCKSDB, DEFAULT)
    }
    return compare_sides(
        name,
        pipeline,
        peers,
        read_from.warm_up_folder(),
        read_from.folder(quick=quick),
        agree=agree,
        goal=goal,
        goal_default=goal_default,
        quick=quick,
    )


def compare_sides(
    name: str,
    pipeline: Side,
    peers: Mapping[str, Side],
    few: object,
    everything: object,
    *,
    agree: Callable[[Path, Path], str | None],
    goal: float,
    goal_default: float,
    quick: bool,
) -> Row:
    """Run one query on each side, warm, and return the row: figures, ratios, agreement.

    `peers` are the sides of Structured Streaming by store. Each side gets what it reads, `few`
    of it to get warm, and a folder in which its results are to be `out`.
    """
    _FOLDER.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_FOLDER))
    try:
        own = run_side(run_warm, pipeline, few, everything, folder / "own", quick=quick)
        row: Row = {"name": name, **_figures("penstock", own)}
        problems = []
        for label, store in (("rocksdb", ROCKSDB), ("default", DEFAULT)):
            theirs = folder / label
            side = peers[store]
            peer = run_side(run_warm, side, few, everything, theirs, quick=quick)
            row |= _figures(label, peer)
            ratio = own["rows_per_second"] / peer["rows_per_second"]
            row["ratio" if label == "rocksdb" else "ratio_default"] = round(ratio, 2)
            problems.append(agree(folder / "own" / "out", theirs / "out"))
        found = [problem for problem in problems if problem is not None]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    row |= {
        "agrees": not found,
        "differences": found,
        "target": f"at least {goal} and {goal_default} times Structured Streaming",
    }
    reached = row["ratio"] >= goal and row["ratio_default"] >= goal_default
    return {**row, "ok": reached and row["agrees"]}


def same_windows(columns: str) -> Callable[[Path, Path], str | None]:
    """Return a check that all windows the peer closed are the same on both sides."""

    def agree(own: Path, theirs: Path) -> str | None:
        peer = f"SELECT {columns} FROM read_parquet('{theirs}/*.parquet')"
        closed = f"window_end <= (SELECT max(window_end) FROM ({peer}))"
        mine = f"SELECT {columns} FROM read_parquet('{own}/**/*.parquet') WHERE {closed}"
        return difference(mine, peer)

    return agree


def difference(mine: str, peer: str) -> str | None:
    """Say by how many rows two queries differ, as bags; None if they do not."""
    with duckdb.connect() as database:
        # A progress bar would land among the results.
        database.execute("SET enable_progress_bar = false")
        database.execute("SET TimeZone = 'UTC'")
        database.execute(f"CREATE TABLE mine AS {mine}")
        database.execute(f"CREATE TABLE peer AS {peer}")
        counts = [
            database.execute(text).fetchone()
            for text in (
                "SELECT count(*) FROM (FROM mine EXCEPT ALL FROM peer)",
                "SELECT count(*) FROM (FROM peer EXCEPT ALL FROM mine)",
                "SELECT count(*) FROM peer",
            )
        ]
    extra, missing, total = (count[0] if count else 0 for count in counts)
    if extra or missing or not total:
        return f"{extra} rows are only ours and {missing} only the peer's, of {total}"
    return None


def _figures(side: str, row: Row) -> Row:
    return {f"{side}_{name}": row[name] for name in FIGURES if name in row}
