import pyarrow as pa

import penstock as pen
from penstock.connectors.memory import list_source
from penstock.testing import LocalJob, OperatorHarness


def test_rows_go_in_and_nothing_comes_out() -> None:
    with OperatorHarness(pen.blackhole(), pa.schema([("n", pa.int64())])) as hole:
        hole.push({"n": [1, 2, 3]})
        hole.barrier()
        assert hole.commits == {}


def test_a_job_with_nothing_but_a_hole_behind_it_runs_to_its_end() -> None:
    pipeline = pen.Pipeline("hole")
    pipeline.read("rows", list_source([{"n": n} for n in range(10)])).write(
        "hole", pen.blackhole()
    )
    status = LocalJob(pipeline).run(parallelism=2)
    assert status.phase is pen.JobPhase.FINISHED
    taken = {str(operator.operator): operator.rows_taken for operator in status.operators}
    assert taken["hole"] == 10
