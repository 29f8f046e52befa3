"""The proof: what the job wrote, compared with the same answer computed in batch."""

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True, slots=True)
class Comparison:
    """One question that both answers must agree on."""

    question: str
    written: int
    recomputed: int
    differing: int = 0
    """How many auctions have another value."""

    @property
    def is_equal(self) -> bool:
        """Tell whether both say the same."""
        return self.written == self.recomputed and self.differing == 0


def compare(written: pl.DataFrame, recomputed: pl.DataFrame) -> list[Comparison]:
    """Compare the output of the job with the answer in batch, auction by auction."""
    both = recomputed.join(written, on="auction", how="full", suffix="_written")

    def differing(expected: str, found: str) -> int:
        return both.filter(pl.col(expected).ne_missing(pl.col(found))).height

    def total(frame: pl.DataFrame, column: str) -> int:
        return int(frame[column].sum())

    return [
        Comparison("auctions", written.height, recomputed.height),
        Comparison(
            "bids in committed rows",
            total(written, "bids"),
            total(recomputed, "bids"),
            differing("bids", "bids_written"),
        ),
        Comparison(
            "bids by running count",
            total(written, "counted"),
            total(recomputed, "bids"),
            differing("bids", "counted"),
        ),
        Comparison(
            "sum of top prices",
            total(written, "top_price"),
            total(recomputed, "top_price"),
            differing("top_price", "top_price_written"),
        ),
    ]
