from datetime import datetime

import pyarrow as pa
import pytest

from penstock.connectors.stdout import stdout
from penstock.core.schema import StreamSchema
from penstock.errors import UserError
from penstock.graph.logical import OperatorSpec
from penstock.testing import OperatorHarness
from tests.builders.chain_rig import an_operator

BATCH = pa.RecordBatch.from_pylist([{"n": 1, "at": datetime(2026, 1, 1)}])  # noqa: DTZ001
STREAM = StreamSchema(BATCH.schema)


def test_rows_are_printed_as_json_lines_at_the_commit_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sink = OperatorHarness(stdout(), STREAM, parallelism=2)

    sink.push([BATCH, BATCH])
    sink.barrier()
    assert capsys.readouterr().out == ""
    sink.commit()

    line = '{"n": 1, "at": "2026-01-01 00:00:00"}\n'
    assert capsys.readouterr().out == line * 2


def test_rows_are_printed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    sink = OperatorHarness(stdout("table"), STREAM)
    many = pa.RecordBatch.from_arrays(
        [pa.array(range(100)), pa.nulls(100, pa.timestamp("us"))], schema=STREAM.arrow
    )

    sink.push(many)
    sink.barrier()
    sink.commit()

    printed = capsys.readouterr().out
    assert "┌" in printed
    assert all(f" {n} " in printed for n in range(100))


def test_nothing_is_printed_for_an_epoch_without_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sink = OperatorHarness(stdout(), STREAM)

    sink.barrier()
    sink.commit()

    assert capsys.readouterr().out == ""


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UserError, match="format"):
        an_operator(OperatorSpec("stdout", {"format": "xml"}))
