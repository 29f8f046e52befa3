"""Small jobs with windows: rows in, results and side outputs as plain tuples out."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import penstock as ps
from penstock.api.windowing import Window
from penstock.core.clock import new_token

SECOND = 1_000_000
ROWS = pa.schema([("key", pa.int64()), ("at", pa.timestamp("us")), ("value", pa.int64())])


class WindowJob:
    """A pipeline that counts and sums by window, its results in lists of its own."""

    def __init__(
        self,
        rows: Sequence[dict[str, Any]],
        window: Window,
        *,
        schema: pa.Schema = ROWS,
        keyed: bool = True,
        lateness: str = "0s",
        parallelism: int = 1,
        splits: int = 1,
        **options: Any,
    ) -> None:
        self.pipeline = ps.Pipeline("windows", parallelism=parallelism)
        source = ps.list_source(list(rows), schema, splits=splits)
        stream: Any = self.pipeline.read("rows", source, event_time="at", lateness=lateness)
        cut = (stream.key_by("key") if keyed else stream).window("w", window, **options)
        self.results = cut.aggregate(rows=ps.count(), total=ps.sum("value"))
        self.out, self.late, self.bad = (
            ps.list_sink(f"{name}-{new_token()}") for name in ("out", "late", "bad")
        )
        self.results.write("out", self.out)
        self.results.side_output(ps.LATE).write("late", self.late)
        if options.get("bad_times") == "divert":
            self.results.side_output(ps.BAD).write("bad", self.bad)

    def found(self) -> list[tuple[Any, int, int, int, int]]:
        """Return key, start and end in microseconds, count and sum, sorted."""
        rows = [
            (
                row.get("key"),
                micros(row["window_start"]),
                micros(row["window_end"]),
                row["rows"],
                row["total"],
            )
            for row in self.out.rows()
        ]
        return sorted(rows, key=repr) if any(r[0] is None for r in rows) else sorted(rows)


def micros(instant: Any) -> int:
    return int(pa.scalar(instant, pa.timestamp("us")).cast(pa.int64()).as_py())
