"""A checkpoint that a job cannot go on from is refused in words, with a code, and stays as it is."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.console import main
from penstock.operators import ArrowCollector, ArrowOperator, OperatorContext, keyed_table
from penstock.state.proto import state_pb2 as pb

TOTALS = pa.schema([("key", pa.int64()), ("total", pa.int64())])


class Totals(ArrowOperator):
    """Adds up numbers per key, in a table whose name may change."""

    def __init__(
        self, table: str = "totals", type_of_total: pa.DataType | None = None
    ) -> None:
        self.table = table
        total = pa.field("total", type_of_total or pa.int64())
        self.schema = pa.schema([TOTALS.field("key"), total])

    def name(self) -> str:
        return "totals"

    def output_schema(self, inputs: Any) -> pen.StreamSchema:
        return pen.StreamSchema(self.schema)

    def tables(self) -> Any:
        return [keyed_table(self.table, self.schema, key_columns=["key"])]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        new = pl.DataFrame(pl.from_arrow(batch)).group_by("key").agg(total=pl.len())
        rows = new.to_arrow().cast(self.schema)
        ctx.get_keyed_state(self.table).put(rows)
        collector.collect(rows)


def a_pipeline(*, job: str = "shop", step: str = "total", **table: Any) -> pen.Pipeline:
    pipeline = pen.Pipeline(job)
    numbers = pipeline.read("numbers", pen.impulse(count=20))
    keyed = numbers.with_columns(key=pl.col("counter") % 3).key_by("key")
    keyed.process(step, Totals(**table)).write("out", pen.blackhole())
    return pipeline


class DiedError(BaseException):
    """Stands for a driver that dies between two epochs: an `Exception` would be logged."""


def die_after_an_epoch(status: pen.JobStatus) -> None:
    if status.epochs_published:
        raise DiedError


def leave_a_checkpoint(folder: Path) -> None:
    """Run a job that has read all its data and not yet noticed."""
    with pytest.raises(DiedError):
        a_pipeline().run_in_process(str(folder), on_status=die_after_an_epoch)


def of_another_job(folder: Path) -> None:
    (folder / "shop").rename(folder / "market")


def of_a_newer_format(folder: Path) -> None:
    for path in (folder / "shop" / "epochs").iterdir():
        envelope = pb.Envelope.FromString(path.read_bytes())
        envelope.protocol_version = 7
        path.write_bytes(envelope.SerializeToString())


def as_it_is(_folder: Path) -> None:
    """The program changes instead."""


CASES: dict[str, tuple[Callable[[Path], None], dict[str, Any], int, list[str]]] = {
    "of another job": (
        of_another_job,
        {"job": "market"},
        8,
        ["'market/", "of shop", "Nothing was changed", "[foreign-object]"],
    ),
    "of a newer format": (
        of_a_newer_format,
        {},
        9,
        ["version 7", "up to 1", "upgrade Penstock", "[newer-protocol]"],
    ),
    "of a graph with another step": (
        as_it_is,
        {"step": "sum"},
        9,
        ["step 'total': it has state, and the pipeline has no such step", "Nothing was changed"],
    ),
    "of a graph with another table": (
        as_it_is,
        {"table": "sums"},
        9,
        ["'total'", "'totals'", "Nothing was changed", "[no-registered-table]"],
    ),
    "of a graph with another type": (
        as_it_is,
        {"type_of_total": pa.float64()},
        9,
        ["'total'", "totals", "int64", "double", "Nothing was changed"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_is_refused_in_words_and_nothing_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    change, program, code, words = CASES[case]
    leave_a_checkpoint(tmp_path)
    change(tmp_path)
    before = bytes_below(tmp_path)
    assert before

    with pytest.raises(SystemExit) as raised:
        main(lambda: a_pipeline(**program).run_in_process(str(tmp_path)))

    said = capsys.readouterr().err
    assert raised.value.code == code, said
    assert said.startswith("error: ")
    assert "Traceback" not in said
    assert [word for word in words if word not in said] == [], said
    assert bytes_below(tmp_path) == before


def test_the_right_program_goes_on_from_the_same_checkpoint(tmp_path: Path) -> None:
    leave_a_checkpoint(tmp_path)
    status = a_pipeline().run_in_process(str(tmp_path))
    assert status.phase is pen.JobPhase.FINISHED
    assert status.rows_read == 0


def test_jobs_of_other_names_share_a_folder(tmp_path: Path) -> None:
    leave_a_checkpoint(tmp_path)
    shop = bytes_below(tmp_path)
    status = a_pipeline(job="market").run_in_process(str(tmp_path))
    assert status.phase is pen.JobPhase.FINISHED
    shutil.rmtree(tmp_path / "market")
    assert bytes_below(tmp_path) == shop


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
