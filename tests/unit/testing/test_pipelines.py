from dataclasses import replace

import polars as pl
import pyarrow as pa
import pytest

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import ListSinkSpec, list_sink
from penstock.errors import UserError
from penstock.operators.operator import SourceOperator
from penstock.runtime.driver.decide import JobPhase
from penstock.runtime.in_process import Chaos
from penstock.testing.faults import CrashError, Fault, FaultMode
from penstock.testing.parts import ABORT, CUT, EOF, PAUSE, ScriptedSource
from penstock.testing.pipelines import LocalJob, assert_job_is_whole, run_pipeline
from tests.unit.testing.tested_operators import CLICKS, Totals


def click(user: str, n: int = 1) -> dict[str, object]:
    return {"user": user, "n": n}


def totals_of(
    source: SourceOperator, name: str, *, parallelism: int = 1
) -> tuple[Pipeline, ListSinkSpec]:
    """Add up clicks by user; the list is empty at first."""
    out = list_sink(name)
    out.clear()
    pipeline = Pipeline(name, parallelism=parallelism)
    clicks = pipeline.read("clicks", source)
    clicks.key_by("user").process("totals", Totals()).write("out", out)
    return pipeline, out


def last_of(out: ListSinkSpec) -> dict[str, int]:
    return {row["user"]: row["n"] for row in out.rows()}


def test_a_pipeline_runs_to_the_end_of_its_data() -> None:
    pipeline, out = totals_of(ScriptedSource([click("a"), click("b"), click("a")]), "end")
    status = run_pipeline(pipeline)
    assert status.phase is JobPhase.FINISHED
    assert last_of(out) == {"a": 2, "b": 1}


def test_a_cut_ends_the_epoch() -> None:
    pipeline, out = totals_of(ScriptedSource([click("a"), CUT, click("a")]), "cut")
    run_pipeline(pipeline)
    assert [row["n"] for row in out.rows()] == [1, 2]


def test_rows_between_markers_come_in_one_epoch() -> None:
    script = [click("a"), [click("a"), click("b")], click("a")]
    pipeline, _ = totals_of(ScriptedSource(script), "together")
    status = run_pipeline(pipeline)
    assert status.rows_read == 4
    assert status.epochs_published == 2


def test_a_pause_takes_processing_time_and_no_other() -> None:
    script = [click("a"), PAUSE("1h"), click("a")]
    pipeline, out = totals_of(ScriptedSource(script), "pause")
    job = LocalJob(pipeline)
    started = job.clock.micros
    status = job.run()
    assert 3_600_000_000 <= job.clock.micros - started < 3_602_000_000
    assert status.epochs_run < 10
    assert last_of(out) == {"a": 2}


def test_an_eof_stops_this_run_and_the_next_one_goes_on_behind_it() -> None:
    script = [click("a"), EOF, click("a"), EOF, click("a")]
    pipeline, out = totals_of(ScriptedSource(script), "eof")
    job = LocalJob(pipeline)
    phases = []
    for expected in (1, 2, 3):
        phases.append(job.run().phase)
        assert last_of(out) == {"a": expected}
    assert phases == [JobPhase.STOPPED, JobPhase.STOPPED, JobPhase.FINISHED]


def test_a_run_stops_only_when_every_split_is_at_its_eof() -> None:
    scripts = {
        "short": [click("a"), EOF, click("a")],
        "long": [click("b"), CUT, click("b"), PAUSE("1s"), click("b"), EOF, click("b")],
        "ending": [click("c")],
    }
    pipeline, out = totals_of(ScriptedSource(scripts), "splits", parallelism=2)
    job = LocalJob(pipeline)
    assert job.run().phase is JobPhase.STOPPED
    assert last_of(out) == {"a": 1, "b": 3, "c": 1}
    assert job.run(parallelism=1).phase is JobPhase.FINISHED
    assert last_of(out) == {"a": 2, "b": 4, "c": 1}


def test_an_abort_kills_the_process_once_and_rows_before_it_count_once() -> None:
    script = [click("a"), CUT, click("a"), ABORT, click("a")]
    pipeline, out = totals_of(ScriptedSource(script), "abort")
    job = LocalJob(pipeline)
    with pytest.raises(CrashError, match="aborts at step 3"):
        job.run()
    assert last_of(out) == {"a": 1}
    assert job.run().phase is JobPhase.FINISHED
    assert [row["n"] for row in out.rows()] == [1, 3]


