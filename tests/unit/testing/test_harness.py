from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from penstock.connectors.memory import list_source
from penstock.core.ids import JobId
from penstock.core.schema import StreamSchema
from penstock.core.watermark import IDLE, EventTime
from penstock.errors import ErrorCode, SchemaError, StateError, UserCodeError, UserError
from penstock.operators.expressions import filter_spec
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.tables.specs import TimeDomain
from penstock.testing.given import OperatorLike
from penstock.testing.harness import OperatorHarness
from penstock.testing.stepped_job import Amnesia
from tests.builders.kept_epochs import read_metadata
from tests.unit.testing.tested_operators import (
    CLICKS,
    COMMITTED,
    TIMED,
    BothSides,
    LateFilter,
    Totals,
    heartbeats,
    hidden_totals,
    ledger,
    refuses,
    reminders,
)

TEN_SECONDS = 1_767_225_610_000_000
"""Ten seconds into 2026."""


def test_rows_are_processed_at_the_barrier_and_state_goes_on_from_epoch_to_epoch() -> None:
    with OperatorHarness(Totals(), CLICKS, key="user") as harness:
        harness.push({"user": ["a", "b", "a"], "n": [1, 2, 3]})
        assert harness.rows() == []
        first = harness.barrier()
        assert first.rows() == [{"user": "a", "n": 4}, {"user": "b", "n": 2}]
        assert [batch.num_rows for batch in first.batches()] == [2]
        assert first.table().column("n").to_pylist() == [4, 2]
        harness.push([{"user": "a", "n": 10}])
        assert harness.barrier().rows() == [{"user": "a", "n": 14}]
        assert harness.epoch == 2
        assert [row["n"] for row in harness.take()] == [4, 2, 14]
        assert harness.rows() == []


@pytest.mark.parametrize(
    "rows",
    [
        {"user": ["a"], "n": [1]},
        [{"user": "a", "n": 1}],
        pa.record_batch({"user": ["a"], "n": [1]}),
        pa.table({"user": ["a"], "n": [1]}),
        pl.DataFrame({"user": ["a"], "n": [1]}),
        [pa.record_batch({"user": ["a"], "n": [1]})],
    ],
    ids=["columns", "dictionaries", "batch", "table", "frame", "batches"],
)
def test_rows_are_given_in_whatever_form_is_at_hand(rows: object) -> None:
    with OperatorHarness(Totals(), CLICKS, key="user") as harness:
        harness.push(rows)
        assert harness.barrier().rows() == [{"user": "a", "n": 1}]


def test_everything_that_is_wrong_with_given_rows_is_said_at_once() -> None:
    with OperatorHarness(Totals(), CLICKS, key="user") as harness:
        with pytest.raises(SchemaError) as failure:
            harness.push({"usr": ["a"], "n": ["one", "two"]})
        assert "'usr' is not in the schema" in failure.value.message
        assert "'user' is missing" in failure.value.message
        assert "'n' is no int64" in failure.value.message
        with pytest.raises(SchemaError, match="different lengths"):
            harness.push({"user": ["a"], "n": pa.array([1, 2])})


def test_one_row_where_columns_are_meant_is_refused_and_not_taken_apart() -> None:
    with (
        OperatorHarness(Totals(), CLICKS, key="user") as harness,
        pytest.raises(SchemaError, match="'abc' is one value; give a list"),
    ):
        harness.push({"user": "abc", "n": [1]})


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("amnesia", list(Amnesia))
def test_a_sound_operator_gives_the_same_at_any_parallelism_and_with_any_amnesia(
    parallelism: int, amnesia: Amnesia
) -> None:
    with OperatorHarness(
        Totals(), CLICKS, key="user", parallelism=parallelism, amnesia=amnesia
    ) as harness:
        for number in range(20):
            harness.push({"user": ["a", "b", "c", "d"], "n": [number, 1, 2, 3]})
            harness.barrier()
        totals = {row["user"]: row["n"] for row in harness.take()}
        assert totals == {"a": 190, "b": 20, "c": 40, "d": 60}
        assert {r["user"]: r["n"] for r in harness.state("totals").to_pylist()} == totals


def test_amnesia_finds_an_operator_that_hides_state_in_an_attribute() -> None:
    def last_total(*, amnesia: bool) -> int:
        with OperatorHarness(
            hidden_totals(), CLICKS, key="user", amnesia=amnesia
        ) as harness:
            for _ in range(3):
                harness.push({"user": ["a"], "n": [1]})
                harness.barrier()
            return int(harness.rows()[-1]["n"])

    assert last_total(amnesia=False) == 3
    assert last_total(amnesia=True) == 1


