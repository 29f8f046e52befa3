"""Every source of the contract suite; connectors add themselves here."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.contract.sources.built_in_sources import (
    CompressedFiles,
    CsvFiles,
    DebeziumFiles,
    ImpulseUnderTest,
    JsonLinesFiles,
    ListUnderTest,
    NexmarkUnderTest,
    ParquetFiles,
    TextFiles,
)
from tests.contract.sources.concat_sources import (
    ConcatFiles,
    ConcatKafka,
    ConcatOffsets,
)
from tests.contract.sources.delta_source import DeltaChangelogUnderTest, DeltaUnderTest
from tests.contract.sources.kafka_source import KafkaUnderTest
from tests.contract.sources.source_under_test import Line, SourceUnderTest

Fresh: TypeAlias = Callable[..., SourceUnderTest]
SOURCES: list[tuple[type[SourceUnderTest], Any]] = [
    (ParquetFiles, ()),
    (JsonLinesFiles, ()),
    (CompressedFiles, ()),
    (CsvFiles, ()),
    (TextFiles, ()),
    (DebeziumFiles, ()),
    (ListUnderTest, ()),
    (ImpulseUnderTest, ()),
    (NexmarkUnderTest, ()),
    (DeltaUnderTest, ()),
    (DeltaChangelogUnderTest, ()),
    (KafkaUnderTest, pytest.mark.kafka),
    (ConcatFiles, ()),
    (ConcatOffsets, ()),
    (ConcatKafka, pytest.mark.kafka),
]
"""The sources, and the marks of their tests, such as that of the server they need."""


@pytest.fixture(
    params=[pytest.param(kind, id=kind.name, marks=marks) for kind, marks in SOURCES]
)
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fresh]:
    """Makes a new source; the lines of the contract that a test is about are its arguments."""
    kind: type[SourceUnderTest] = request.param
    made: list[SourceUnderTest] = []
    numbers = count()

    def make(*lines: Line) -> SourceUnderTest:
        for line in lines:
            if line in kind.cannot:
                pytest.skip(
                    f"{kind.name} does not promise {line.value}: {kind.cannot[line]}"
                )
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        made.append(kind.make(folder, request))
        return made[-1]

    yield make
    for source in made:
        source.close()
