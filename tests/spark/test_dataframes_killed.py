"""A job and the query that feeds it, killed or interrupted: nothing is lost or doubled."""

import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.builders.profile import takes_long
from tests.builders.spark_session import SparkProgram, shared_session
from tests.spark.attach_program import a_pipeline, attach, open_stream, write_epoch

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("attach_program.py")
BATCHES = [list(range(start, start + 10)) for start in (0, 10, 20)]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[SparkProgram]:
    """A program with three batches to read."""
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    for number, rows in enumerate(BATCHES):
        lines = "".join(json.dumps({"number": row}) + "\n" for row in rows)
        (incoming / f"{number}.json").write_text(lines)
    started = SparkProgram(PROGRAM, tmp_path)
    yield started
    if started.process.poll() is None:
        started.kill()


def finish(tmp_path: Path) -> None:
    """Go on with job and query until everything is read; every batch was written once."""
    stream = open_stream(shared_session(), tmp_path)
    pipeline = a_pipeline(partial(write_epoch, folder=tmp_path), stream.schema)
    attach(pipeline, stream, tmp_path)
    written = [json.loads(path.read_text()) for path in (tmp_path / "out").iterdir()]
    assert sorted(written) == BATCHES


def test_job_and_query_go_on_after_kill_9_between_function_and_marker(
    tmp_path: Path, program: SparkProgram
) -> None:
    program.tell(folder=str(tmp_path), dies=True)
    assert program.wait() == -signal.SIGKILL, program.errors.read_text()
    finish(tmp_path)


@takes_long
def test_ctrl_c_stops_job_and_query_after_a_batch(
    tmp_path: Path, program: SparkProgram
) -> None:
    program.tell(folder=str(tmp_path), dies=False)
    program.hear_until("epoch")
    program.signal(signal.SIGINT)
    assert program.hear_until("ended")["phase"] == "stopped"
    assert program.wait() == 0
    finish(tmp_path)
