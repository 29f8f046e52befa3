"""How close a stream with checkpoints comes to a batch: the tumbling query against DuckDB."""

from pathlib import Path

from benchmarks.batch import compare_with_batch
from benchmarks.comparison import difference
from benchmarks.suites import Row
from benchmarks.tumbling import build

_QUERY = """
    SELECT auction, time_bucket(INTERVAL 10 SECOND, ts) + INTERVAL 10 SECOND AS window_end,
           count(*) AS bids, sum(price)::BIGINT AS total, max(price) AS top
    FROM read_parquet('{bids}/*.parquet') GROUP BY 1, 2
"""


def run(*, quick: bool) -> Row:
    return compare_with_batch(
        "tumbling, of a batch's pace",
        build,
        _QUERY,
        columns=("auction", "price", "ts"),
        agree=same_windows,
        goal=0.5,
        quick=quick,
    )


def same_windows(own: Path, peer: Path) -> str | None:
    results = "SELECT auction, window_end, bids, total, top FROM read_parquet('{}')"
    return difference(results.format(f"{own}/**/*.parquet"), results.format(peer))
