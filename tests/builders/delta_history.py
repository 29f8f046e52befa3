"""A Delta table with a history: rows that versions add, change, delete, merge and replace."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, WriterProperties, write_deltalake

SMALL_GROUPS = WriterProperties(max_row_group_size=10)
FEED = {"delta.enableChangeDataFeed": "true"}


def numbered(*numbers: int, value: int = 0) -> pa.Table:
    """Return rows with a key `n`, a part that it fixes, and a value."""
    columns = {
        "n": numbers,
        "part": [n % 2 for n in numbers],
        "value": [value] * len(numbers),
    }
    return pa.table(columns, pa.schema([(name, pa.int64()) for name in columns]))


def add(folder: Path, *numbers: int, value: int = 0, **options: Any) -> None:
    """Append rows, in one version, a file per part."""
    write_deltalake(
        str(folder),
        numbered(*numbers, value=value),
        mode=options.pop("mode", "append"),
        partition_by=["part"],
        writer_properties=SMALL_GROUPS,
        **options,
    )


def update(folder: Path, predicate: str | None = None, *, by: int = 1) -> None:
    """Add to the values of rows, in one version."""
    DeltaTable(str(folder)).update(
        {"value": f"value + {by}"}, predicate=predicate, writer_properties=SMALL_GROUPS
    )


def delete(folder: Path, predicate: str) -> None:
    """Delete rows, in one version."""
    DeltaTable(str(folder)).delete(predicate, writer_properties=SMALL_GROUPS)


def merge(folder: Path, *numbers: int, value: int) -> None:
    """Update the rows of these numbers, or insert them; delete those whose number is -1 times one."""
    given = numbered(*map(abs, numbers), value=value).append_column(
        "gone", pa.array([n < 0 for n in numbers])
    )
    merger = DeltaTable(str(folder)).merge(
        given,
        "t.n = s.n",
        source_alias="s",
        target_alias="t",
        writer_properties=SMALL_GROUPS,
    )
    columns = {name: f"s.{name}" for name in ("n", "part", "value")}
    (
        merger.when_matched_delete("s.gone")
        .when_matched_update(columns)
        .when_not_matched_insert(columns)
        .execute()
    )


def make_history(folder: Path, *, has_feed: bool) -> int:
    """Make a table of 40 rows at version 0, and change it; return its last version."""
    add(folder, *range(40), configuration=FEED if has_feed else None)
    update(folder)
    add(folder, *range(40, 70), value=5)
    delete(folder, "n % 7 = 3")
    merge(folder, *range(0, 30, 2), *range(70, 80), *range(-39, -30), value=8)
    DeltaTable(str(folder)).optimize.compact()
    delete(folder, "part = 1")
    add(folder, 1, 3, 5, value=9)
    update(folder, "n % 3 = 0", by=100)
    update(folder, "n % 3 = 0", by=-100)
    add(folder, *range(20, 60), value=77, mode="overwrite")
    update(folder, "n < 40")
    return DeltaTable(str(folder)).version()


def table_of(folder: Path, version: int | None = None) -> Mapping[int, Mapping[str, Any]]:
    """Return the rows of a version by their key."""
    rows = DeltaTable(str(folder), version=version).to_pyarrow_table().to_pylist()
    found = {row["n"]: row for row in rows}
    assert len(found) == len(rows)
    return found