def test_each_abort_of_a_script_strikes() -> None:
    script = [click("a"), ABORT, click("a"), ABORT, click("a")]
    pipeline, out = totals_of(ScriptedSource(script), "aborts")
    job = LocalJob(pipeline)
    assert job.run_until_done(max_starts=3).phase is JobPhase.FINISHED
    assert last_of(out) == {"a": 3}
    other, _ = totals_of(ScriptedSource(script), "other-aborts")
    with pytest.raises(CrashError):
        LocalJob(other).run_until_done(max_starts=2)


def test_a_restart_at_another_parallelism_goes_on() -> None:
    users = [click(f"u{number}") for number in range(20)]
    script = [users, EOF, users, EOF, users]
    pipeline, out = totals_of(ScriptedSource(script), "rescaled")
    job = LocalJob(pipeline)
    job.run(parallelism=2)
    job.run(parallelism=3)
    status = job.run()
    assert {operator.parallelism for operator in status.operators} == {1}
    assert set(last_of(out).values()) == {3}


def test_a_crash_at_any_storage_call_leads_to_the_same_rows() -> None:
    script = [click("a"), CUT, click("b"), CUT, click("a")]
    pipeline, out = totals_of(ScriptedSource(script), "crash")
    job = LocalJob(pipeline)
    job.run()
    expected, call_count = out.rows(), len(job.calls)
    assert call_count > 20
    for at in range(1, call_count + 1, 5):
        out.clear()
        trial = LocalJob(pipeline)
        fault = Fault(FaultMode.CRASH_AFTER, at=at)
        trial.run_until_done(fault)
        assert out.rows() == expected, f"crashed at call {at}"
        assert_job_is_whole(trial.checkpoints)


def test_a_misbehaving_exchange_changes_nothing_but_the_time_it_takes() -> None:
    users = [click(f"u{number}") for number in range(10)]
    script = [users, CUT, users, CUT, users]
    pipeline, out = totals_of(ScriptedSource(script), "chaos", parallelism=3)
    chaos = Chaos(rate=0.2, seed=4)
    status = LocalJob(pipeline, chaos=chaos).run()
    assert status.torn_epochs > 0
    assert chaos.done
    assert len(out.rows()) == 30
    assert set(last_of(out).values()) == {3}


def test_a_process_can_die_between_supersteps() -> None:
    pipeline, out = totals_of(ScriptedSource([click("a"), CUT, click("a")]), "between")
    job = LocalJob(pipeline)
    levels: list[int] = []

    def die_late(level: int) -> None:
        levels.append(level)
        if len(levels) == 3:
            raise CrashError("between two supersteps")

    with pytest.raises(CrashError):
        job.run(between_supersteps=die_late)
    assert levels == [0, 1, 0]
    job.run()
    assert [row["n"] for row in out.rows()] == [1, 2]


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_a_run_can_be_limited_to_a_number_of_epochs(epochs: int) -> None:
    script = [click("a"), CUT, click("a"), CUT, click("a"), CUT, click("a")]
    pipeline, out = totals_of(ScriptedSource(script), "limited")
    status = LocalJob(pipeline).run(epochs=epochs)
    assert status.phase is JobPhase.STOPPED
    assert last_of(out) == {"a": epochs}


def test_a_graph_runs_as_its_pipeline_does() -> None:
    pipeline, out = totals_of(ScriptedSource([click("a")]), "graph")
    graph = replace(pipeline.graph(), edges=pipeline.graph().edges)
    assert run_pipeline(graph, parallelism=2).phase is JobPhase.FINISHED
    assert last_of(out) == {"a": 1}


def test_a_script_without_rows_needs_a_schema() -> None:
    with pytest.raises(UserError, match="needs a schema"):
        ScriptedSource([EOF])
    pipeline, out = totals_of(ScriptedSource([EOF], CLICKS), "empty")
    assert LocalJob(pipeline).run().phase is JobPhase.STOPPED
    assert out.rows() == []


@pytest.mark.parametrize(
    "step",
    [
        pa.record_batch({"user": ["a"], "n": [1]}),
        pa.table({"user": ["a"], "n": [1]}),
        pl.DataFrame({"user": ["a"], "n": [1]}),
        [{"user": "a", "n": 1}],
    ],
    ids=["batch", "table", "frame", "rows"],
)
def test_a_step_holds_rows_in_any_form_and_the_schema_is_theirs(step: object) -> None:
    source = ScriptedSource([CUT, step])
    assert source.output_schema().arrow.names == ["user", "n"]
    pipeline, out = totals_of(source, "forms")
    run_pipeline(pipeline)
    assert last_of(out) == {"a": 1}


def test_a_step_without_rows_is_refused() -> None:
    with pytest.raises(UserError, match="holds 0 batches"):
        ScriptedSource([[click("a")], []])
