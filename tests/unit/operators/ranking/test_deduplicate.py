"""Deduplication: first rows at once, times to live by both clocks, late rows, refusals."""

import logging
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import SchemaError, UserError
from penstock.operators.ranking.deduplicate import deduplicate_spec
from penstock.operators.updating.lifetimes import Expiry
from penstock.state.tables.specs import TimeDomain
from penstock.testing import OperatorHarness

MINUTE = 60_000_000
_COLUMNS: dict[str, Any] = {"id": pa.int64(), "x": pa.string(), "at": pa.timestamp("us")}
TIMED = pen.StreamSchema(pa.schema(_COLUMNS), "at", ("id",))
UNTIMED = pen.StreamSchema(pa.schema(_COLUMNS), None, ("id",))
BY_EVENT_TIME = Expiry(10 * MINUTE, TimeDomain.EVENT_TIME)
BY_CLOCK = Expiry(10 * MINUTE, TimeDomain.PROCESSING_TIME)


def a_row(minute: int | None, x: str = "x", id_: int | None = 7) -> dict[str, Any]:
    return {"id": id_, "x": x, "at": None if minute is None else minute * MINUTE}


class Once:
    """The operator, and what it emits in each epoch."""

    def __init__(
        self, stream: pen.StreamSchema, expiry: Expiry | None, **options: Any
    ) -> None:
        spec = deduplicate_spec(stream, expiry, **options)
        self.harness = OperatorHarness(spec, stream, amnesia=True)

    def epoch(self, *rows: dict[str, Any], watermark: int | None = None) -> list[Any]:
        if rows:
            self.harness.push(list(rows))
        if watermark is not None:
            self.harness.watermark(watermark * MINUTE)
        return [_shown(row) for row in self.harness.barrier().rows()]


def _shown(row: Any) -> Any:
    return row["at"].minute, row["x"]


def test_the_first_row_of_a_key_to_come_is_emitted_at_once_and_no_other() -> None:
    once = Once(TIMED, None)
    assert once.epoch(a_row(5), a_row(3, "b"), a_row(3, "a")) == [(5, "x")]
    assert once.epoch(a_row(1), a_row(50)) == []


def test_the_earliest_row_of_a_key_is_emitted_when_the_watermark_has_passed_it() -> None:
    once = Once(TIMED, None, keeps_earliest=True)
    assert once.epoch(a_row(5), a_row(3, "b"), watermark=2) == []
    assert once.epoch(a_row(3, "a"), watermark=3) == []
    assert once.harness.state("waiting").num_rows == 3
    assert once.epoch(watermark=4) == [(3, "a")]
    assert once.epoch(a_row(4), watermark=50) == []
    once.epoch(watermark=51)
    assert once.harness.state("waiting").num_rows == 0


def test_rows_behind_the_watermark_are_late_for_the_earliest_row_whatever_their_key() -> (
    None
):
    once = Once(TIMED, BY_EVENT_TIME, keeps_earliest=True)
    assert once.epoch(a_row(7), watermark=8) == [(7, "x")]
    assert once.epoch(a_row(7, "a"), a_row(8), a_row(18), watermark=60) == [(18, "x")]
    assert [_shown(row) for row in once.harness.rows(pen.LATE)] == [(7, "a")]


