"""A job that reads history and then a live stream dies anywhere, goes on, and has every row once."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.core.clock import new_token
from penstock.core.schema import StreamSchema
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.in_process import Chaos
from penstock.testing import Fault, FaultMode, LocalJob
from tests.builders.live_stream import LiveStream, LiveTopic
from tests.builders.profile import a_start, by_profile
from tests.contract.sources.concat_sources import PLACED, placed_files, write_placed
from tests.contract.sources.source_under_test import EPOCH, row_of

SETTINGS = DriverSettings(budget=SourceBudget(rows=7))
HISTORY_ROWS = 24
ALL_ROWS = 40


def by_offsets(folder: Path) -> Any:
    return pen.concat_sources(
        history=placed_files(folder / "old"), live=a_live_side(folder)
    )


def by_time(folder: Path) -> Any:
    at = EPOCH + timedelta(seconds=HISTORY_ROWS - 3)
    return pen.concat_sources(
        history=placed_files(folder / "old"), live=a_live_side(folder), at=at, by="at"
    )


def a_live_side(folder: Path) -> LiveTopic:
    return LiveTopic(LiveStream(folder / "live", StreamSchema(PLACED, time_column="at")))


def write_rows(folder: Path) -> None:
    """Write all rows into the live stream, and the first of them into files of history."""
    for name in ("old", "live"):
        (folder / name).mkdir()
    stream = a_live_side(folder).stream
    rows = [
        {**row_of(n), "kafka_partition": n % 2, "kafka_offset": n // 2}
        for n in range(ALL_ROWS)
    ]
    for start in range(0, HISTORY_ROWS, 8):
        write_placed(folder / "old", rows[start : start + 8])
    for partition in range(2):
        stream.write(partition, rows[partition::2])


@pytest.mark.slow
@pytest.mark.parametrize("handover", [by_offsets, by_time])
@pytest.mark.parametrize("mode", [FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER])
def test_every_row_is_read_once_wherever_the_job_dies(
    tmp_path: Path, handover: Any, mode: FaultMode
) -> None:
    write_rows(tmp_path)
    out = pen.list_sink(f"handover-crashes-{new_token()}")
    pipeline = pen.Pipeline("job", parallelism=2)
    pipeline.read("in", handover(tmp_path)).write("out", out)
    whole = LocalJob(pipeline, settings=SETTINGS)
    whole.run()
    assert sorted(row["n"] for row in out.rows()) == list(range(ALL_ROWS))
    calls = len(whole.calls)
    assert calls > 40

    step = by_profile(31, 13, 1)
    for at in range(1 + a_start(step), calls, step):
        out.clear()
        job = LocalJob(pipeline, settings=SETTINGS, chaos=Chaos(0.1, seed=at))
        job.run_until_done(Fault(mode, at=at), parallelism=1 + at % 3)

        assert sorted(row["n"] for row in out.rows()) == list(range(ALL_ROWS)), at
