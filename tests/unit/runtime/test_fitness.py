"""A graph that does not fit its checkpoint is refused before it can do any harm."""

from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ErrorCode, StateError
from penstock.graph.logical import Exchange
from penstock.operators.context import OperatorContext
from penstock.runtime.driver.decide import JobPhase, StopMode
from penstock.state.tables.specs import TableSpec, global_table, keyed_table
from penstock.testing import assert_nothing_was_changed, stored_objects
from tests.builders.driven_job import DrivenJob, Ledger
from tests.builders.scripted import (
    BY_USER,
    PLAIN,
    SCHEMA,
    NumberedSource,
    Scripted,
    link,
)

GLOBAL = global_table("counts", str, int)
KEYED = keyed_table("counts", SCHEMA, key_columns=["user"])


def count(batch: pa.RecordBatch, ctx: OperatorContext, *_: object) -> None:
    table = ctx.get_global_keyed_state("counts")
    table.insert("rows", (table.get("rows") or 0) + batch.num_rows)


def counting(*tables: TableSpec, **hooks: Any) -> Any:
    return lambda: Scripted("count", tables=tables, is_sink=True, **hooks)


def a_stopped_job(**settings: Any) -> DrivenJob:
    """Return a job of `read ═ count` that has published an epoch."""
    job = DrivenJob(**settings)
    job.add("read", lambda: NumberedSource({"s": range(20)}))
    job.add("count", counting(GLOBAL, process_batch=count), BY_USER)
    job.join(link("read", "count", exchange=Exchange.BY_KEY))

    def stop(driver: Any, status: Any) -> None:
        if status.epochs_published:
            driver.request_stop(StopMode.IMMEDIATE)

    assert job.run(on_status=stop).phase is JobPhase.STOPPED
    return job


def without_the_operator(job: DrivenJob) -> None:
    job.nodes, job.edges = job.nodes[:1], []
    job.add("other", Ledger().sink, PLAIN)
    job.join(link("read", "other"))


def with_another_kind_of_table(job: DrivenJob) -> None:
    job.add("count", counting(KEYED, process_batch=lambda *_: None), BY_USER)


def without_the_table(job: DrivenJob) -> None:
    job.add("count", counting(process_batch=lambda *_: None), BY_USER)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (without_the_operator, ["step 'count': it has state", "no such step"]),
        (with_another_kind_of_table, ["'counts'", "'count'"]),
        (without_the_table, ["'counts'", "'count'"]),
    ],
)
def test_state_that_would_be_lost_is_refused_and_nothing_is_changed(
    change: Any, parts: list[str]
) -> None:
    job = a_stopped_job()
    before = stored_objects(job.store)
    change(job)
    with pytest.raises(StateError) as raised:
        job.run()
    assert_nothing_was_changed(before, job.store)
    assert job.statuses[-1].phase is JobPhase.FAILED
    assert job.statuses[-1].generation is None
    for part in (*parts, "epoch", "Nothing was changed"):
        assert part in raised.value.message


def test_the_running_driver_is_not_fenced_by_a_graph_that_does_not_fit() -> None:
    job = a_stopped_job()
    session = job.session()
    other = a_stopped_job()
    other.store = job.store
    without_the_operator(other)
    with pytest.raises(StateError):
        other.run()
    session.run_epoch()
    assert len(job.checkpoints.epochs()) == 2


@pytest.mark.parametrize("change", [without_the_operator, without_the_table])
def test_state_may_be_dropped_if_that_is_wanted(change: Any) -> None:
    job = a_stopped_job(allow_dropped_state=True)
    change(job)
    assert job.run().phase is JobPhase.FINISHED


def test_another_kind_of_table_is_refused_even_then() -> None:
    job = a_stopped_job(allow_dropped_state=True)
    with_another_kind_of_table(job)
    with pytest.raises(StateError) as raised:
        job.run()
    assert raised.value.code is ErrorCode.TABLE_TYPE_MISMATCH


def test_all_problems_are_told_at_once() -> None:
    job = a_stopped_job()
    job.add("more", counting(GLOBAL, process_batch=count), BY_USER)
    job.join(link("read", "more", exchange=Exchange.BY_KEY))

    def stop(driver: Any, status: Any) -> None:
        if status.epochs_published:
            driver.request_stop(StopMode.IMMEDIATE)

    job.run(on_status=stop)
    job.nodes, job.edges = job.nodes[:1], []
    job.add("other", Ledger().sink, PLAIN)
    job.join(link("read", "other"))
    with pytest.raises(StateError) as raised:
        job.run()
    assert "step 'count': it has state" in raised.value.message
    assert "step 'more': it has state" in raised.value.message


def test_an_operator_that_is_new_or_has_another_parallelism_fits() -> None:
    job = a_stopped_job()
    job.add("count", counting(GLOBAL, process_batch=count), BY_USER, parallelism=3)
    job.add("other", Ledger().sink, PLAIN)
    job.join(link("read", "other"))
    assert job.run().phase is JobPhase.FINISHED
