"""Tumbling windows: count, sum and max by auction per 10 s, rows up to 1 s late."""

import penstock as pen
from benchmarks import structured_streaming
from benchmarks.comparison import compare, same_windows
from benchmarks.suites import Row


def build(bids: pen.Stream) -> pen.Stream:
    windows = bids.key_by("auction").window("per-auction", pen.tumbling("10s"))
    return windows.aggregate(bids=pen.count(), total=pen.sum("price"), top=pen.max("price"))


def run(*, quick: bool) -> Row:
    return compare(
        "tumbling",
        build,
        structured_streaming.tumbling,
        columns=("auction", "price", "ts"),
        mode="append",
        agree=same_windows("auction, window_end, bids, total, top"),
        goal=10,
        goal_default=4,
        quick=quick,
    )
