"""The bids that most comparisons read.

Auction of 100 k, bidder of 1 M, price, event time at 100 k rows/s with 0.2 s of disorder;
files of 500 k rows.
"""

import numpy as np
import pyarrow as pa

from benchmarks.inputs import ROWS_PER_FILE, Input

EVENTS_PER_SECOND = 100_000
DISORDER_MICROS = 200_000
START_MICROS = 1_700_000_000_000_000
SCHEMA = pa.schema(
    [
        ("auction", pa.int64()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)


def bids(number: int, rows: int = ROWS_PER_FILE) -> pa.RecordBatch:
    """Return the rows of one file."""
    random = np.random.default_rng(number)
    order = np.arange(number * ROWS_PER_FILE, number * ROWS_PER_FILE + rows)
    jitter = random.integers(0, DISORDER_MICROS, rows)
    times = START_MICROS + order * (1_000_000 // EVENTS_PER_SECOND) - jitter
    return pa.RecordBatch.from_arrays(
        [
            pa.array(random.integers(0, 100_000, rows)),
            pa.array(random.integers(0, 1_000_000, rows)),
            pa.array(random.integers(1, 10_000, rows)),
            pa.array(times, pa.timestamp("us")).cast(pa.timestamp("us", "UTC")),
        ],
        schema=SCHEMA,
    )


BIDS = Input("bids", SCHEMA, "ts", bids)
