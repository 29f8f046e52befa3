"""Concatenated sources in the contract suite: history in files, and every kind of live side.

The first write is history; the others are live. What is history is in the live stream as well, in
front of the hand-over point, and the files have rows behind it: neither must come twice.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typing_extensions import override

import penstock as pen
from penstock.core.schema import StreamSchema
from penstock.graph.logical import OperatorSpec
from tests.builders.graphs import schema_of
from tests.builders.kafka_topics import TestTopic
from tests.builders.live_stream import LiveStream, LiveTopic
from tests.contract.sources.built_in_sources import JsonLinesFiles, ParquetFiles, drifted
from tests.contract.sources.source_under_test import (
    EPOCH,
    SCHEMA,
    Drift,
    Line,
    SourceUnderTest,
    row_of,
)

PARTITIONS = 2
PLACED = schema_of(
    **{field.name: field.type for field in SCHEMA},
    kafka_partition=pa.int32(),
    kafka_offset=pa.int64(),
)


class ConcatUnderTest(SourceUnderTest):
    """A source of two sides."""

    smallest_piece = ParquetFiles.smallest_piece
    is_bound_at_first = False  # live ends at what is there when it begins

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._old = folder / "old"
        self._old.mkdir()
        self._history = ParquetFiles(self._old)
        self._point: int | None = None

    @override
    def write(self, numbers: Sequence[int]) -> None:
        if self._point is None:
            self._point = numbers[-1] + 1
            self.write_history(numbers)
        self.write_live(numbers)

    @override
    def spec(self, *, follows: bool, diverts_bad: bool = False) -> OperatorSpec:
        if self._point is None:
            # There is no history without a file.
            self._point = 0
            self.write_history([])
        return self.concat(follows=follows, diverts_bad=diverts_bad)

    @abstractmethod
    def concat(self, *, follows: bool, diverts_bad: bool) -> OperatorSpec:
        """Return the source."""

    @abstractmethod
    def write_history(self, numbers: Sequence[int]) -> None:
        """Add rows to history."""

    @abstractmethod
    def write_live(self, numbers: Sequence[int]) -> None:
        """Add rows to the live side."""


class ConcatFiles(ConcatUnderTest):
    """Files after files, by an instant."""

    name = "files then files"
    leaves_rows_out = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "new").mkdir()
        self._live = JsonLinesFiles(folder / "new")

    @override
    def write_history(self, numbers: Sequence[int]) -> None:
        # Rows behind the point are live's.
        behind = [(self._point or 0) + 1_000]
        self._history.write([*numbers, *behind])

    @override
    def write_live(self, numbers: Sequence[int]) -> None:
        self._live.write(numbers)

    @override
    def write_bad(self, count: int) -> None:
        self._live.write_bad(count)

    @override
    def write_drifted(self, numbers: Sequence[int], drift: Drift) -> None:
        self._live.write_drifted(numbers, drift)

    @override
    def concat(self, *, follows: bool, diverts_bad: bool) -> OperatorSpec:
        stream = StreamSchema(SCHEMA, time_column="at")
        on_bad: Any = "divert" if diverts_bad else "fail"
        return pen.concat_sources(
            history=pen.files(self._old / "*.parquet", schema=stream, in_time_order=True),
            live=pen.files(
                self.folder / "new/*.jsonl",
                schema=stream,
                discover=self.poll if follows else False,
                in_time_order=True,
                on_bad=on_bad,
            ),
            at=EPOCH + timedelta(seconds=self._point or 0),
            by="at",
        ).source_spec()


class ConcatOffsets(ConcatUnderTest):
    """Files after a stream of partitions, by the offsets in the files."""

    name = "files then offsets"
    cannot: ClassVar[Mapping[Line, str]] = {
        Line.BAD_ROWS: "its live side stands for Kafka, whose own tests have bad rows",
        Line.DRIFT: "its live side stands for Kafka, whose own tests have drift",
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "live").mkdir()
        self.stream(follows=True).write(0, [])
        self.stream(follows=True).write(1, [])

    def stream(self, *, follows: bool) -> LiveStream:
        """Return the live side."""
        stream = StreamSchema(PLACED, time_column="at")
        return LiveStream(self.folder / "live", stream, ends=not follows)

    @override
    def write_history(self, numbers: Sequence[int]) -> None:
        places = [0] * PARTITIONS
        rows = []
        for n in numbers:
            place = {
                "kafka_partition": n % PARTITIONS,
                "kafka_offset": places[n % PARTITIONS],
            }
            rows.append({**row_of(n), **place})
            places[n % PARTITIONS] += 1
        write_placed(self._old, rows)

    @override
    def write_live(self, numbers: Sequence[int]) -> None:
        for partition in range(PARTITIONS):
            rows = [row_of(n) for n in numbers if n % PARTITIONS == partition]
            self.stream(follows=True).write(partition, rows)

    @override
    def concat(self, *, follows: bool, diverts_bad: bool) -> OperatorSpec:
        return pen.concat_sources(
            history=placed_files(self._old), live=LiveTopic(self.stream(follows=follows))
        ).source_spec()

    @override
    def order_group(self, number: int) -> int:
        return number % PARTITIONS


class ConcatKafka(ConcatOffsets):
    """Files after a topic of Kafka, by the offsets in the files."""

    name = "files then kafka"
    cannot: ClassVar[Mapping[Line, str]] = {}

    def __init__(self, folder: Path, topic: TestTopic) -> None:
        super().__init__(folder)
        self.topic = topic
        self._is_open = True

    @override
    @classmethod
    def make(cls, folder: Path, request: pytest.FixtureRequest) -> Self:
        servers = request.getfixturevalue("kafka").bootstrap
        return cls(folder, TestTopic.create(servers, partitions=PARTITIONS))

    @override
    def write_live(self, numbers: Sequence[int]) -> None:
        self.topic.produce_dealt([row_of(n) for n in numbers], numbers, PARTITIONS)

    @override
    def write_bad(self, count: int) -> None:
        self.topic.produce([b"{no row}"] * count)

    @override
    def write_drifted(self, numbers: Sequence[int], drift: Drift) -> None:
        self.topic.produce_dealt(drifted(numbers, drift), numbers, PARTITIONS)

    @override
    def concat(self, *, follows: bool, diverts_bad: bool) -> OperatorSpec:
        return pen.concat_sources(
            history=placed_files(self._old),
            live=pen.kafka(
                self.topic.name,
                servers=self.topic.servers,
                schema=StreamSchema(SCHEMA, time_column="at"),
                metadata=["partition", "offset"],
                start="after-history",
                end=None if follows else "latest",
                on_bad="divert" if diverts_bad else "fail",
            ),
        ).source_spec()

    @override
    def close(self) -> None:
        if self._is_open:
            self.topic.delete()
        self._is_open = False


def write_placed(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a file of rows with their partitions and offsets."""
    out = pa.Table.from_pylist([dict(row) for row in rows], PLACED)
    pq.write_table(
        out,
        folder / f"{len(list(folder.iterdir())):04}.parquet",
        row_group_size=ParquetFiles.smallest_piece,
    )


def placed_files(folder: Path) -> Any:
    """Return these files as history."""
    stream = StreamSchema(PLACED, time_column="at")
    return pen.files(folder / "*.parquet", schema=stream, in_time_order=True)
