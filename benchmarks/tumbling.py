"""Tumbling windows: count, sum and max by auction per 10 s, rows up to 1 s late."""

import penstock as ps
from benchmarks import structured_streaming
from benchmarks.comparison import compare, same_windows
from benchmarks.suites import Row


def build(bids: ps.Stream) -> ps.Stream:
    windows = bids.key_by("auction").window("per-auction", ps.tumbling("10s"))
    return windows.aggregate(bids=ps.count(), total=ps.sum("price"), top=ps.max("price"))


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
