"""The proof: what the job wrote, compared with the same answer computed in batch."""

from dataclasses import dataclass

import polars as pl

from examples.demo.job import WINDOWS_PER_BID


@dataclass(frozen=True, slots=True)
class Comparison:
    """One question that both answers must agree on."""

    question: str
    written: int
    recomputed: int
    differing: int = 0
    """How many windows have another value."""

    @property
    def is_equal(self) -> bool:
        """Tell whether both say the same."""
        return self.written == self.recomputed and self.differing == 0


def compare(written: pl.DataFrame, recomputed: pl.DataFrame) -> list[Comparison]:
    """Compare the output of the job with the answer in batch, window by window."""
    both = recomputed.join(written, on="window_end", how="full", suffix="_written")

    def comparison(question: str, column: str) -> Comparison:
        differs = pl.col(column).ne_missing(pl.col(f"{column}_written"))
        return Comparison(
            question,
            _total(written, column),
            _total(recomputed, column),
            both.filter(differs).height,
        )

    return [
        Comparison("windows", written.height, recomputed.height),
        comparison(f"bids, each in {WINDOWS_PER_BID} windows", "bids"),
        comparison("auctions with bids", "auctions"),
        comparison("sum of top prices", "top_price"),
        comparison("bids of the hottest", "hottest"),
    ]


def _total(frame: pl.DataFrame, column: str) -> int:
    values = frame[column]
    if values.dtype == pl.List:
        values = values.explode().struct.field("bids")
    return int(values.sum())