@pytest.mark.parametrize("amnesia", list(Amnesia))
def test_of_several_attempts_of_an_epoch_only_the_last_counts(amnesia: Amnesia) -> None:
    with OperatorHarness(Totals(), CLICKS, key="user", amnesia=amnesia) as harness:
        for _ in range(3):
            harness.push({"user": ["a"], "n": [1]})
            harness.barrier(attempts=3)
        assert [row["n"] for row in harness.rows()] == [1, 2, 3]
        assert harness.epoch == 3


def test_an_epoch_without_a_number_of_attempts_is_run_once() -> None:
    with OperatorHarness(Totals(), CLICKS, key="user") as harness:
        harness.push({"user": ["a"], "n": [1]})
        assert [row["n"] for row in harness.barrier(attempts=0).rows()] == [1]
        assert harness.epoch == 1


def test_two_inputs_are_told_apart_and_their_watermarks_merged() -> None:
    with OperatorHarness(BothSides(), CLICKS, TIMED) as harness:
        harness.push({"user": ["a"], "n": [1]})
        harness.push({"user": ["a", "b"], "at": [1, 2]}, input=1)
        harness.watermark(5, input=0)
        first = harness.barrier()
        assert first.rows() == [{"side": 0, "rows": 1}, {"side": 1, "rows": 2}]
        assert first.watermark is None
        harness.watermark(3, input=1)
        assert harness.barrier().watermark == EventTime(3)
        harness.watermark(IDLE, input=1)
        assert harness.barrier().watermark == EventTime(5)
        with pytest.raises(UserError, match="no input 2"):
            harness.push({"user": ["a"], "n": [1]}, input=2)


def test_a_broadcast_input_reaches_every_subtask() -> None:
    keyed = StreamSchema(CLICKS, key_columns=("user",))
    with OperatorHarness(
        BothSides(), keyed, StreamSchema(TIMED), parallelism=3, broadcast=[1]
    ) as harness:
        harness.push({"user": ["a"], "n": [1]})
        harness.push({"user": ["a"], "at": [1]}, input=1)
        harness.barrier()
        sides = [row["side"] for row in harness.rows()]
        assert (sides.count(0), sides.count(1)) == (1, 3)


def test_timers_by_event_time_fire_when_the_watermark_reaches_them() -> None:
    with OperatorHarness(
        reminders(), TIMED, key="user", time_column="at", amnesia=Amnesia.EVERYTHING
    ) as harness:
        harness.push({"user": ["a"], "at": ["2026-01-01T00:00:00"]})
        harness.watermark("2026-01-01T00:00:09.999999")
        assert harness.barrier().rows() == []
        assert harness.timers() == [{"user": "a", "due_micros": TEN_SECONDS}]
        harness.watermark(datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC))
        fired = harness.barrier().rows()
        assert [row["user"] for row in fired] == ["a"]
        assert harness.timers() == []
        assert harness.barrier().rows() == []


def test_timers_by_processing_time_fire_at_the_barrier_after_the_clock_has_passed_them() -> (
    None
):
    domain = TimeDomain.PROCESSING_TIME
    with OperatorHarness(reminders(domain), TIMED, key="user") as harness:
        harness.push({"user": ["a"], "at": [0]})
        waiting = harness.barrier()
        assert waiting.rows() == []
        assert waiting.wake_up_micros == TEN_SECONDS
        assert harness.timers(domain) == [{"user": "a", "due_micros": TEN_SECONDS}]
        harness.advance("9s")
        assert harness.barrier().rows() == []
        harness.advance("1s")
        assert len(harness.barrier().rows()) == 1
        assert harness.timers(domain) == []
        with pytest.raises(UserError, match="no operator under test sets timers"):
            harness.timers(TimeDomain.EVENT_TIME)


def test_ticks_come_once_per_interval_of_the_clock() -> None:
    with OperatorHarness(heartbeats(), CLICKS) as harness:
        ticks = []
        for _ in range(6):
            ticks.append(len(harness.barrier().rows()))
            harness.advance("2s")
        assert ticks == [1, 0, 0, 1, 0, 1]


