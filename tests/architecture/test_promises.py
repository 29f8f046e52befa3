"""What connectors cannot promise is told to users as it is declared to the contract suites."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from tests.architecture.project import ROOT, table_rows
from tests.contract.sinks import conftest as sinks
from tests.contract.sinks import delta_sink, kafka_sinks, shipped_sinks
from tests.contract.sinks.sink_under_test import Line as SinkLine
from tests.contract.sources import built_in_sources, concat_sources, delta_source
from tests.contract.sources.conftest import SOURCES
from tests.contract.sources.source_under_test import Line as SourceLine

Line: TypeAlias = SinkLine | SourceLine
PAGE = ROOT / "docs/connectors/index.md"
COLUMNS = ("", "What it cannot", "Instead")
NAMES: Mapping[type[Any], tuple[str, ...]] = {
    built_in_sources.TextFiles: ('`pen.files(format="text")`',),
    built_in_sources.ListUnderTest: ("`pen.list_source`",),
    built_in_sources.ImpulseUnderTest: ("`pen.impulse`",),
    built_in_sources.NexmarkUnderTest: ("`pen.nexmark`",),
    delta_source.DeltaUnderTest: ("`pen.delta` in `read`",),
    delta_source.DeltaChangelogUnderTest: ("`pen.delta` in `read`",),
    # Its live side is a connector of the tests alone.
    concat_sources.ConcatOffsets: (),
    shipped_sinks.ListUnderTest: ("`pen.list_sink`",),
    shipped_sinks.StdoutUnderTest: ("`pen.stdout`",),
    kafka_sinks.KafkaUnderTest: ("`pen.kafka` in `write`",),
    kafka_sinks.RepeatingKafkaUnderTest: (
        '`pen.kafka(delivery="at_least_once")`',
        "`pen.kafka` in `write`",
    ),
}
"""What the page calls those that cannot promise every line: its own name, then one that includes it."""
TELLS: Mapping[str, frozenset[Line]] = {
    "take rows back when a job is restored to an older epoch": frozenset(
        {SinkLine.RESTORE}
    ),
    "show a large epoch at one instant": frozenset({SinkLine.WHOLE_EPOCHS}),
    "deliver once": frozenset({SinkLine.ONCE}),
    "set bad rows aside": frozenset({SourceLine.BAD_ROWS}),
    "know times, or other columns": frozenset({SourceLine.EVENT_TIME, SourceLine.DRIFT}),
    "meet bad rows or other schemas": frozenset({SourceLine.BAD_ROWS, SourceLine.DRIFT}),
    "wait for rows that are still to come": frozenset({SourceLine.IDLE}),
    "outlive its process": frozenset(),  # no line of a suite, which is one process
}
"""What the page says of the lines."""
NOT_IN_A_SUITE = {"`pen.for_each_epoch`"}


def kinds() -> Iterator[type[Any]]:
    """Yield every class that a contract suite is run on."""
    yield from (kind for kind, _ in SOURCES)
    for found in vars(sinks).values():
        if isinstance(found, type) and hasattr(found, "cannot"):
            yield found


def told() -> set[tuple[str, Line]]:
    """Return what the page says that each cannot promise."""
    return {
        (name, line)
        for row in table_rows(PAGE.read_text(encoding="utf-8"), COLUMNS)
        for name in row[""].split(", ")
        for line in TELLS[re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", row["What it cannot"])]
        if name not in NOT_IN_A_SUITE
    }


def test_the_suites_are_run_on_connectors_of_both_directions() -> None:
    assert {shipped_sinks.FilesUnderTest, delta_sink.MergedDeltaUnderTest} < set(kinds())
    assert {built_in_sources.ParquetFiles, *NAMES} < set(kinds())


def test_every_line_that_a_connector_cannot_promise_is_told_to_users() -> None:
    silent = [
        f"{kind.__name__}: {line.value}"
        for kind in kinds()
        for line in kind.cannot
        if NAMES[kind] and not any((name, line) in told() for name in NAMES[kind])
    ]
    assert silent == []


def test_nothing_is_told_that_a_connector_does_not_declare() -> None:
    declared = {
        (name, line)
        for kind in kinds()
        for name in NAMES.get(kind, ())[:1]
        for line in kind.cannot
    }
    assert told() - declared == set()
