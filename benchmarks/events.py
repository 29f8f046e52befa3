"""The events of Nexmark's auction site in one sequence: people, auctions and the bids on them.

As the generator makes them by default, 10 k a second, but with 0.2 s of disorder. A row has the
columns that joins of bids and auctions need; `auction` is an auction's own id too, and what an
event does not have is null.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.inputs import ROWS_PER_FILE, Input
from penstock.connectors.nexmark.draws import EventKind
from penstock.connectors.nexmark.rows import SCHEMAS, NexmarkConfig, make_batch

AUCTION, BID = 1, 2
"""The values of `event_type`; 0 is a person."""
LONGEST_LIFE_MILLIS = 335
"""No auction lasts longer: on average it does until 100 more have begun, at most twice that."""
_START_MICROS = 1_700_000_000_000_000
_DISORDER_MICROS = 200_000
_UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("event_type", pa.int32()),
        ("auction", pa.int64()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("seller", pa.int64()),
        ("category", pa.int64()),
        ("expires", _UTC),
        ("date_time", _UTC),
    ]
)


_CONFIG = NexmarkConfig(start_micros=_START_MICROS, disorder_micros=_DISORDER_MICROS)
_MIXED = SCHEMAS[EventKind.ALL].arrow


def events(number: int, rows: int = ROWS_PER_FILE) -> pa.RecordBatch:
    """Return the rows of one file."""
    numbers = np.arange(number * ROWS_PER_FILE, number * ROWS_PER_FILE + rows)
    names = ("event_type", "auction", "bid", "date_time")
    mixed: Any = make_batch(_CONFIG, numbers, pa.schema([_MIXED.field(n) for n in names]))
    auction, bid = (
        dict(zip((field.name for field in column.type), column.flatten(), strict=True))
        for column in (mixed["auction"], mixed["bid"])
    )
    columns = {
        "event_type": mixed["event_type"],
        "auction": pc.coalesce(auction["id"], bid["auction"]),
        "date_time": mixed["date_time"],
        **{name: bid[name] for name in ("bidder", "price")},
        **{name: auction[name] for name in ("seller", "category", "expires")},
    }
    arrays = [columns[field.name].cast(field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


EVENTS = Input("events", SCHEMA, "date_time", events)
