import pyarrow as pa
import pytest

from penstock.connectors.memory import list_sink, list_source
from penstock.core.schema import StreamSchema
from penstock.core.watermark import IDLE, MAX_EVENT_TIME, EventTime
from penstock.errors import UserError
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.operator import ONLY_SPLIT, SourceFinishType, SourceOperator
from penstock.operators.splits import SourcePhase
from penstock.testing.harness import SourceHarness
from penstock.testing.parts import CUT, EOF, PAUSE, ScriptedSource
from penstock.testing.stepped_job import Amnesia

ROWS = [{"n": number} for number in range(100)]


def numbers_of(rows: list[dict[str, int]]) -> list[int]:
    return sorted(row["n"] for row in rows)


def test_a_source_reads_within_its_budget_and_goes_on_in_the_next_epoch() -> None:
    with SourceHarness(list_source(ROWS)) as harness:
        assert numbers_of(harness.read(rows=30).rows()) == list(range(30))
        assert numbers_of(harness.read(rows=30).rows()) == list(range(30, 60))
        assert harness.splits["0"].offset == 60
        harness.read_all()
        assert numbers_of(harness.rows()) == list(range(100))


@pytest.mark.parametrize("amnesia", list(Amnesia))
def test_splits_are_read_once_each_while_the_parallelism_goes_from_2_to_3_to_1(
    amnesia: Amnesia,
) -> None:
    with SourceHarness(
        list_source(ROWS, splits=5), parallelism=2, amnesia=amnesia
    ) as harness:
        harness.read(rows=10)
        assert [len(part.splits) for part in harness.assignments] == [3, 2]
        harness.rescale(3)
        harness.read(rows=10)
        assert [len(part.splits) for part in harness.assignments] == [2, 2, 1]
        harness.rescale(1)
        harness.read_all(rows=10)
        assert numbers_of(harness.take()) == list(range(100))
        assert harness.rows() == []


def test_the_end_is_told_once_and_then_stays() -> None:
    with SourceHarness(list_source(ROWS[:3])) as harness:
        seen = [
            (harness.read().watermark, harness.assignments[0].phase, harness.has_ended)
            for _ in range(3)
        ]
    assert seen == [
        (IDLE, SourcePhase.READING, False),
        (MAX_EVENT_TIME, SourcePhase.ENDING, True),
        (MAX_EVENT_TIME, SourcePhase.ENDED, True),
    ]


def test_a_watermark_follows_the_rows_and_idle_splits_are_left_out() -> None:
    source = ScriptedSource(
        {
            "quick": [[{"at": 100}], CUT, [{"at": 200}], PAUSE("1h"), [{"at": 300}]],
            "slow": [[{"at": 10}], PAUSE("1h"), [{"at": 20}]],
        },
        schema_of_times(),
    )
    with SourceHarness(source, watermark_delay=5, idle_timeout="1m") as harness:
        assert harness.read().watermark == EventTime(5)
        harness.advance("1m")
        # `quick` read a row in this epoch, and the other one has been silent for a minute.
        assert harness.read().watermark == EventTime(195)
        harness.advance("1m")
        assert harness.read().watermark == IDLE


def schema_of_times() -> StreamSchema:
    return StreamSchema(
        pa.schema([pa.field("at", pa.timestamp("us"), nullable=False)]), "at"
    )


def test_a_script_that_stands_at_its_eof_asks_for_a_stop_and_goes_on_in_another_run() -> (
    None
):
    with SourceHarness(ScriptedSource([{"n": 1}, EOF, {"n": 2}])) as harness:
        assert numbers_of(harness.read().rows()) == [1]
        assert harness.read().finish is SourceFinishType.GRACEFUL
        assert harness.read().rows() == []
        harness.rescale(2)
        assert numbers_of(harness.read().rows()) == [2]


def test_a_source_that_does_not_end_is_told_from_one_that_does() -> None:
    with (
        SourceHarness(ScriptedSource([{"n": 1}, EOF])) as harness,
        pytest.raises(UserError, match="has not ended after 3 epochs"),
    ):
        harness.read_all(max_epochs=3)


def test_an_operator_is_refused() -> None:
    with pytest.raises(UserError, match="test it with OperatorHarness"):
        SourceHarness(list_sink("out"))


class Impatient(SourceOperator):
    """Reads a row, and stops everything at its third."""

    def name(self) -> str:
        return "impatient"

    def output_schema(self) -> StreamSchema:
        return StreamSchema(pa.schema([pa.field("n", pa.int64())]))

    def run(
        self, ctx: SourceContext, collector: SourceCollector
    ) -> SourceFinishType | None:
        number = ctx.splits[0].start or 0
        collector.collect(pa.record_batch({"n": [number]}))
        ctx.advance(ctx.splits[0].name, number + 1)
        return SourceFinishType.IMMEDIATE if number == 2 else None


def test_an_epoch_that_stops_immediately_does_not_count() -> None:
    with SourceHarness(Impatient()) as harness:
        finishes = [harness.read().finish for _ in range(4)]
        assert finishes == [None, None, *[SourceFinishType.IMMEDIATE] * 2]
        assert numbers_of(harness.rows()) == [0, 1]
        assert harness.splits["all"].offset == 2


class Forgetful(SourceOperator):
    """Gives other rows whenever an instance of it is built."""

    def name(self) -> str:
        return "forgetful"

    def output_schema(self) -> StreamSchema:
        return StreamSchema(pa.schema([("n", pa.int64())]))

    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        collector.collect([{"n": READINGS.pop()}])
        ctx.advance(ONLY_SPLIT, 1)


READINGS: list[int] = []


def test_a_source_that_reads_other_rows_the_second_time_is_refused() -> None:
    READINGS[:] = [1, 2, 3, 3]
    with SourceHarness(Forgetful()) as harness:
        harness.read(again_after=lambda: None)
        assert harness.rows() == [{"n": 3}]
        with pytest.raises(UserError, match="gave other rows"):
            harness.read(again_after=lambda: None)
