"""Deduplication: the first bid of each bidder on each auction, remembered for ten minutes.

Nearly all bids are first ones, so state gets a row for each: the case in which it costs most.
"""

from dataclasses import replace
from pathlib import Path

import penstock as pen
from benchmarks import structured_streaming
from benchmarks.bids import BIDS
from benchmarks.comparison import compare, difference
from benchmarks.suites import Row

SETTLED_AFTER = 2
FEW_BIDS = replace(BIDS, files=10, quick_files=6, warm_up_files=2)
"""Fewer than other suites read: the peer takes half a minute for a million rows."""


def build(bids: pen.Stream) -> pen.Stream:
    return bids.deduplicate("first-bids", ["bidder", "auction"], ttl="10m")


def run(*, quick: bool) -> Row:
    return compare(
        "dedup",
        build,
        structured_streaming.deduplicated,
        columns=("auction", "bidder", "price", "ts"),
        mode="append",
        agree=same_pairs,
        goal=10,
        goal_default=4,
        quick=quick,
        read_from=FEW_BIDS,
        settled_after=SETTLED_AFTER,
    )


def same_pairs(own: Path, theirs: Path) -> str | None:
    """Compare who has bid on what: files are read side by side, so which bid is first may differ."""
    pairs = "SELECT bidder, auction FROM read_parquet('{}')"
    return difference(
        pairs.format(f"{own}/**/*.parquet"), pairs.format(f"{theirs}/*.parquet")
    )
