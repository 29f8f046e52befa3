import polars as pl
import pyarrow as pa
import pytest

from penstock.core.clock import ManualClock
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.operators.context import ArrowCollector, SourceCollector
from penstock.operators.splits import BudgetMeter, SourceBudget
from tests.builders.chain_rig import Taken
from tests.builders.scripted import PLAIN, SCHEMA, rows


def a_collector(*targets: Taken, late: Taken | None = None) -> ArrowCollector:
    outputs = {"main": PLAIN, "late": PLAIN}
    found = {"main": list(targets), "late": [] if late is None else [late]}
    collector = ArrowCollector("op", outputs, found)
    collector.open({})
    return collector


def a_source_collector(stream: StreamSchema = PLAIN) -> SourceCollector:
    collector = SourceCollector("read", {"main": stream, "bad": stream}, {})
    collector.budget = BudgetMeter(SourceBudget(), ManualClock())
    collector.open({})
    return collector


@pytest.mark.parametrize(
    "given",
    [
        rows(1, 2),
        pa.Table.from_batches([rows(1), rows(2)]),
        pl.DataFrame(rows(1, 2)),
        rows(1, 2).select(["at", "user", "n"]),
    ],
    ids=["batch", "table", "frame", "other-order"],
)
def test_rows_in_any_form_leave_as_batches_of_the_declared_schema(given: object) -> None:
    kept = Taken()
    a_collector(kept).collect(given)
    assert kept.numbers == [1, 2]
    assert all(batch.schema.equals(SCHEMA) for batch in kept.batches)


def test_all_targets_of_an_output_get_its_rows_also_those_of_the_epoch() -> None:
    chained, outlet, late = Taken(), Taken(), Taken()
    collector = a_collector(chained, late=late)
    collector.open({"main": [outlet]})
    collector.collect(rows(1))
    collector.collect(rows(2), "late")
    assert (chained.numbers, outlet.numbers, late.numbers) == ([1], [1], [2])


def test_rows_that_nobody_reads_are_counted_and_an_epoch_starts_the_count_anew() -> None:
    collector = a_collector()
    collector.collect(rows(1, 2, 3), "late")
    collector.collect(rows(), "late")
    assert collector.rows_emitted == {"late": 3}
    collector.open({})
    assert collector.rows_emitted == {}


def test_no_rows_reach_nobody() -> None:
    kept = Taken()
    a_collector(kept).collect(rows())
    assert kept.batches == []


def test_rows_of_another_schema_are_refused_with_every_difference() -> None:
    wrong = pa.record_batch({"usr": ["a"], "n": ["1"], "at": [1]})
    with pytest.raises(SchemaError) as raised:
        a_collector().collect(wrong)
    assert raised.value.context == {"operator": "op", "output": "main"}
    for part in (
        "operator 'op'",
        "output 'main'",
        "column 'user' is missing",
        "column 'usr' (string) is not in the schema",
        "column 'n' is string, expected int64",
        "column 'at' is int64, expected timestamp[us]",
        "output_schema",
    ):
        assert part in raised.value.message


def test_something_that_is_no_rows_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"Polars or pandas DataFrame.* got list of str"):
        a_collector().collect(["a"])
    with pytest.raises(SchemaError, match="column 'n' is missing"):
        a_collector().collect([{"user": "a"}])


def test_rows_are_refused_outside_of_an_epoch() -> None:
    collector = a_collector()
    collector.close()
    with pytest.raises(UserError) as raised:
        collector.collect(rows(1))
    assert raised.value.code is ErrorCode.EMITTED_AFTER_CLOSE
    assert "operator 'op'" in raised.value.message


def test_rows_are_refused_before_the_first_epoch() -> None:
    with pytest.raises(UserError, match="outside of its epoch"):
        ArrowCollector("op", {"main": PLAIN}, {}).collect(rows(1))


def test_an_unknown_output_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError) as raised:
        a_collector().collect(rows(1), "lat")
    assert raised.value.code is ErrorCode.UNKNOWN_OUTPUT
    assert "did you mean 'late'" in raised.value.message
    assert "Declare it in side_outputs" in raised.value.message


def test_a_sink_has_no_output_at_all() -> None:
    collector = ArrowCollector("sink", {}, {})
    collector.open({})
    with pytest.raises(UserError, match="it is a sink"):
        collector.collect(rows(1))


@pytest.mark.parametrize(
    "given",
    [rows(3, 9, 4), pa.Table.from_batches([rows(3, 9, 4)]), pl.DataFrame(rows(3, 9, 4))],
    ids=["batch", "table", "frame"],
)
def test_a_source_notes_event_times_and_size_of_rows_in_any_form(given: object) -> None:
    collector = a_source_collector()
    collector.collect(given, split="s")
    assert collector.latest_by_split == {"s": 9}
    assert collector.budget.rows_read == 3
    assert collector.budget.bytes_read == rows(3, 9, 4).nbytes


def test_a_source_notes_the_latest_event_time_per_split_within_an_epoch() -> None:
    collector = a_source_collector()
    for numbers, split in (([5], "s"), ([3], "s"), ([8], "t"), ([1], None)):
        collector.collect(rows(*numbers), split=split)
    assert collector.latest_by_split == {"s": 5, "t": 8, None: 1}
    collector.open({})
    assert collector.latest_by_split == {}


def test_a_split_without_rows_is_not_active() -> None:
    collector = a_source_collector()
    collector.collect(rows(), split="s")
    assert collector.latest_by_split == {}


def test_bad_rows_of_a_source_count_against_its_budget_but_have_no_event_time() -> None:
    collector = a_source_collector()
    collector.collect(rows(7), "bad", split="s")
    assert collector.latest_by_split == {}
    assert collector.budget.rows_read == 1


def test_a_source_without_event_time_only_notes_that_a_split_was_active() -> None:
    collector = a_source_collector(StreamSchema(SCHEMA))
    collector.collect(rows(7), split="s")
    assert collector.latest_by_split == {"s": None}


def test_rows_without_event_time_say_nothing_of_it() -> None:
    listed = [{"user": "a", "n": 1, "at": 1}, {"user": "b", "n": 2, "at": None}]
    collector = a_source_collector()
    collector.collect(pa.RecordBatch.from_pylist(listed[1:], SCHEMA), split="s")
    assert collector.latest_by_split == {"s": None}
    collector.collect(pa.RecordBatch.from_pylist(listed, SCHEMA), split="s")
    assert collector.latest_by_split == {"s": 1}
