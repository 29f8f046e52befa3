"""Nexmark: events a second and core of each query, beside Flink's and Structured Streaming's.

All sides read the same Parquet files of mixed events, two files (a million events) an epoch or
trigger, and keep durable checkpoints; results are dropped, but those of q10, which is about
writing files. All events count, also of kinds that a query drops. Penstock runs all queries in
one JVM: first over the peer's events, to get warm and to compare how many rows come out, then
over all of them; the first two epochs are not timed. The peer runs its queries in one JVM per
store, each over two triggers of which the second is timed.

NEXMARK_QUERIES="q5 q7" runs these alone. `python -m benchmarks.nexmark_report FILE` draws what
`--json FILE` has written.
"""

import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

import penstock as pen
from benchmarks import nexmark_peer
from benchmarks.nexmark_events import (
    COLUMNS,
    EVENTS_PER_FILE,
    FILES,
    PEER_FILES,
    QUICK_FILES,
    events_folder,
    schema_of,
)
from benchmarks.penstock_side import run_to_end
from benchmarks.sides import run_side
from benchmarks.structured_streaming import (
    CORES,
    DEFAULT,
    FILES_PER_TRIGGER,
    ROCKSDB,
)
from benchmarks.suites import Row
from examples.nexmark.__main__ import FOLDERS, queries
from examples.nexmark.site import KINDS, Kind, Site, stored
from penstock.runtime.spark.session import open_session

FLINK: dict[str, int] = {
    "q0": 378,
    "q1": 396,
    "q2": 414,
    "q3": 219,
    "q4": 28,
    "q5": 75,
    "q7": 23,
    "q8": 162,
    "q9": 14,
    "q10": 133,
    "q11": 46,
    "q12": 194,
    "q13": 188,
    "q14": 259,
    "q15": 168,
    "q16": 45,
    "q17": 161,
    "q18": 65,
    "q19": 43,
    "q20": 18,
    "q21": 147,
    "q22": 211,
}
"""Thousand events a second and core of Flink 2.0, as published by the repository nexmark/nexmark
(GUIDE_V2 of December 2025: 8 task managers, RocksDB; divided by their cores). On other hardware:
a reference, no comparison."""
SETTLED_AFTER = 2
STORES = {"rocksdb": ROCKSDB, "default": DEFAULT}
_BIDS = "auction bidder price"
_IN_TIME = f"{_BIDS} id category seller expires"
NEEDED: dict[str, str] = {
    **dict.fromkeys(("q0", "q1", "q10", "q14"), f"{_BIDS} extra"),
    **dict.fromkeys(("q7", "q13", "q19"), _BIDS),
    **dict.fromkeys(("q4", "q9"), _IN_TIME),
    **dict.fromkeys(("q11", "q12"), "bidder"),
    **dict.fromkeys(("q21", "q22"), f"{_BIDS} channel url"),
    "q2": "auction price",
    "q3": "id seller category name city state",
    "q5": "auction",
    "q8": "id seller name",
    "q15": _BIDS,
    "q16": f"{_BIDS} channel",
    "q17": "auction price",
    "q20": f"{_BIDS} id item_name seller category",
    "q23": f"{_BIDS} id name seller category",
}
"""The columns that queries need: the peer finds that out by itself. Others need all of bids."""
_FOLDER = Path(__file__).resolve().parent / "results"


