"""Sliding windows: count and sum by auction, 10 s wide, every 2 s."""

import penstock as pen
from benchmarks import structured_streaming
from benchmarks.comparison import compare, same_windows
from benchmarks.suites import Row


def build(bids: pen.Stream) -> pen.Stream:
    windows = bids.key_by("auction").window("per-auction", pen.sliding("10s", "2s"))
    return windows.aggregate(bids=pen.count(), total=pen.sum("price"))


def run(*, quick: bool) -> Row:
    return compare(
        "sliding",
        build,
        structured_streaming.sliding,
        columns=("auction", "price", "ts"),
        mode="append",
        agree=same_windows("auction, window_end, bids, total"),
        goal=30,
        goal_default=10,
        quick=quick,
    )
