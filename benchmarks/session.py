"""Session windows: count and sum by bidder, a million of them, with a gap of 1 s."""

from dataclasses import replace

import penstock as pen
from benchmarks import structured_streaming
from benchmarks.bids import BIDS
from benchmarks.comparison import compare, same_windows
from benchmarks.suites import Row

SETTLED_AFTER = 2
FEW_BIDS = replace(BIDS, files=10, quick_files=6, warm_up_files=2)
"""Fewer than other suites read: the peer takes half a minute for a million rows."""


def build(bids: pen.Stream) -> pen.Stream:
    windows = bids.key_by("bidder").window("per-bidder", pen.session("1s"))
    return windows.aggregate(bids=pen.count(), total=pen.sum("price"))


def run(*, quick: bool) -> Row:
    return compare(
        "session",
        build,
        structured_streaming.sessions,
        columns=("bidder", "price", "ts"),
        mode="append",
        agree=same_windows("bidder, window_end, bids, total"),
        goal=10,
        goal_default=4,
        quick=quick,
        read_from=FEW_BIDS,
        settled_after=SETTLED_AFTER,
    )
