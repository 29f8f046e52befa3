"""A live stream in files of a folder, with partitions and offsets as Kafka's; no server needed.

`tests/contract/sources` holds it to what Kafka's source is held to, the hand-over included.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from typing_extensions import override

from penstock.connectors.history.handover import Handover
from penstock.connectors.kafka.positions import Held, Start, check_point, start_after
from penstock.core.clock import DurationLike
from penstock.core.schema import StreamSchema
from penstock.graph.logical import OperatorSpec
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.operator import SourceOperator
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState
from penstock.operators.user_functions import source_spec

TOPIC = "topic"


class LiveStream(SourceOperator):
    """Reads `topic` of a folder: line i of `topic-0` is the record at offset i of partition 0."""

    def __init__(self, folder: Path, schema: StreamSchema, *, ends: bool = True) -> None:
        self._folder = folder
        self._schema = schema
        self._ends = ends
        """Whether it ends at what was there when it began."""
        self._start = Start("earliest")

    def write(self, partition: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add records; columns of partition and offset are those of the record."""
        path = self._path(partition)
        at = self._held(partition).end if path.exists() else 0
        with path.open("a") as file:
            for offset, row in enumerate(rows, at):
                place = {"kafka_partition": partition, "kafka_offset": offset}
                file.write(json.dumps({**row, **place}, default=str) + "\n")

    def remove_before(self, partition: int, offset: int) -> None:
        """Forget the records before an offset, as retention does."""
        (self._folder / f"first-{partition}").write_text(str(offset))

    def begin_at(self, handover: Handover) -> None:
        """Begin behind history; records have no timestamp of their own."""
        if handover.kind == "time":
            handover = Handover("time", by=handover.by, skew_micros=None)
        self._start = start_after(handover, None)

    @override
    def name(self) -> str:
        return "live_stream"

    @override
    def output_schema(self) -> StreamSchema:
        return self._schema

    @override
    def poll_interval(self) -> DurationLike:
        return "1s"

    @override
    def check_splits(self, known: Mapping[str, SplitState]) -> None:
        self._look(known)

    @override
    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        starts, held = self._look(known)
        share = max(1, budget.rows // max(1, len(starts)))
        plans, has_more = [], False
        for split, (at, stop) in starts.items():
            upto = min(at + share, held[split].end if stop is None else stop)
            has_more |= upto < (held[split].end if stop is None else stop)
            plans.append(SplitPlan(split, (at, stop), (upto, stop), upto - at))
        return SourcePlan(tuple(plans), is_complete=self._ends, has_more=has_more)

    def _look(
        self, known: Mapping[str, SplitState]
    ) -> tuple[dict[str, tuple[int, int | None]], dict[str, Held]]:
        numbers = sorted(int(p.name.split("-")[1]) for p in self._folder.glob(f"{TOPIC}-*"))
        held = {f"{TOPIC}/{number}": self._held(number) for number in numbers}
        at = {split: self._start.offsets.get(split, 0) for split in held}
        if self._start.kind == "after-time":
            at = {split: place.first for split, place in held.items()}
        if not known and self._start.kind != "earliest":
            check_point(self._start, at, held)
        starts: dict[str, tuple[int, int | None]] = {
            split: (at[split], place.end if self._ends else None)
            for split, place in held.items()
        }
        for split, state in known.items():
            starts[split] = (state.offset[0], state.offset[1])
            if state.ended:
                del starts[split]
        if known and self._ends:
            starts = {split: place for split, place in starts.items() if split in known}
        return starts, held

    @override
    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        for split in ctx.splits:
            (at, stop), (upto, _) = split.start, split.end
            lines = self._lines(int(split.name.rpartition("/")[2]))[at:upto]
            if lines:
                rows = [json.loads(line) for line in lines]
                times = [
                    f.name for f in self._schema.arrow if pa.types.is_timestamp(f.type)
                ]
                for row in rows:
                    for name in times:
                        row[name] = datetime.fromisoformat(row[name])
                batch = pa.RecordBatch.from_pylist(rows, self._schema.arrow)
                collector.collect(batch, split=split.name)
            ctx.advance(split.name, (upto, stop))
            if stop is not None and upto >= stop:
                ctx.end_split(split.name)

    def _held(self, partition: int) -> Held:
        first = self._folder / f"first-{partition}"
        at = int(first.read_text()) if first.exists() else 0
        return Held(at, len(self._lines(partition)))

    def _lines(self, partition: int) -> list[str]:
        return self._path(partition).read_text().splitlines()

    def _path(self, partition: int) -> Path:
        return self._folder / f"{TOPIC}-{partition}"


class LiveTopic:
    """What names a `LiveStream`, as `pen.kafka` names topics."""

    def __init__(self, stream: LiveStream) -> None:
        self.stream = stream

    @property
    def topics(self) -> tuple[str, ...]:
        """The only topic."""
        return (TOPIC,)

    def live_spec(self) -> OperatorSpec:
        """Return the source."""
        return source_spec(self.stream)

    def source_spec(self) -> OperatorSpec:
        """Return the source, which begins at its first offset."""
        return source_spec(self.stream)
