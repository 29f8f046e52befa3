"""The columns of Nexmark's persons, auctions and bids, and of the stream that has them all."""

from collections.abc import Sequence

import pyarrow as pa

from penstock.connectors.nexmark_sequence import EventKind
from penstock.core.schema import StreamSchema

TIME_COLUMN = "date_time"
_INSTANT = pa.timestamp("us")


def _required(**types: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])


PERSON = _required(
    id=pa.int64(),
    name=pa.string(),
    email=pa.string(),
    credit_card=pa.string(),
    city=pa.string(),
    state=pa.string(),
    date_time=_INSTANT,
    extra=pa.string(),
)
AUCTION = _required(
    id=pa.int64(),
    item_name=pa.string(),
    description=pa.string(),
    initial_bid=pa.int64(),
    reserve=pa.int64(),
    date_time=_INSTANT,
    expires=_INSTANT,
    seller=pa.int64(),
    category=pa.int64(),
    extra=pa.string(),
)
BID = _required(
    auction=pa.int64(),
    bidder=pa.int64(),
    price=pa.int64(),
    channel=pa.string(),
    url=pa.string(),
    date_time=_INSTANT,
    extra=pa.string(),
)


def _struct(schema: pa.Schema) -> pa.StructType:
    """Return the columns as one nullable value: of a row that is null all fields are."""
    return pa.struct([pa.field(field.name, field.type) for field in schema])


EVENT = pa.schema(
    [
        pa.field("event_type", pa.int32(), nullable=False),
        pa.field("person", _struct(PERSON)),
        pa.field("auction", _struct(AUCTION)),
        pa.field("bid", _struct(BID)),
        pa.field(TIME_COLUMN, _INSTANT, nullable=False),
    ]
)
"""`event_type` is 0 for a person, 1 for an auction, 2 for a bid, as in the benchmark's SQL."""

SCHEMAS = {
    EventKind.ALL: StreamSchema(EVENT, TIME_COLUMN),
    EventKind.PERSONS: StreamSchema(PERSON, TIME_COLUMN),
    EventKind.AUCTIONS: StreamSchema(AUCTION, TIME_COLUMN),
    EventKind.BIDS: StreamSchema(BID, TIME_COLUMN),
}


def select_columns(stream: StreamSchema, columns: Sequence[str] | None) -> StreamSchema:
    """Return the stream with some columns, in that order; without its time it has none."""
    if columns is None:
        return stream
    chosen = pa.schema([stream.schema.field(name) for name in columns])
    return StreamSchema(chosen, TIME_COLUMN if TIME_COLUMN in columns else None)