def test_late_rows_come_out_of_their_side_output_and_are_counted() -> None:
    with OperatorHarness(LateFilter(), TIMED, time_column="at") as harness:
        harness.watermark(100)
        harness.barrier()
        harness.push({"user": ["early", "late"], "at": [100, 99]})
        harness.barrier()
        assert [row["user"] for row in harness.rows()] == ["early"]
        assert [row["user"] for row in harness.rows("late")] == ["late"]
        assert harness.counters == {"late": 1}
        with pytest.raises(UserError, match="did you mean 'late'"):
            harness.rows("lat")


def test_the_end_of_data_closes_operators_once_and_for_good() -> None:
    with OperatorHarness(heartbeats(), CLICKS) as harness:
        harness.barrier()
        assert [row["user"] for row in harness.end().rows()] == ["EndOfData"]
        harness.advance("1h")
        assert harness.barrier().rows() == []
        with pytest.raises(UserError, match="has ended"):
            harness.push({"user": ["a"], "n": [1]})


def test_a_stop_closes_operators_and_the_next_epoch_goes_on_from_their_state() -> None:
    with OperatorHarness([Totals(), heartbeats()], CLICKS, key="user") as harness:
        harness.push({"user": ["a"], "n": [1]})
        harness.barrier()
        harness.take()
        harness.push({"user": ["a"], "n": [1]})
        assert [row["user"] for row in harness.stop().rows()] == ["Stop"]
        harness.push({"user": ["a"], "n": [1]})
        harness.stop(tells_operators=False)
        assert [row["user"] for row in harness.rows()] == ["Stop"]
        assert harness.state("totals").to_pylist() == [{"user": "a", "n": 3}]


def test_a_chain_passes_rows_and_watermarks_along() -> None:
    chain: list[OperatorLike] = [filter_spec(pl.col("n") > 1), Totals(), ledger("chain")]
    with OperatorHarness(chain, CLICKS) as harness:
        harness.push({"user": ["a", "b"], "n": [1, 2]})
        harness.watermark(7)
        assert harness.barrier().watermark == EventTime(7)
        assert harness.state("totals").to_pylist() == [{"user": "b", "n": 2}]
        assert harness.commits == {1: {"staged": {0: b"b"}}}


def test_commits_wait_to_be_asked_for_and_may_be_repeated() -> None:
    COMMITTED.pop("repeated", None)
    with OperatorHarness(ledger("repeated"), CLICKS) as harness:
        harness.push({"user": ["a"], "n": [1]})
        harness.barrier()
        harness.barrier()
        harness.push({"user": ["b"], "n": [1]})
        harness.barrier()
        assert sorted(harness.commits) == [1, 3]
        assert "repeated" not in COMMITTED
        harness.commit(3)
        harness.commit()
        harness.commit(1)
        assert COMMITTED["repeated"] == {1: ["a"], 3: ["b"]}
        with pytest.raises(UserError, match="staged nothing"):
            harness.commit(2)


def test_all_subtasks_commit_together() -> None:
    COMMITTED.pop("together", None)
    with OperatorHarness(ledger("together"), CLICKS, key="user", parallelism=3) as harness:
        harness.push({"user": [f"u{n}" for n in range(20)], "n": [0] * 20})
        harness.barrier()
        harness.commit()
        assert sorted(harness.commits[1]["staged"]) == [0, 1, 2]
        assert len(COMMITTED["together"][1]) == 20


def test_an_error_names_its_place_and_leaves_the_epoch_before_as_it_was() -> None:
    with OperatorHarness([refuses(), Totals()], CLICKS, key="user") as harness:
        harness.push({"user": ["a"], "n": [1]})
        harness.barrier()
        harness.push({"user": ["a", "bad"], "n": [1, 1]})
        with pytest.raises(UserCodeError) as failure:
            harness.barrier()
        assert failure.value.context["operator"] == "operator-1"
        assert failure.value.context["epoch"] == 2
        assert isinstance(failure.value.__cause__, ValueError)
        harness.push({"user": ["a"], "n": [1]})
        harness.barrier()
        assert harness.epoch == 2
        assert harness.state("totals").to_pylist() == [{"user": "a", "n": 2}]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3)])