def run(*, quick: bool) -> list[Row]:
    wanted = os.environ.get("NEXMARK_QUERIES", "").replace(",", " ").split()
    names = [name for name in queries() if not wanted or name in wanted]
    events = events_folder(QUICK_FILES if quick else FILES)
    few = events_folder(FILES_PER_TRIGGER if quick else PEER_FILES)
    settled_after = 1 if quick else SETTLED_AFTER
    _FOLDER.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="nexmark-", dir=_FOLDER))
    try:
        own = run_side(run_queries, names, few, events, folder, settled_after=settled_after)
        peers = {
            label: run_side(
                nexmark_peer.run_queries,
                [name for name in names if label == "rocksdb" or has_state(name)],
                *(store, few, folder / label),
            )
            for label, store in STORES.items()
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [_to_row(name, own[name], peers) for name in names]


def run_queries(
    names: Sequence[str], few: Path, events: Path, folder: Path, *, settled_after: int
) -> Row:
    """Run queries one after the other in one JVM; those that fail say why."""
    session = open_session(f"local[{CORES},4]", name="nexmark")
    found: Row = {}
    for name in names:
        try:
            warm = run_query(
                name, few, folder / "warm-up", settled_after=0, is_counted=True
            )
            row = run_query(name, events, folder / "own", settled_after=settled_after)
            found[name] = {**row, "rows_of_few": warm["rows_written"]}
        except Exception as error:  # noqa: BLE001 (one query must not hide the others)
            traceback.print_exc()
            found[name] = {"error": f"{type(error).__name__}: {error}"}
        _tell(f"penstock {name}: {found[name].get('rows_per_second', 'failed')} events/s")
        shutil.rmtree(folder / "warm-up", ignore_errors=True)
        shutil.rmtree(folder / "own", ignore_errors=True)
    session.stop()
    return found


def columns_of(name: str) -> tuple[pa.Schema, dict[Kind, list[str]]]:
    """Return what a query reads: the columns of all events, and those of each kind."""
    needed = ["date_time", *NEEDED.get(name, " ".join(COLUMNS["bids"])).split()]
    columns = {kind: [c for c in COLUMNS[kind] if c in needed] for kind in KINDS}
    return schema_of(needed), columns


def run_query(
    name: str, events: Path, folder: Path, *, settled_after: int, is_counted: bool = False
) -> Row:
    """Run a query; to be counted, a changed row is one row, not the old and the new one."""
    pipeline = pen.Pipeline(f"nexmark-{name}", parallelism=CORES)
    result = queries()[name](Site(pipeline, stored(events, *columns_of(name))))
    is_compared = name in nexmark_peer.QUERIES and result.port.schema.is_changelog
    if is_counted and is_compared:
        result = result.to_upserts()
    folders = FOLDERS.get(name, ())
    files = pen.files(folder / "out", format="parquet", partition_by=folders)
    result.write("out", files if folders else pen.blackhole())
    return run_to_end(
        pipeline,
        folder / "checkpoint",
        rows_per_epoch=FILES_PER_TRIGGER * EVENTS_PER_FILE,
        settled_after=settled_after,
    )


def has_state(name: str) -> bool:
    """Say whether it matters to the peer's query where state is kept."""
    return name in nexmark_peer.QUERIES and nexmark_peer.QUERIES[name].has_state


def _to_row(name: str, own: Row, peers: dict[str, Row]) -> Row:
    row: Row = {"name": name, "cores": CORES}
    if "error" in own:
        return {**row, "error": own["error"], "ok": False}
    row |= {
        "events": own["rows"],
        "seconds": own["seconds"],
        "seconds_per_epoch": own["seconds_per_epoch"],
        "bytes_checkpointed": own["bytes_checkpointed"],
        "rows_out": own["rows_written"],
        "per_core": round(own["rows_per_second"] / CORES),
    }
    problems = []
    for label, rows in peers.items():
        peer = rows.get(name) or rows_of_no_state(name, peers)
        if "rows_per_second" in peer:
            row[f"{label}_per_core"] = round(peer["rows_per_second"] / CORES)
            ratio = own["rows_per_second"] / peer["rows_per_second"]
            row[f"ratio_{label}"] = round(ratio, 2)
            problems.append(
                nexmark_peer.difference(name, own["rows_of_few"], peer["rows_written"])
            )
        else:
            row["peer_cannot"] = peer["error"]
    found = sorted({problem for problem in problems if problem is not None})
    row |= {"agrees": not found if problems else None, "differences": found}
    if name in FLINK:
        goal = FLINK[name] * 1_000
        row |= {
            "flink_per_core": goal,
            "ratio_flink": round(row["per_core"] / goal, 2),
            "target": "at least Flink 2.0's published events a second and core",
            "ok": row["per_core"] >= goal and not found,
        }
    return row


def rows_of_no_state(name: str, peers: dict[str, Row]) -> Row:
    """Return what is the same on both stores: a query without state, or why there is none."""
    found: Row = peers["rocksdb"][name]
    return found


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
