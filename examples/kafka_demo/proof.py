"""The proof: what is in Kafka and in the Delta table, compared with the same computed in batch."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable

from examples.kafka_demo.job import RESULTS, Answers

_WINDOW = pl.Struct(
    {
        "category": pl.Int64,
        "window_end": pl.String,
        "bids": pl.Int64,
        "total": pl.Int64,
        "top": pl.Int64,
    }
)
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows that are there, and rows that should be."""

    question: str
    written: int
    recomputed: int
    missing: int
    extra: int
    """Rows that are there and should not be; a row that is there twice is one of them."""

    @property
    def is_equal(self) -> bool:
        """Tell whether both are the same, row by row."""
        return self.missing == 0 and self.extra == 0


def compare(written: Answers, recomputed: Answers) -> list[Comparison]:
    """Compare both outputs with what batch says, as bags of rows."""
    return [
        _compare("windows in Kafka", written.windows, recomputed.windows),
        _compare("sales in Delta", written.sales, recomputed.sales),
    ]


def _compare(question: str, written: pl.DataFrame, recomputed: pl.DataFrame) -> Comparison:
    columns = recomputed.columns
    found = written.group_by(columns).agg(there=pl.len().cast(pl.Int64))
    wanted = recomputed.group_by(columns).agg(wanted=pl.len().cast(pl.Int64))
    both = found.join(wanted, on=columns, how="full", nulls_equal=True).fill_null(0)
    surplus = both["there"] - both["wanted"]
    return Comparison(
        question,
        written.height,
        recomputed.height,
        missing=-int(surplus.clip(upper_bound=0).sum()),
        extra=int(surplus.clip(lower_bound=0).sum()),
    )


def read_outputs(servers: str, table: Path, like: Answers) -> Answers:
    """Return what readers of the two systems see; `like` has the types."""
    sales = pl.DataFrame(pl.from_arrow(DeltaTable(str(table)).to_pyarrow_table()))
    texts = pl.Series(read_committed(servers, RESULTS), dtype=pl.String)
    windows = texts.str.json_decode(_WINDOW).struct.unnest()
    times = pl.col("window_end").str.to_datetime(time_unit="us", time_zone="UTC")
    return Answers(
        sales.select(like.sales.columns).cast(like.sales.schema),
        windows.with_columns(times).select(like.windows.columns).cast(like.windows.schema),
    )


def read_committed(servers: str, topic: str) -> list[str]:
    """Return the values of a topic that a reader of committed records sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "proof",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic, _PATIENCE_SECONDS).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    values: list[str] = []
    ended: set[int] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(_PATIENCE_SECONDS)
        if message is None:
            raise TimeoutError(f"{servers} gives no records of {topic}")
        value = message.value()
        if message.error() is not None:
            ended.add(message.partition() or 0)
        elif value is not None:
            values.append(value.decode())
    consumer.close()
    return values