def test_a_checkpoint_is_restored_at_another_parallelism_and_both_go_on(
    before: int, after: int
) -> None:
    users = [f"u{number}" for number in range(30)]
    rows = {"user": users, "n": [1] * 30}
    with OperatorHarness(Totals(), CLICKS, key="user", parallelism=before) as harness:
        harness.push(rows)
        harness.barrier()
        checkpoint = harness.checkpoint()
        with OperatorHarness.restore(checkpoint, parallelism=after) as restored:
            assert restored.epoch == checkpoint.epoch == 1
            for _ in range(3):
                restored.push(rows)
                restored.barrier()
            assert {row["n"] for row in restored.state("totals").to_pylist()} == {4}
            parts = [
                restored.state("totals", subtask=index).num_rows for index in range(after)
            ]
            assert sum(parts) == 30
        harness.push(rows)
        harness.barrier()
        assert {row["n"] for row in harness.state("totals").to_pylist()} == {2}


def test_timers_and_watermarks_survive_a_restore_at_another_parallelism() -> None:
    users = [f"u{number}" for number in range(10)]
    with OperatorHarness(reminders(), TIMED, key="user", time_column="at") as harness:
        harness.push({"user": users, "at": ["2026-01-01"] * 10})
        harness.watermark("2026-01-01")
        harness.barrier()
        checkpoint = harness.checkpoint()
    with OperatorHarness.restore(checkpoint, parallelism=3) as restored:
        assert restored.barrier().watermark == EventTime(TEN_SECONDS - 10_000_000)
        restored.watermark("2026-01-01T00:00:10")
        assert sorted(row["user"] for row in restored.barrier().rows()) == users


def test_a_newer_operator_can_be_put_on_an_older_checkpoint() -> None:
    with OperatorHarness(Totals(), CLICKS, key="user") as harness:
        harness.push({"user": ["a"], "n": [1]})
        harness.barrier()
        checkpoint = harness.checkpoint()
    with (
        OperatorHarness.restore(checkpoint, operator=hidden_totals()) as restored,
        pytest.raises(StateError) as failure,
    ):
        restored.barrier()
    assert failure.value.code is ErrorCode.NO_REGISTERED_TABLE


def test_many_epochs_stay_fast_because_files_are_merged() -> None:
    with OperatorHarness(Totals(), CLICKS, key="user") as harness:
        for _ in range(60):
            harness.push({"user": ["a"], "n": [1]})
            harness.barrier()
        assert harness.state("totals").to_pylist() == [{"user": "a", "n": 60}]
        found = JobCheckpoints(harness.checkpoint().store, JobId("harness"), harness.clock)
        part = read_metadata(found.store, found.newest())["operator"][0]
        files = part.table_checkpoint_metadata["totals"].ByteSize()
        assert files < 60 * 150


def test_an_unknown_table_is_refused_with_the_known_ones() -> None:
    with (
        OperatorHarness(Totals(), CLICKS, key="user") as harness,
        pytest.raises(StateError, match="did you mean 'totals'"),
    ):
        harness.state("total")


def test_what_cannot_be_tested_is_refused_before_anything_runs() -> None:
    with pytest.raises(UserError, match="needs the schema"):
        OperatorHarness(Totals())
    with pytest.raises(UserError, match="no operator to test"):
        OperatorHarness([], CLICKS)
    with pytest.raises(UserError, match="is a sink: no operator can follow"):
        OperatorHarness([ledger("first"), Totals()], CLICKS)
    with pytest.raises(UserError, match="test it with SourceHarness"):
        OperatorHarness(list_source([{"n": 1}]), CLICKS)


def test_a_commit_that_fails_names_the_operator_and_can_be_tried_again() -> None:
    with OperatorHarness(ledger("unwritable"), CLICKS) as harness:
        harness.push({"user": ["a"], "n": [1]})
        harness.barrier()
        COMMITTED["unwritable"] = MappingProxyType({})  # type: ignore[assignment] # as a full disk
        with pytest.raises(UserCodeError, match="in handle_commit of epoch 1"):
            harness.commit()
        del COMMITTED["unwritable"]
        harness.commit()
        assert COMMITTED["unwritable"] == {1: ["a"]}


def test_a_dead_process_leaves_what_was_checkpointed() -> None:
    with OperatorHarness(hidden_totals(), CLICKS, key="user") as harness:
        harness.push({"user": ["a"], "n": [1]})
        harness.barrier()
        harness.forget()
        harness.push({"user": ["a"], "n": [1]})
        harness.barrier()
        assert harness.table().column("n").to_pylist() == [1, 1]


@pytest.mark.parametrize("instant", ["ten past four", True, 1.5])
def test_a_wrong_instant_says_how_to_write_one(instant: Any) -> None:
    with (
        OperatorHarness(Totals(), CLICKS, key="user") as harness,
        pytest.raises(UserError, match="not an instant"),
    ):
        harness.watermark(instant)
