"""Updating aggregates: count and sum by bidder, a million of them, as changes."""

from pathlib import Path

import penstock as pen
from benchmarks import structured_streaming
from benchmarks.comparison import compare, difference
from benchmarks.suites import Row


def build(bids: pen.Stream) -> pen.Stream:
    changes = bids.key_by("bidder").aggregate(
        "per-bidder", bids=pen.count(), total=pen.sum("price")
    )
    return changes.to_upserts().select("bidder", "bids", "total")


def run(*, quick: bool) -> Row:
    return compare(
        "updating",
        build,
        structured_streaming.updating,
        columns=("bidder", "price", "ts"),
        mode="update",
        agree=same_totals,
        goal=10,
        goal_default=4,
        quick=quick,
    )


def same_totals(own: Path, theirs: Path) -> str | None:
    """Compare what all changes lead to: counts and sums only grow, so the last is the largest."""
    last = "SELECT bidder, max(bids) AS bids, max(total) AS total FROM read_parquet('{}') GROUP BY 1"
    return difference(
        last.format(f"{own}/**/*.parquet"), last.format(f"{theirs}/**/*.parquet")
    )