def test_rows_that_wait_go_on_at_another_parallelism_whatever_their_types() -> None:
    names = pa.dictionary(pa.int8(), pa.string())
    at = pa.field("at", pa.timestamp("ms", "UTC"), nullable=False)
    columns: Any = [pa.field("id", names), pa.field("x", names), at]
    stream = pen.StreamSchema(pa.schema(columns), "at", ("id",))
    spec = deduplicate_spec(stream, BY_EVENT_TIME, keeps_earliest=True)
    rows = [{"id": f"k{n % 20}", "x": str(n), "at": n * MINUTE // 1_000} for n in range(40)]
    harness = OperatorHarness(spec, stream)
    harness.push(rows)
    assert harness.barrier().rows() == []
    with OperatorHarness.restore(harness.checkpoint(), parallelism=3) as again:
        again.push(rows[:1])
        again.watermark(60 * MINUTE)
        again.barrier()
        assert sorted(int(row["x"]) for row in again.rows()) == list(range(40))


def test_a_null_is_a_key_as_any_other() -> None:
    once = Once(TIMED, None)
    assert once.epoch(a_row(5, id_=None), a_row(6, id_=None)) == [(5, "x")]
    assert once.epoch(a_row(1, id_=None)) == []


def test_a_row_a_time_to_live_behind_the_first_one_is_a_first_one_again() -> None:
    once = Once(TIMED, BY_EVENT_TIME)
    rows = [a_row(minute) for minute in (0, 3, 12, 9, 25)]
    assert [at for at, _ in once.epoch(*rows)] == [0, 12, 25]
    assert once.epoch(a_row(34), a_row(11)) == []
    assert once.epoch(a_row(35)) == [(35, "x")]


def test_a_key_is_forgotten_when_the_watermark_has_passed_it() -> None:
    once = Once(TIMED, BY_EVENT_TIME)
    once.epoch(a_row(0), watermark=9)
    assert once.harness.state("keys").num_rows == 1
    once.epoch(watermark=10)
    once.epoch(a_row(30, id_=8))
    assert once.harness.state("keys").column("id").to_pylist() == [8]


def test_a_late_row_of_an_unknown_key_goes_to_the_side_output() -> None:
    once = Once(TIMED, BY_EVENT_TIME)
    once.epoch(a_row(0), watermark=20)
    assert once.epoch(a_row(5), a_row(6), a_row(20)) == [(20, "x")]
    late = [_shown(row) for row in once.harness.rows(pen.LATE)]
    assert late == [(5, "x"), (6, "x")]


def test_by_processing_time_a_key_is_forgotten_after_its_time_to_live() -> None:
    once = Once(UNTIMED, BY_CLOCK)
    assert once.epoch(a_row(0, "b"), a_row(0, "a")) == [(0, "b")]
    once.harness.advance("9m")
    assert once.epoch(a_row(0)) == []
    once.harness.advance("1m")
    assert once.epoch(a_row(0)) == [(0, "x")]


@pytest.mark.parametrize(
    ("expiry", "keeps_earliest"), [(BY_EVENT_TIME, False), (None, True)]
)
def test_a_row_without_event_time_is_refused_where_it_counts(
    expiry: Expiry | None, keeps_earliest: bool
) -> None:
    once = Once(TIMED, expiry, keeps_earliest=keeps_earliest)
    with pytest.raises(SchemaError, match=r"'at' is null.* Filter such rows out before\n"):
        once.epoch(a_row(None))


def test_rows_without_event_time_are_duplicates_as_others_if_keys_are_kept() -> None:
    once = Once(TIMED, None)
    assert once.epoch(a_row(4), a_row(None)) == [(4, "x")]


def test_keys_go_on_at_another_parallelism() -> None:
    once = Once(TIMED, BY_EVENT_TIME)
    once.epoch(*(a_row(1, id_=n) for n in range(50)))
    with OperatorHarness.restore(once.harness.checkpoint(), parallelism=3) as again:
        again.push([a_row(2, id_=n) for n in range(60)])
        assert sorted(row["id"] for row in again.barrier().rows()) == list(range(50, 60))


def test_state_that_grows_without_end_is_warned_of_unless_it_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = pen.Pipeline("p").read("rows", pen.list_source([{"id": 1}]))
    with caplog.at_level(logging.WARNING):
        rows.deduplicate("asked", "id", ttl="forever")
        assert caplog.messages == []
        rows.deduplicate("once", "id")
    assert "deduplicate 'once'" in caplog.text
    assert "ttl=" in caplog.text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"keep": "frist"}, "did you mean 'first'"),
        ({"keep": "last"}, "no event time"),
        ({"keep": "last", "ttl": "1h"}, "ttl= goes with keep='first'"),
        ({"keep": "earliest", "ttl": "1h"}, "no event time .* the earliest"),
        ({"on": []}, "name them as on="),
        ({"on": "idd"}, "no column 'idd'"),
        ({"ttl": "0s"}, "it must be positive"),
        ({"ttl": "soon"}, "ttl"),
    ],
)
def test_what_cannot_be_deduplicated_is_refused_when_the_pipeline_is_built(
    options: dict[str, Any], problem: str
) -> None:
    pipeline = pen.Pipeline("p")
    rows = pipeline.read("rows", pen.list_source([{"id": 1}]))
    rows.deduplicate("once", **{"on": "id", **options}).write("out", pen.blackhole())
    with pytest.raises(UserError, match=problem):
        pipeline.graph()


def test_a_changelog_is_refused_and_the_way_out_is_named() -> None:
    pipeline = pen.Pipeline("p")
    rows = pipeline.read("rows", pen.list_source([{"id": 1}]))
    table = rows.from_upserts("table", key="id")
    table.deduplicate("once", "id", ttl="1h").write("out", pen.blackhole())
    with pytest.raises(UserError, match="Deduplicate the rows that the changelog"):
        pipeline.graph()
