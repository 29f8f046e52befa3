"""A job and the query that feeds it, killed together: nothing is lost or doubled."""

import json
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.builders.spark_program import SparkProgram
from tests.builders.spark_session import shared_session
from tests.spark.attach_program import a_pipeline, attach, open_stream, write_epoch

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("attach_program.py")
BATCHES = [list(range(start, start + 10)) for start in (0, 10, 20)]


def test_job_and_query_go_on_after_kill_9_between_function_and_marker(
    tmp_path: Path,
) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    for number, rows in enumerate(BATCHES):
        lines = "".join(json.dumps({"number": row}) + "\n" for row in rows)
        (incoming / f"{number}.json").write_text(lines)
    program = SparkProgram(PROGRAM, tmp_path)
    with program.process:
        program.tell(folder=str(tmp_path))
    assert program.process.returncode == -signal.SIGKILL, program.errors.read_text()

    stream = open_stream(shared_session(), tmp_path)
    pipeline = a_pipeline(partial(write_epoch, folder=tmp_path), stream.schema)
    attach(pipeline, stream, tmp_path)
    written = [json.loads(path.read_text()) for path in (tmp_path / "out").iterdir()]
    assert sorted(written) == BATCHES
