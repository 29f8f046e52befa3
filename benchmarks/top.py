"""The ten highest bids of each auction as a changelog, against a batch that ranks all bids once."""

from pathlib import Path

import penstock as pen
from benchmarks.batch import compare_with_batch
from benchmarks.comparison import difference
from benchmarks.suites import Row

_COLUMNS = "auction, bidder, price, ts"
_QUERY = f"""
    SELECT {_COLUMNS} FROM read_parquet('{{bids}}/*.parquet')
    QUALIFY row_number() OVER (
        PARTITION BY auction ORDER BY price DESC, bidder DESC, ts DESC
    ) <= 10
"""


def build(bids: pen.Stream) -> pen.Stream:
    return bids.top("highest-bids", 10, by="price", per="auction")


def run(*, quick: bool) -> Row:
    return compare_with_batch(
        "top, of a batch's pace",
        build,
        _QUERY,
        columns=("auction", "bidder", "price", "ts"),
        agree=same_bids,
        goal=0.3,
        quick=quick,
    )


def same_bids(own: Path, peer: Path) -> str | None:
    """Compare what all changes lead to: rows that came more often than they went."""
    signs = "CASE change WHEN 'insert' THEN 1 ELSE -1 END"
    folded = (
        f"SELECT {_COLUMNS}, sum({signs})::BIGINT AS times FROM read_parquet('{own}/**/*.parquet') "
        "GROUP BY ALL HAVING times > 0"
    )
    counted = (
        f"SELECT {_COLUMNS}, count(*) AS times FROM read_parquet('{peer}') GROUP BY ALL"
    )
    return difference(folded, counted)
