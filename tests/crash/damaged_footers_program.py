"""Reads Parquet files with one flipped bit each, in a process that may be aborted by one.

Before each file it prints the name of its shape and the bit, at the end "survived" and how
often a file was read and refused.
"""

import struct
import sys
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.files.formats import Allowance, FileOffset, SourceFile
from penstock.connectors.files.parquet import ParquetFormat
from penstock.errors import UserError
from penstock.state.storage.memory import MemoryStore

_ALL = Allowance(1 << 50, 1 << 50, is_first=True)


def a_file(columns: dict[str, Any], **options: Any) -> bytes:
    """Return a Parquet file; its footer does not repeat the columns in Arrow's form."""
    out = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), out, store_schema=False, **options)
    return out.getvalue().to_pybytes()


def shapes() -> dict[str, bytes]:
    """Return files of different shapes, each with a small footer."""
    times = pa.array([1, None], pa.timestamp("us", "UTC"))
    money = pa.array([Decimal("1.20"), None], pa.decimal128(10, 2))
    index = {"write_page_index": True, "write_page_checksum": True, "row_group_size": 2}
    return {
        "numbers and text": a_file({"n": [1, 2], "s": ["a", None]}, compression="none"),
        "times and decimals": a_file({"t": times, "d": money}, version="1.0"),
        "lists and structs": a_file({"l": [[1], []], "s": [{"x": "a"}, None]}),
        "row groups": a_file({"n": [1, 2, 3]}, compression="zstd", **index),
        "no rows": a_file({"n": pa.array([], pa.int64())}),
    }


def read_file(data: bytes, schema: pa.Schema | None) -> str:
    """Infer, plan and read a file as a job does; return what became of it."""
    file = SourceFile(MemoryStore({"a.parquet": data}), "a.parquet", len(data))
    try:
        found = ParquetFormat.infer(file)
        format_ = ParquetFormat(schema or found, ignores_extra=False)
        start = FileOffset(len(data))
        reach = format_.reach(file, start, _ALL)
        for _ in format_.read(file, start, reach.end if reach else 0):
            pass
    except UserError as error:
        return "refused" if error.context["path"] == "a.parquet" else "without a name"
    return "read"


def main() -> None:
    """Flip every bit of the footers, and of their lengths."""
    outcomes = Counter[str]()
    for shape, whole in shapes().items():
        (length,) = struct.unpack("<i", whole[-8:-4])
        schema = ParquetFormat.infer(SourceFile(MemoryStore({"a": whole}), "a", len(whole)))
        for bit in range((len(whole) - 8 - length) * 8, len(whole) * 8):
            data = bytearray(whole)
            data[bit // 8] ^= 1 << bit % 8
            sys.stdout.write(f"{shape}, bit {bit}\n")
            sys.stdout.flush()
            # Without a schema a damaged name or type is taken for the real one.
            for expected in (schema, None):
                outcomes[read_file(bytes(data), expected)] += 1
    sys.stdout.write(f"survived {dict(outcomes)}\n")


if __name__ == "__main__":
    main()
