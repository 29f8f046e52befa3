import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import list_sink
from penstock.core.schema import StreamSchema
from penstock.core.watermark import (
    IDLE,
    MAX_EVENT_TIME,
    EventTime,
    InputWatermark,
    Watermark,
    advance,
)
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.decide import JobPhase
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.in_process import Chaos
from penstock.testing.faults import STORAGE_FAULTS, Fault
from penstock.testing.harness import OperatorHarness
from penstock.testing.parts import CUT, ScriptedSource
from penstock.testing.pipelines import LocalJob, assert_job_is_whole
from penstock.testing.strategies import (
    SmallPipeline,
    batches,
    disordered_times,
    epoch_cuts,
    small_pipelines,
    stream_schemas,
    watermark_histories,
)
from tests.architecture.project import ROOT
from tests.unit.testing.tested_operators import CLICKS, Totals

BY_USER = StreamSchema(CLICKS, key_columns=("user",))


@given(st.data())
def test_batches_fit_the_schema_they_were_drawn_for(data: st.DataObject) -> None:
    stream = data.draw(stream_schemas())
    batch: pa.RecordBatch = data.draw(batches(stream))
    batch.validate(full=True)
    assert batch.schema.equals(stream.arrow)
    assert len(stream.key_hashes_of(batch)) == len(stream.event_times_of(batch))


@given(stream_schemas(keyed=False, timed=False))
def test_a_stream_may_have_neither_key_nor_time(stream: StreamSchema) -> None:
    assert stream.key_columns == ()
    assert stream.time_column is None
    assert len(stream.arrow) > 0


@given(disordered_times(watermark_delay_micros=100))
def test_times_lag_behind_the_latest_by_the_watermark_delay_at_most(
    times: list[int],
) -> None:
    latest = times[0]
    for time in times:
        latest = max(latest, time)
        assert time >= latest - 100


@given(watermark_histories())
def test_a_history_never_falls_and_ends(history: list[Watermark | None]) -> None:
    instants = [said.micros for said in history if isinstance(said, EventTime)]
    assert instants == sorted(instants)
    assert history[-1] == MAX_EVENT_TIME
    known = (InputWatermark(),)
    for said in history:
        known = (advance(known, [said]).inputs[0],)
    assert known == (InputWatermark(MAX_EVENT_TIME.micros),)


@given(watermark_histories(ends=False))
def test_a_history_without_an_end_has_none(history: list[Watermark | None]) -> None:
    assert MAX_EVENT_TIME not in history
    assert all(said is None or said == IDLE or said for said in history)


@given(epoch_cuts(10))
def test_cuts_leave_no_row_out(cuts: list[tuple[int, int]]) -> None:
    assert cuts[0][0] == 0
    assert cuts[-1][1] == 10
    assert all(before[1] == after[0] for before, after in pairwise(cuts))


@pytest.mark.slow
@settings(max_examples=20)
@given(rows=batches(BY_USER, max_rows=12), data=st.data())
def test_how_rows_are_cut_into_epochs_changes_no_total(
    rows: pa.RecordBatch, data: st.DataObject
) -> None:
    kept = rows.filter(pa.compute.is_valid(rows.column("n")))

    def totals(cuts: list[tuple[int, int]]) -> dict[Any, int]:
        with OperatorHarness(Totals(), BY_USER, parallelism=2) as harness:
            for start, end in cuts:
                harness.push(kept.slice(start, end - start))
                harness.barrier()
            return {row["user"]: row["n"] for row in harness.state("totals").to_pylist()}

    cuts = data.draw(epoch_cuts(kept.num_rows))
    assert totals(cuts) == totals([(0, kept.num_rows)])


@pytest.mark.slow
@settings(max_examples=20)
@given(rows=batches(BY_USER, max_rows=12), data=st.data())
def test_a_harness_gives_what_a_whole_job_gives_epoch_by_epoch(
    rows: pa.RecordBatch, data: st.DataObject
) -> None:
    parts = [
        rows.slice(start, end - start)
        for start, end in data.draw(epoch_cuts(rows.num_rows))
        if end > start
    ]
    parallelism = data.draw(st.integers(1, 3))
    with OperatorHarness(Totals(), BY_USER, parallelism=parallelism) as harness:
        for part in parts:
            harness.push(part)
            harness.barrier()
        expected = harness.rows()
    out = list_sink("as-the-harness")
    out.clear()
    pipeline = Pipeline("as-the-harness", parallelism=parallelism)
    script = [step for part in parts for step in (part, CUT)]
    clicks = pipeline.read("clicks", ScriptedSource(script, CLICKS))
    clicks.key_by("user").process("totals", Totals()).write("out", out, parallelism=1)
    LocalJob(pipeline).run()
    # Of rows in one epoch the exchange to the only sink gives any order.
    assert Counter(map(str, out.rows())) == Counter(map(str, expected))


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(small_pipelines())
def test_small_pipelines_bring_every_row_to_every_sink_once(small: SmallPipeline) -> None:
    status = LocalJob(small.pipeline).run()
    assert status.phase is JobPhase.FINISHED
    expected = Counter(tuple(row.values()) for row in small.rows)
    for sink in small.sinks:
        assert Counter(tuple(row.values()) for row in sink.rows()) == expected


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    small=small_pipelines(max_rows=30),
    seed=st.integers(0, 1_000_000),
    fault=st.sampled_from(STORAGE_FAULTS),
    at=st.integers(1, 80),
)
def test_small_pipelines_bring_every_row_once_through_chaos_and_a_fault_of_the_store(
    small: SmallPipeline, seed: int, fault: Fault, at: int
) -> None:
    several_epochs = DriverSettings(
        budget=SourceBudget(rows=5), adapts_budget=False, torn_limit=50
    )
    chaos = Chaos(rate=0.08, seed=seed)
    job = LocalJob(small.pipeline, chaos=chaos, seed=seed, settings=several_epochs)
    assert job.run_until_done(replace(fault, at=at)).phase is JobPhase.FINISHED
    expected = Counter(tuple(row.values()) for row in small.rows)
    for sink in small.sinks:
        assert Counter(tuple(row.values()) for row in sink.rows()) == expected
    assert_job_is_whole(job.checkpoints)


def test_without_hypothesis_the_strategies_say_what_to_install() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None; import penstock.testing.strategies"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "UserError: penstock.testing.strategies needs Hypothesis" in done.stderr
