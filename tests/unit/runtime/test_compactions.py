"""Compactions: ordered behind an epoch, swapped in by a later one, and never needed for truth."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.ids import OperatorId
from penstock.core.settings import CompactionSettings
from penstock.graph.logical import Exchange, WatermarkSpec
from penstock.operators.context import OperatorContext
from penstock.runtime.driver.outcomes import EpochRan
from penstock.runtime.driver.session import JobSession
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.plan.executor import CompactionOrder
from penstock.runtime.task.task import Worker
from penstock.state.files.cache import FileCache
from penstock.state.files.state_file import StateFile
from penstock.state.tables.operator_tables import is_overfull
from penstock.state.tables.specs import (
    TableSpec,
    TimeDomain,
    global_table,
    keyed_table,
    time_keyed_table,
)
from penstock.state.tables.table import files_of
from tests.builders.driven_job import SECOND, DrivenJob
from tests.builders.scripted import BY_USER, SCHEMA, NumberedSource, Scripted, link

NOTES = global_table("notes", str, str)
NEWEST = keyed_table("newest", SCHEMA, key_columns=["user"])


def remember(batch: pa.RecordBatch, ctx: OperatorContext, *_: object) -> None:
    ctx.get_keyed_state("newest").put(batch.slice(batch.num_rows - 1))


def a_job(
    table: TableSpec = NEWEST, process: Callable[..., None] = remember, **compaction: Any
) -> DrivenJob:
    """A job of one operator that keeps something in one table."""
    job = DrivenJob(compaction=CompactionSettings(**compaction))
    job.add("read", lambda: NumberedSource({"s": range(60)}))
    job.add(
        "keep",
        lambda: Scripted(is_sink=True, tables=[table], process_batch=process),
        BY_USER,
    )
    job.join(link("read", "keep", exchange=Exchange.BY_KEY))
    return job


def run(session: JobSession, epochs: int) -> list[EpochRan]:
    found = []
    for _ in range(epochs):
        ran = session.run_epoch()
        assert isinstance(ran, EpochRan)
        found.append(ran)
    return found


def listed_files(session: JobSession, operator: str) -> list[StateFile]:
    """All files of an operator that the newest checkpoint names."""
    return [
        file
        for part in session.state.metadata[OperatorId(operator)].values()
        for name, table in part.table_checkpoint_metadata.items()
        for file in files_of(table, table=name)
    ]


def test_files_are_merged_and_swapped_in_by_a_later_epoch() -> None:
    session = a_job(min_files=2).session()
    swapped = [ran.progress.compactions for ran in run(session, 8)]
    assert swapped[0] == 0
    assert sum(swapped) > 0


def test_only_the_generations_that_are_set_are_merged() -> None:
    session = a_job(min_files=2, compact_generations=(0,)).session()
    run(session, 9)
    assert {file.level for file in listed_files(session, "keep")} <= {0, 1}
    session = a_job(min_files=2).session()
    run(session, 9)
    assert max(file.level for file in listed_files(session, "keep")) > 1


def test_a_merge_that_an_epoch_waits_for_takes_any_generation() -> None:
    session = a_job(min_files=2, max_runs=2, compact_generations=(7,)).session()
    outcomes = run(session, 9)
    assert any(ran.progress.waited_for_compaction for ran in outcomes)
    for part in session.state.metadata[OperatorId("keep")].values():
        assert not is_overfull(part, 3)


def test_a_job_without_compactions_holds_the_same() -> None:
    states = []
    for min_files in (2, 1_000):
        job = a_job(min_files=min_files)
        run(job.session(), 9)
        seen: list[Any] = []

        def look(batch: Any, ctx: OperatorContext, *_: Any, into: list[Any] = seen) -> None:
            into.append(
                ctx.get_keyed_state("newest").get(batch.slice(0, 1)).rows.to_pylist()
            )

        job.add(
            "keep",
            lambda look=look: Scripted(is_sink=True, tables=[NEWEST], process_batch=look),  # type: ignore[misc]
            BY_USER,
        )
        run(job.session(), 1)
        states.append(seen)
    assert states[0] == states[1]
    assert states[0][0][0]["n"] == 17


def test_no_epoch_waits_for_a_merge_that_nobody_would_make() -> None:
    """A global table is folded whole; small changes to a large one are merged late."""
    seen: list[int] = []

    def note(batch: pa.RecordBatch, ctx: OperatorContext, *_: object) -> None:
        notes = ctx.get_global_keyed_state("notes")
        notes.insert(str(len(seen)), "" if seen else "large" * 10_000)
        seen.append(batch.num_rows)

    session = a_job(NOTES, note, min_files=2, max_runs=2).session()
    outcomes = run(session, 8)
    assert len(listed_files(session, "keep")) > 2
    assert not any(ran.progress.waited_for_compaction for ran in outcomes)


class OrdersNoted(InProcessExecutor):
    """Counts the merges of each table that were ordered."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.merges: Counter[str] = Counter()

    def compact(self, orders: Sequence[CompactionOrder]) -> None:
        self.merges.update(due.spec.name for order in orders for due in order.tables)
        super().compact(orders)


