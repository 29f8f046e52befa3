"""Models of windows in plain Python, and small jobs whose results are compared with them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pyarrow as pa
from typing_extensions import override

import penstock as pen
from penstock.core.clock import new_token
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_MICROS
from penstock.operators import ArrowOperator
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.windows.definitions import Window

Row: TypeAlias = Mapping[str, Any]
"""Of `key`, `at` in microseconds and `value`."""
Result: TypeAlias = tuple[Any, int, int, int, int]
"""Key, start, end, count and sum."""


@dataclass
class WindowModel:
    """What a window step should do, epoch by epoch."""

    width: int
    slide: int
    offset: int = 0
    watermark: int | None = None
    late: list[Row] = field(default_factory=list)
    outside: list[Row] = field(default_factory=list)
    _open: dict[tuple[Any, int], list[int]] = field(default_factory=dict)

    def windows_of(self, at: int) -> list[int]:
        """Return where the windows that hold an instant start, looking at each in turn."""
        start = (at - self.offset) // self.slide * self.slide + self.offset
        found = []
        while start > at - self.width:
            found.append(start)
            start -= self.slide
        return found

    def run_epoch(self, rows: Iterable[Row], watermark: int | None) -> list[Result]:
        """Take an epoch's rows, then its watermark; return what closes, sorted."""
        previous = self.watermark
        for row in rows:
            windows = self.windows_of(row["at"])
            still_open = [
                start
                for start in windows
                if previous is None or start + self.width > previous
            ]
            if not windows:
                self.outside.append(row)
            elif not still_open:
                self.late.append(row)
            for start in still_open:
                self._open.setdefault((row["key"], start), []).append(row["value"])
        if watermark is not None:
            self.watermark = watermark
        reached = self.watermark
        if reached is None:
            return []
        closing = [kept for kept in self._open if kept[1] + self.width <= reached]
        return sorted(
            (key, start, start + self.width, len(values), sum(values))
            for key, start in closing
            for values in [self._open.pop((key, start))]
        )

    def end(self) -> list[Result]:
        """Return what is left."""
        return self.run_epoch([], MAX_MICROS)


def batch_windows(
    rows: Sequence[Row], width: int, slide: int, offset: int = 0
) -> list[Result]:
    """Return the windows of all rows, as if they had been known at once."""
    model = WindowModel(width, slide, offset)
    return sorted([*model.run_epoch(rows, None), *model.end()])


@dataclass
class SessionModel:
    """What a session step should do, epoch by epoch."""

    gap: int
    watermark: int | None = None
    late: list[Row] = field(default_factory=list)
    open: dict[Any, list[list[Row]]] = field(default_factory=dict)
    """By key: the rows of each open session."""

    def run_epoch(self, rows: Iterable[Row], watermark: int | None) -> list[Result]:
        """Take an epoch's rows, then its watermark; return what closes, sorted."""
        previous = self.watermark
        for row in rows:
            self._add(row)
        if watermark is not None:
            self.watermark = watermark
        closed = []
        for key, sessions in self.open.items():
            still_open = []
            for members in sessions:
                times = [row["at"] for row in members]
                end = max(times) + self.gap
                if previous is not None and end < previous:
                    self.late += members
                elif self.watermark is not None and end < self.watermark:
                    values = [row["value"] for row in members]
                    closed.append((key, min(times), end, len(values), sum(values)))
                else:
                    still_open.append(members)
            self.open[key] = still_open
        return sorted(closed)

    def _add(self, row: Row) -> None:
        """Bring together what a row connects."""
        apart, joined = [], [row]
        for members in self.open.get(row["key"], []):
            if any(abs(row["at"] - other["at"]) <= self.gap for other in members):
                joined += members
            else:
                apart.append(members)
        self.open[row["key"]] = [*apart, joined]

    def end(self) -> list[Result]:
        """Return what is left."""
        return self.run_epoch([], MAX_MICROS)


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
        watermark_delay: str = "0s",
        parallelism: int = 1,
        splits: int = 1,
        **options: Any,
    ) -> None:
        self.pipeline = pen.Pipeline("windows", parallelism=parallelism)
        source = pen.list_source(list(rows), schema, splits=splits)
        stream: Any = self.pipeline.read(
            "rows", source, event_time="at", watermark_delay=watermark_delay
        )
        cut = (stream.key_by("key") if keyed else stream).window("w", window, **options)
        self.results = cut.aggregate(rows=pen.count(), total=pen.sum("value"))
        self.out, self.late, self.bad = (
            pen.list_sink(f"{name}-{new_token()}") for name in ("out", "late", "bad")
        )
        self.results.write("out", self.out)
        self.results.side_output(pen.LATE).write("late", self.late)
        if options.get("on_bad") == "divert":
            self.results.side_output(pen.BAD).write("bad", self.bad)

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


INSTANT = pa.field("instant", pa.int64())


class Stamp(ArrowOperator):
    """Notes beside each row which instant its epoch has."""

    @override
    def name(self) -> str:
        return "stamp"

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        return replace(inputs[0], arrow=inputs[0].arrow.append(INSTANT))

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        instants = pa.array([ctx.processing_time_micros] * batch.num_rows, pa.int64())
        collector.collect(batch.append_column(INSTANT.name, instants))


def micros(instant: Any) -> int:
    return int(pa.scalar(instant, pa.timestamp("us")).cast(pa.int64()).as_py())
