"""Windows by processing time on an embedded Spark: only the clock of the driver counts."""

from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

import penstock as pen
from examples.nexmark.__main__ import queries
from examples.nexmark.site import Site, generated
from penstock.core.clock import ManualClock
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.spark.running import run_on_spark
from tests.builders.spark_session import DriverDiedError, shared_session
from tests.builders.windows import SECOND, Stamp

EVENTS = 3_000
SETTINGS = DriverSettings(
    budget=SourceBudget(rows=500), adapts_budget=False, target_epoch_micros=1
)
START = 1_700_000_000 * SECOND
SQL = """
    with starts as (select *, instant // 10000000 * 10000000 s from bids)
    select bidder, make_timestamp(s) window_start, make_timestamp(s + 10000000) window_end,
        make_timestamp(s + 9999999) window_time, count(*) bids
    from starts group by bidder, s
"""


@pytest.mark.spark
@pytest.mark.slow
def test_q12_counts_bids_by_the_clocks_of_two_drivers_the_second_one_behind(
    tmp_path: Path,
) -> None:
    def run(clock: ManualClock, on_status: Callable[[pen.JobStatus], None]) -> None:
        pipeline = pen.Pipeline("nexmark-q12", parallelism=2)
        site = Site(pipeline, generated(EVENTS, splits=2))
        parquet = [pen.files(str(tmp_path / name), "parquet") for name in ("out", "seen")]
        queries()["q12"](site).write("out", parquet[0])
        site.bids.process("stamp", Stamp()).write("seen", parquet[1])
        options = RunOptions(
            checkpoint=str(tmp_path / "checkpoints"),
            session=shared_session(),
            settings=SETTINGS,
            clock=clock,
            on_status=on_status,
        )
        run_on_spark(pipeline.graph(), pipeline.registry, options)

    first, second = ManualClock(START), ManualClock(START - 60 * SECOND)

    def die_after_two(status: pen.JobStatus) -> None:
        first.micros = START + 7 * SECOND * status.epochs_run
        if status.epochs_run == 2:
            raise DriverDiedError

    def go_on(status: pen.JobStatus) -> None:
        # It catches up with the first one after some epochs.
        second.micros = START + (40 * status.epochs_run - 60) * SECOND

    with pytest.raises(DriverDiedError):
        run(first, die_after_two)
    run(second, go_on)

    bids = pen.read_committed(str(tmp_path / "seen"))
    found = pen.read_committed(str(tmp_path / "out")).to_pylist()
    with duckdb.connect() as connection:
        connection.register("bids", bids)
        expected = connection.sql(SQL).to_arrow_table().to_pylist()
    assert bids.num_rows == EVENTS * 46 // 50
    assert len({row["window_start"] for row in found}) >= 2
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
