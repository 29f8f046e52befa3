"""The job of the demo: Nexmark bids → totals per auction, with state → Parquet, exactly once.

What the demo is about, dying and going on, is elsewhere: any job with the same three
functions can stand here. `build` makes the pipeline, `recompute` says in batch what it must
have found, and `read_output` what it did find.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import polars as pl
import pyarrow as pa

import penstock as ps
from penstock.connectors.nexmark_config import NexmarkConfig
from penstock.connectors.nexmark_rows import make_batch
from penstock.connectors.nexmark_schemas import BID
from penstock.state.tables.specs import TableSpec

NAME = "auction-totals"
_COLUMNS = ["auction", "price", "date_time"]
_TOTALS = pa.schema(
    [("auction", pa.int64()), ("bids", pa.int64()), ("top_price", pa.int64())]
)
_CHANGES = _TOTALS.insert(1, pa.field("new_bids", pa.int64()))
_CHUNK_ROWS = 1_000_000


class AuctionTotals(ps.ArrowOperator):
    """Counts the bids of each auction and keeps the highest; emits what changed."""

    def name(self) -> str:
        """Return the kind."""
        return "auction-totals"

    def output_schema(self, inputs: Sequence[ps.StreamSchema]) -> ps.StreamSchema:
        """Return the new totals, and how many bids made the difference."""
        del inputs
        return ps.StreamSchema(_CHANGES, key_columns=("auction",))

    def tables(self) -> Sequence[TableSpec]:
        """Keep one row per auction."""
        return [ps.keyed_table("totals", _TOTALS, key_columns=["auction"])]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: ps.OperatorContext, collector: ps.ArrowCollector
    ) -> None:
        """Look the batch's auctions up, add to them, store and emit them."""
        totals = ctx.get_keyed_state("totals")
        new = (
            pl.DataFrame(pl.from_arrow(batch))
            .group_by("auction")
            .agg(new_bids=pl.len().cast(pl.Int64), highest=pl.col("price").max())
        )
        known = pl.DataFrame(pl.from_arrow(totals.get(new).rows))
        changed = new.select(
            "auction",
            "new_bids",
            bids=pl.col("new_bids") + known["bids"].fill_null(0),
            top_price=pl.max_horizontal(pl.col("highest"), known["top_price"]),
        )
        totals.put(changed.select(_TOTALS.names))
        collector.collect(changed)


def bids(events: int, *, splits: int = 1) -> ps.OperatorSpec:
    """Return the source: the bids among so many events of an auction site."""
    return ps.nexmark(
        events, kind="bids", splits=splits, disorder="200ms", columns=_COLUMNS
    )


def build(events: int, output: Path, *, parallelism: int = 2) -> ps.Pipeline:
    """Return the pipeline; nothing runs yet."""
    pipeline = ps.Pipeline(NAME, parallelism=parallelism)
    (
        pipeline.read(
            "bids",
            bids(events, splits=parallelism),
            event_time="date_time",
            lateness="200ms",
        )
        .key_by("auction")
        .process("totals", AuctionTotals())
        .write("parquet", ps.files(str(output)))
    )
    return pipeline


def rows_of(events: int) -> int:
    """Return how many of the events are bids."""
    config = _config_of(events)
    return config.sequence.rows_below(events, 0, 1)


def _config_of(events: int) -> NexmarkConfig:
    return msgspec.convert(dict(bids(events).config), NexmarkConfig)


def recompute(events: int) -> pl.DataFrame:
    """Return the totals of all auctions by one pass over the same bids, without Penstock."""
    config = _config_of(events)
    schema = pa.schema([BID.field(name) for name in _COLUMNS])
    row_count = config.sequence.rows_below(events, 0, 1)
    parts = []
    for start in range(0, row_count, _CHUNK_ROWS):
        end = min(start + _CHUNK_ROWS, row_count)
        rows = make_batch(config, config.sequence.numbers(0, 1, start, end), schema)
        parts.append(
            pl.DataFrame(pl.from_arrow(rows))
            .group_by("auction")
            .agg(bids=pl.len().cast(pl.Int64), top_price=pl.col("price").max())
        )
    return (
        pl.concat(parts)
        .group_by("auction")
        .agg(pl.col("bids").sum(), pl.col("top_price").max())
        .sort("auction")
    )


def read_output(output: Path) -> pl.DataFrame:
    """Return what the committed files say of each auction.

    `bids` adds up what every committed row brought, so that a row lost or doubled on its way
    out shows. `counted` is the highest running total, so that one lost or doubled on its
    way into state shows too.
    """
    rows = pl.DataFrame(pl.from_arrow(ps.read_committed(str(output))))
    return (
        rows.group_by("auction")
        .agg(
            pl.col("new_bids").sum().alias("bids"),
            pl.col("top_price").max(),
            pl.col("bids").max().alias("counted"),
        )
        .sort("auction")
    )