@pytest.mark.parametrize(
    ("domain", "lifetime"), [(TimeDomain.EVENT_TIME, 5), (TimeDomain.PROCESSING_TIME, 4)]
)
def test_a_merge_whose_inputs_expire_meanwhile_is_made_once(
    domain: TimeDomain, lifetime: int
) -> None:
    """In every epoch a file is added and one expires, as with the panes of small windows."""
    panes = time_keyed_table("panes", SCHEMA, time_column="at", time_domain=domain)

    def keep(batch: pa.RecordBatch, ctx: OperatorContext, *_: object) -> None:
        now = ctx.processing_time_micros
        if domain is TimeDomain.EVENT_TIME:
            now = 0 if ctx.previous_watermark is None else ctx.previous_watermark.micros
        ctx.get_time_keyed_state("panes").insert(batch, now + lifetime * step)

    step = SECOND if domain is TimeDomain.PROCESSING_TIME else 2
    job = a_job(panes, keep, min_files=4, min_expiring_files=4)
    job.add("read", lambda: NumberedSource({"s": range(99)}), watermark=WatermarkSpec())
    environment = job.environment()
    assert isinstance(environment.executor, InProcessExecutor)
    executor = OrdersNoted(environment.executor.worker)
    session = JobSession.start(replace(environment, executor=executor))
    made: set[str] = set()
    for _ in range(40):
        job.clock.advance(SECOND)
        run(session, 1)
        files = listed_files(session, "keep")
        made |= {file.path for file in files if file.level}
        assert len(files) <= 8
    assert len(made) > 5
    assert executor.merges["panes"] <= len(made) + 1, "the last one waits for its epoch"


def test_what_was_ordered_dies_with_the_session() -> None:
    job = a_job(min_files=2)
    environment = job.environment()
    run(JobSession.start(environment), 3)
    second = JobSession.start(environment)
    assert run(second, 1)[0].progress.compactions == 0


def test_the_cache_holds_only_files_that_some_list_still_names(tmp_path: Path) -> None:
    job = a_job(min_files=2)
    cache = FileCache(tmp_path, limit_bytes=1 << 30)
    environment = replace(job.environment(), cache=cache)
    executor = environment.executor
    assert isinstance(executor, InProcessExecutor)
    executor.worker.cache = cache
    session = JobSession.start(environment)
    listed: list[set[str]] = [set()]
    for _ in range(28):
        run(session, 1)
        files = [*listed_files(session, "read"), *listed_files(session, "keep")]
        listed.append({f"{file.checksum:016x}" for file in files})
        cached = {path.name[:16] for path in tmp_path.glob("*.arrow")}
        assert cached & listed[-1]
        # Merged behind this epoch and listed by the next one: one file per table.
        ahead = cached - listed[-1] - listed[-2]
        assert len(ahead) <= 2
