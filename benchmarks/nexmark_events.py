"""The events of Nexmark that its suite reads: made once, all kinds mixed as they came.

A row is an event. `event_type` says of which kind (0 person, 1 auction, 2 bid); the columns of
other kinds are null. Kinds share columns of one name: `id` is a person's or an auction's. So a
query reads the columns it needs, of all events, and takes its kinds out.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from examples.nexmark.site import EVENT_TYPES, KINDS, Kind
from penstock.connectors.nexmark.draws import EventKind
from penstock.connectors.nexmark.rows import SCHEMAS, NexmarkConfig, make_batch

EVENTS_PER_FILE = 500_000
FILES, PEER_FILES, QUICK_FILES = 20, 4, 4
COLUMNS: Mapping[Kind, Sequence[str]] = {
    kind: SCHEMAS[EventKind(kind)].arrow.names for kind in KINDS
}
"""The columns of each kind."""
START_MICROS = 1_436_918_400_000_000
"""15 July 2015, where the standard benchmark begins."""
_INSTANT = pa.timestamp("us", "UTC")
_FOLDER = Path(__file__).resolve().parent / "results" / "nexmark"


def schema_of(names: Sequence[str] | None = None) -> pa.Schema:
    """Return the columns of mixed events: the type and time of each, and those that are named."""
    found: dict[str, pa.DataType] = {"event_type": pa.int8(), "date_time": _INSTANT}
    for kind in KINDS:
        for field in SCHEMAS[EventKind(kind)].arrow:
            wanted = names is None or field.name in names
            if wanted and field.name not in found:
                is_instant = pa.types.is_timestamp(field.type)
                found[field.name] = _INSTANT if is_instant else field.type
    return pa.schema(list(found.items()))


def events_folder(files: int) -> Path:
    """Return a folder with so many files of events; they are written on first use."""
    folder = _FOLDER / f"{files}-files"
    folder.mkdir(parents=True, exist_ok=True)
    # Arrow and NumPy let go of the interpreter for most of it.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda number: _write(folder, number), range(files)))
    return folder


def _write(folder: Path, number: int) -> None:
    path = folder / f"events-{number:03}.parquet"
    if not path.exists():
        unfinished = path.with_suffix(".part")
        start = number * EVENTS_PER_FILE
        pq.write_table(events(start, start + EVENTS_PER_FILE), unfinished)
        # The peer takes files in the order of their times, which may be written in another one.
        os.utime(unfinished, (number, number))
        unfinished.rename(path)


def events(start: int, end: int) -> pa.Table:
    """Return the events `[start, end)` of the standard sequence."""
    tables, places = [], []
    for kind in KINDS:
        config = NexmarkConfig(kind=kind, start_micros=START_MICROS)
        emitted, size = config.sequence.emitted, config.sequence.group_size
        numbers = np.arange(start, end)
        position = numbers % size
        numbers = numbers[(position >= emitted.start) & (position < emitted.stop)]
        rows = make_batch(config, numbers, SCHEMAS[EventKind(kind)].arrow)
        types = np.full(len(numbers), EVENT_TYPES[kind], np.int8)
        tables.append(
            pa.Table.from_batches([rows]).append_column("event_type", pa.array(types))
        )
        places.append(numbers)
    schema = schema_of()
    mixed = pa.concat_tables(tables, promote_options="permissive").select(schema.names)
    return mixed.cast(schema).take(np.argsort(np.concatenate(places)))
