"""The bids that all comparisons read: made once, the same on every machine.

Auction of 100 k, bidder of 1 M, price, event time at 100 k rows/s with 0.2 s of disorder;
files of 500 k rows.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_FILE = 500_000
FILES, QUICK_FILES, WARM_UP_FILES = 40, 8, 6
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
_FOLDER = Path(__file__).resolve().parent / "results" / "bids"


def bids_folder(*, quick: bool) -> Path:
    """Return a folder with the bids; they are written on first use."""
    return _folder_of(QUICK_FILES if quick else FILES)


def warm_up_folder() -> Path:
    """Return a folder with the first few of the bids."""
    return _folder_of(WARM_UP_FILES)


def _folder_of(count: int) -> Path:
    folder = _FOLDER / f"{count}-files"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / f"bids-{number:03}.parquet"
        if not path.exists():
            unfinished = path.with_suffix(".part")
            pq.write_table(pa.Table.from_batches([bids(number)]), unfinished)
            unfinished.rename(path)
    return folder


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
