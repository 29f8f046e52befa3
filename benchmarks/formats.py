"""How fast records become rows and rows records, per core, beside Polars and pyarrow.

All read the same bytes and make the same columns. Peers get them as one text, which spares
them the work of finding out which record a row comes from and which record is bad. Rates are per
second of processor time, whatever number of threads spends it.
"""

import io
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from penstock.connectors.formats.registry import record_format

COLUMNS: list[tuple[str, pa.DataType]] = [
    ("auction", pa.int64()),
    ("bidder", pa.int64()),
    ("price", pa.float64()),
    ("channel", pa.string()),
    ("at", pa.int64()),
]
SCHEMA = pa.schema(COLUMNS)
FRAME = {
    "auction": pl.Int64,
    "bidder": pl.Int64,
    "price": pl.Float64,
    "channel": pl.String,
    "at": pl.Int64,
}
Sides: TypeAlias = Mapping[str, Callable[[], object]]
"""What is measured, by who does it."""
_LEAST_SHARES = {"decode json": 0.8, "decode csv": 0.4}
"""Of what pyarrow reaches on one text: records are joined to it and checked one against the other,
and CSV also for quotes in wrong places."""


def run(*, quick: bool) -> list[dict[str, object]]:
    """Decode and encode records of about 100 bytes; return a row for each way."""
    row_count = 50_000 if quick else 500_000
    rounds = 3 if quick else 7
    rows = _rows(row_count)
    results: list[dict[str, object]] = []
    for name, peers in (("json", _json_peers), ("csv", _csv_peers)):
        format_ = record_format(name, SCHEMA)
        values: Any = format_.encode(rows)
        text = b"\n".join(values.to_pylist()) + b"\n"
        decoding: Sides = {"penstock": partial(format_.decode, values), **peers(text)}
        assert format_.decode(values).rows.num_rows == row_count
        results += _measured(f"decode {name}", row_count, len(text), decoding, rounds)
        encoding: Sides = {
            "penstock": partial(format_.encode, rows),
            **_writers(name, rows),
        }
        results += _measured(f"encode {name}", row_count, len(text), encoding, rounds)
    return results + _others(rows, rounds)


def _others(rows: pa.Table, rounds: int) -> list[dict[str, object]]:
    """Measure what no peer has a form of: changes, tombstones, and records that are bad."""
    count = rows.num_rows
    values: Any = record_format("json", SCHEMA).encode(rows)
    bad = values.to_pylist()
    bad[:: max(1, count // 10)] = [b"oops"] * len(bad[:: max(1, count // 10)])
    registry = pa.array([b"\x00\x00\x00\x00\x07" + value for value in values.to_pylist()])
    upserts = record_format("upsert", SCHEMA, {"key": "auction"})
    deleted = pa.array(np.arange(count) % 4 == 0)
    changed = rows.append_column("deleted", deleted).cast(upserts.schema)
    keys: Any = upserts.encode_keys(changed)
    debezium = record_format("debezium", SCHEMA)
    after = pa.StructArray.from_arrays(
        [column.combine_chunks() for column in rows.columns], fields=list(SCHEMA)
    )
    ops = pa.repeat(pa.scalar("c"), count)
    columns: list[Any] = [pa.nulls(count, after.type), after, ops]
    changes = pa.Table.from_arrays(columns, schema=debezium.schema)
    json_format = record_format("json", SCHEMA)
    narrow = record_format("json", pa.schema(COLUMNS[:-1]), {"on_new": "bad"})
    by_rules = record_format("debezium", SCHEMA, {"on_new": "bad"})
    cast = record_format("json", SCHEMA, {"on_wider": "cast"})
    at, end = (b'"at":', b'"at":"'), (b"}", b'"}')
    wide = pa.array([v.replace(*at).replace(*end) for v in values.to_pylist()])
    work: dict[str, tuple[Any, Callable[[], object]]] = {
        "decode json, ten records bad": (
            values,
            partial(json_format.decode, pa.array(bad)),
        ),
        "decode json behind a registry's header": (
            registry,
            partial(json_format.decode, registry),
        ),
        "decode json, a column cast": (wide, partial(cast.decode, wide)),
        "decode upserts": (values, partial(upserts.decode, upserts.encode(changed), keys)),
        "decode json, all with a new column": (values, partial(narrow.decode, values)),
        "decode debezium": (values, partial(debezium.decode, debezium.encode(changes))),
        "decode debezium, by rules": (
            values,
            partial(by_rules.decode, debezium.encode(changes)),
        ),
    }
    return [
        row
        for name, (data, decode) in work.items()
        for row in _measured(name, count, data.nbytes, {"penstock": decode}, rounds)
    ]


def _rows(count: int) -> pa.Table:
    rng = np.random.default_rng(1)
    names = np.array(["web", "mobile", "partner-7", "é"])
    columns: list[Any] = [
        rng.integers(0, 1_000, count),
        rng.integers(0, 1_000_000, count),
        rng.random(count) * 1_000,
        names[rng.integers(0, 4, count)],
        1_700_000_000_000_000 + rng.integers(0, 10**12, count),
    ]
    return pa.Table.from_arrays([*map(pa.array, columns)], schema=SCHEMA)


def _json_peers(text: bytes) -> dict[str, Callable[[], object]]:
    options = pa_json.ParseOptions(explicit_schema=SCHEMA)
    block = pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    lines = pl.Series(text.decode().splitlines())
    return {
        "pyarrow": lambda: pa_json.read_json(
            io.BytesIO(text), read_options=block, parse_options=options
        ),
        "polars": lambda: pl.read_ndjson(text, schema=FRAME),
        "polars, a column": lambda: lines.str.json_decode(pl.Struct(FRAME)),
    }


def _csv_peers(text: bytes) -> dict[str, Callable[[], object]]:
    read = pa_csv.ReadOptions(
        use_threads=False, block_size=len(text) + 1, column_names=SCHEMA.names
    )
    convert = pa_csv.ConvertOptions(column_types=SCHEMA)
    return {
        "pyarrow": lambda: pa_csv.read_csv(
            io.BytesIO(text), read_options=read, convert_options=convert
        ),
        "polars": lambda: pl.read_csv(text, has_header=False, schema=FRAME),
    }


def _writers(name: str, rows: pa.Table) -> dict[str, Callable[[], object]]:
    frame: Any = pl.from_arrow(rows)
    if name == "json":
        return {"polars": lambda: frame.write_ndjson(io.BytesIO())}
    return {
        "pyarrow": lambda: pa_csv.write_csv(rows, io.BytesIO()),
        "polars": lambda: frame.write_csv(io.BytesIO()),
    }


def _measured(
    what: str,
    row_count: int,
    size_bytes: int,
    sides: Sides,
    rounds: int,
) -> list[dict[str, object]]:
    """Run all sides in turn, and compare the best round of each."""
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for side, work in sides.items():
            started = time.process_time()
            work()
            best[side] = min(best[side], time.process_time() - started)
    rows: list[dict[str, object]] = [
        {
            "name": f"{what}: {side}",
            "row_count": row_count,
            "bytes_per_row": round(size_bytes / row_count, 1),
            "rows_per_core_second": round(row_count / seconds),
        }
        for side, seconds in best.items()
    ]
    least = _LEAST_SHARES.get(what)
    if least is not None:
        share = round(best["pyarrow"] / best["penstock"], 2)
        rows[0] |= {
            "target": f"at least {least} of what pyarrow reaches on one text",
            "ratio": share,
            "ok": share >= least,
        }
    return rows


if __name__ == "__main__":
    for result in run(quick=False):
        print(json.dumps(result))
