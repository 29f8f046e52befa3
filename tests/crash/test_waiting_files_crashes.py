"""Files of several epochs under every failure: who reads all files of the folder sees each row once.

Such a reader knows no lists: it globs the folder, at every moment, also while a commit is under
way or was cut off. Rows that it has seen stay, and none comes twice.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as pen
from penstock.connectors.files.committed import read_committed
from penstock.state.storage.memory import MemoryStore
from penstock.testing import (
    CUT,
    STORAGE_FAULTS,
    Call,
    CrashError,
    Fault,
    FaultMode,
    FaultyStore,
    LocalJob,
    ScriptedSource,
)
from tests.builders.files_job import parts_in, paths_in, sink_on
from tests.builders.profile import a_start, by_profile

CASES = by_profile(default=10, ci=25, nightly=1_000_000)
PARALLELISMS = (2, 1, 3)
EPOCHS = 6
OPTIONS: dict[str, dict[str, Any]] = {
    "by-size": {"min_bytes": 1_500},
    "by-delay": {"visible_after": timedelta(microseconds=3)},
}


def numbers_of(epoch: int) -> list[int]:
    return [*range(epoch * 100, epoch * 100 + 6)]


ALL = [n for epoch in range(EPOCHS) for n in numbers_of(epoch)]


class GlobbedJob:
    """A job that writes files of several epochs, with a reader that globs them all the time."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.inner = MemoryStore()
        self.output = FaultyStore(self.inner)
        spec, registry = sink_on(lambda _url: self.output, **options)
        script = {
            str(split): [
                step
                for epoch in range(EPOCHS)
                for step in ([{"n": n} for n in numbers_of(epoch)[split::2]], CUT)
            ]
            for split in (0, 1)
        }
        pipeline = pen.Pipeline("globbed", registry=registry)
        pipeline.read("rows", ScriptedSource(script)).write("out", spec)
        self.job = LocalJob(pipeline, registry=registry)
        self.seen: set[int] = set()

    def run(self, *faults: Fault, parallelism: int = 2) -> None:
        watch = Fault(FaultMode.DELAY, at=None, hook=self.look)
        self.output = FaultyStore(self.inner, *faults, watch)
        self.job.run(parallelism=parallelism)

    def look(self, call: Call | None = None) -> None:
        """Read all files that do not begin with `_`, as other engines do."""
        del call
        found: list[int] = []
        for path in parts_in(self.inner):
            data = self.inner.read(path)
            assert data is not None
            rows: list[Any] = pq.read_table(pa.BufferReader(data)).column("n").to_pylist()
            found += rows
        assert len(found) == len(set(found)), "a row is there twice"
        assert self.seen <= set(found), "a row has vanished"
        self.seen = set(found)

    def finish(self, number: int) -> None:
        self.output.deliver_late()
        self.run(parallelism=PARALLELISMS[number % len(PARALLELISMS)])
        self.output.deliver_late()
        self.look()
        assert sorted(self.seen) == ALL
        listed = sorted(row["n"] for row in read_committed(self.inner).to_pylist())
        assert listed == ALL


def cases(calls: int) -> Iterator[tuple[int, Fault]]:
    every = [
        replace(fault, at=at) for at in range(1, calls + 1) for fault in STORAGE_FAULTS
    ]
    step = max(1, len(every) // CASES) | 1
    for number in range(a_start(step), len(every), step):
        yield number, every[number]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_whoever_reads_all_files_sees_every_row_once(options: dict[str, Any]) -> None:
    whole = GlobbedJob(options)
    whole.run()
    whole.look()
    assert sorted(whole.seen) == ALL
    assert 1 < len(parts_in(whole.inner)) < EPOCHS
    assert paths_in(whole.inner, "_staging") == []
    died = 0
    for number, fault in cases(len(whole.output.calls)):
        job = GlobbedJob(options)
        try:
            job.run(fault)
        except CrashError:
            died += 1
        job.finish(number)
    assert died > 0


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_job_that_dies_at_every_call_shows_every_row_once(
    options: dict[str, Any],
) -> None:
    job = GlobbedJob(options)
    for at in range(1, 1_000):
        mode = (FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER)[at % 2]
        try:
            job.run(Fault(mode, at=at), parallelism=PARALLELISMS[at % len(PARALLELISMS)])
            break
        except CrashError:
            job.output.deliver_late()
    assert at > 5
    job.finish(0)
