from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.schema import StreamSchema
from penstock.core.watermark import IDLE, MAX_EVENT_TIME, EventTime, Watermark
from penstock.errors import SchemaError, UserError
from penstock.graph.logical import MAIN, Node, OperatorSpec
from penstock.operators.event_time import WatermarkConfig, _latest_by
from tests.builders.chain_rig import OPERATOR, REGISTRY, ChainRig, Ran, an_operator

_FIELDS: list[Any] = [pa.field("device", pa.string()), pa.field("ts", pa.timestamp("us"))]
SCHEMA = pa.schema(_FIELDS)
STREAM = StreamSchema(SCHEMA, "ts")
BY_DEVICE = WatermarkConfig(delay_micros=10, partition_column="device").to_operator_spec()
BY_DEVICE_OR_IDLE = WatermarkConfig(
    delay_micros=10, partition_column="device", idle_timeout_micros=100
).to_operator_spec()
Rows = Sequence[tuple[str | None, int]]


def a_batch(rows: Rows) -> pa.RecordBatch:
    devices, times = zip(*rows, strict=True)
    columns: list[Any] = [
        pa.array(devices, pa.string()),
        pa.array(times, pa.timestamp("us")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class Generator:
    """A generator of watermarks alone in its chain, built again in every epoch."""

    def __init__(self, spec: OperatorSpec, stream: StreamSchema) -> None:
        self.spec = spec
        self.stream = stream
        self.rig = ChainRig(REGISTRY, ())
        self.ran: list[Ran] = []

    def say(
        self, *rows: Rows, now: int = 0, incoming: Watermark | None = IDLE
    ) -> list[int | str | None]:
        """Run an epoch with one subtask per list of rows; return what each says."""
        batches = [[a_batch(own)] if own else [] for own in rows]
        return self.say_batches(*batches, now=now, incoming=incoming)

    def say_batches(
        self,
        *given: list[pa.RecordBatch],
        now: int = 0,
        incoming: Watermark | None = IDLE,
    ) -> list[int | str | None]:
        """Run an epoch with one subtask per list of batches; return what each says."""
        node = Node(OPERATOR, self.spec, inputs=(self.stream,), outputs={MAIN: self.stream})
        self.rig.nodes = (node,)
        self.rig.restart()
        batches = [[(OPERATOR, 0, batch) for batch in own] for own in given]
        self.ran = self.rig.run_subtasks(batches, now=now, spoken={(OPERATOR, 0): incoming})
        said = [ran.watermarks[OPERATOR] for ran in self.ran]
        return [
            answer.micros
            if isinstance(answer, EventTime)
            else "idle"
            if answer == IDLE
            else None
            for answer in said
        ]

    def end(self, subtasks: int) -> list[int | None]:
        """End the input; return how far each subtask tells that event time came."""
        ended = MAX_EVENT_TIME.micros
        assert self.say(*[[]] * subtasks, incoming=MAX_EVENT_TIME) == [ended] * subtasks
        ends = [ran.watermarks[OPERATOR] for ran in self.ran]
        return [end.reached_micros for end in ends if isinstance(end, EventTime)]

    @property
    def wake_ups(self) -> list[int | None]:
        return [ran.reports[OPERATOR].wake_up_micros for ran in self.ran]


def test_the_watermark_is_the_latest_event_time_less_the_delay() -> None:
    generator = Generator(WatermarkConfig(delay_micros=10).to_operator_spec(), STREAM)

    assert generator.say([("a", 100), ("b", 70)]) == [90]
    assert generator.say([("a", 50)]) == [90]
    assert generator.say([]) == [90]
    assert generator.say([("a", 120)]) == [110]


def test_rows_are_passed_on_as_they_are() -> None:
    generator = Generator(BY_DEVICE, STREAM)

    generator.say([("a", 1), (None, 2)])

    assert generator.ran[0].left[OPERATOR, MAIN].batches == [a_batch([("a", 1), (None, 2)])]


def test_without_rows_a_subtask_is_idle_and_holds_nobody_back() -> None:
    generator = Generator(WatermarkConfig().to_operator_spec(), STREAM)

    assert generator.say([("a", 5)], [], []) == [5, "idle", "idle"]


def test_with_a_timeout_a_subtask_without_rows_is_waited_for_first() -> None:
    generator = Generator(
        WatermarkConfig(idle_timeout_micros=100).to_operator_spec(), STREAM
    )

    assert generator.say([("a", 5)], [], now=1000) == [5, None]
    assert generator.wake_ups == [1100, 1100]
    assert generator.say([("a", 6)], [], now=1099) == [6, None]
    assert generator.say([], [], now=1100) == [6, "idle"]


def test_without_a_column_each_subtask_holds_the_others_back() -> None:
    generator = Generator(WatermarkConfig().to_operator_spec(), STREAM)

    assert generator.say([("a", 5)], [("a", 50)]) == [5, 50]
    assert generator.say([], [("a", 60)]) == [5, 60]


def test_the_slowest_partition_decides() -> None:
    generator = Generator(BY_DEVICE, STREAM)

    assert generator.say([("a", 100), ("b", 60), ("a", 200)]) == [50]
    assert generator.say([("b", 300)]) == [190]


def test_a_partition_without_a_name_is_one_too() -> None:
    generator = Generator(BY_DEVICE, STREAM)

    assert generator.say([("a", 100), (None, 60), ("None", 80)]) == [50]


def test_an_idle_partition_is_left_out_until_it_wakes_up() -> None:
    generator = Generator(BY_DEVICE_OR_IDLE, STREAM)

    assert generator.say([("a", 100), ("b", 60)], now=0) == [50]
    assert generator.wake_ups == [100]
    assert generator.say([("a", 200)], now=50) == [50]
    assert generator.say([("a", 300)], now=100) == [290]
    assert generator.wake_ups == [200]
    assert generator.say([("b", 400)], now=120) == [290]
    assert generator.say([("b", 500)], now=200) == [490]


def test_all_partitions_idle_is_idle_until_rows_come() -> None:
    generator = Generator(BY_DEVICE_OR_IDLE, STREAM)
    generator.say([("a", 100)], now=0)

    assert generator.say([], now=100) == ["idle"]
    assert generator.wake_ups == [None]
    assert generator.say([("a", 90)], now=101) == [90]  # the latest one still counts


def test_what_the_input_says_is_ignored_but_for_the_end() -> None:
    generator = Generator(BY_DEVICE, STREAM)

    assert generator.say([("a", 100)], incoming=EventTime(7)) == [90]
    assert generator.say([], incoming=MAX_EVENT_TIME) == [MAX_EVENT_TIME.micros]


def test_the_end_tells_how_far_the_furthest_partition_came() -> None:
    generator = Generator(BY_DEVICE, STREAM)
    generator.say([("a", 100), ("b", 60)], [("c", 300)], [])

    assert generator.end(3) == [290, 290, 290]
    assert Generator(BY_DEVICE, STREAM).end(1) == [None]


def test_the_end_tells_it_after_a_rescale_and_with_another_partition_column_too() -> None:
    generator = Generator(WatermarkConfig(delay_micros=10).to_operator_spec(), STREAM)
    generator.say([("a", 100)], [("a", 200)])
    generator.say([("a", 130)])
    generator.say([("a", 130)], [])
    generator.spec = BY_DEVICE
    generator.say([("b", 140)])
    generator.say([("b", 150)])

    assert generator.say([]) == [140]
    assert generator.end(1) == [190]


def test_rows_of_an_epoch_without_a_watermark_are_not_forgotten() -> None:
    generator = Generator(BY_DEVICE, STREAM)

    generator.say([("a", 100)], incoming=None)

    assert generator.say([]) == [90]


def test_a_partition_that_moves_is_held_until_its_rows_are_seen_elsewhere() -> None:
    generator = Generator(BY_DEVICE, STREAM)

    assert generator.say([("a", 100)], [("b", 200)]) == [90, 190]
    assert generator.say([], [("b", 300)]) == [90, 290]
    assert generator.say([], [("b", 400), ("a", 350)]) == [90, 340]
    assert generator.say([], [("b", 500), ("a", 450)]) == ["idle", 440]
    assert generator.say([], []) == ["idle", 440]


def test_a_rescale_neither_stalls_nor_runs_ahead_of_a_partition() -> None:
    generator = Generator(BY_DEVICE, STREAM)

    assert generator.say([("a", 100), ("b", 120), ("c", 140)]) == [90]
    # From 1 to 3 subtasks: "a" and "c" come elsewhere, "b" has not been seen yet.
    assert generator.say([], [("a", 300)], [("c", 340)]) == [90, 290, 330]
    # Subtask 0 no longer holds "a" and "c", but still "b", which only it knows of.
    assert generator.say([], [("a", 400)], [("c", 440)]) == [110, 390, 430]
    assert generator.say([("b", 500)], [], []) == [490, 390, 430]
    # From 3 to 2: whoever fed the third subtask is spoken for by another one.
    assert generator.say([], []) == [430, 390]
    # "a" and "b" change places: in that epoch they are spoken for by both.
    assert generator.say([("a", 600)], [("b", 700)]) == [430, 390]
    assert generator.say([("a", 600)], [("c", 800)]) == [430, 690]
    assert generator.say([("a", 610)], []) == [600, 690]


def test_an_idle_timeout_goes_on_across_a_rescale() -> None:
    generator = Generator(BY_DEVICE_OR_IDLE, STREAM)
    assert generator.say([("a", 100)], [("b", 500)], [("c", 300)], now=0) == [90, 490, 290]

    assert generator.say([], [], now=60) == [90, 490]
    assert generator.wake_ups == [100, 100]
    assert generator.say([], [("b", 500)], now=100) == ["idle", 490]


def test_without_a_column_a_rescale_begins_with_new_inputs() -> None:
    generator = Generator(WatermarkConfig().to_operator_spec(), STREAM)
    assert generator.say([("a", 100)], [("a", 200)]) == [100, 200]

    assert generator.say([], [], []) == ["idle", "idle", "idle"]
    assert generator.say([("a", 50)], [], [("a", 300)]) == [50, "idle", 300]
    assert generator.say([("a", 150)], []) == [150, "idle"]
    assert generator.say([], []) == [150, "idle"]


def test_state_of_another_partition_column_holds_nobody_back() -> None:
    generator = Generator(WatermarkConfig(delay_micros=10).to_operator_spec(), STREAM)
    generator.say([("a", 100)])
    generator.spec = BY_DEVICE

    assert generator.say([("b", 300)]) == [290]
    generator.spec = WatermarkConfig(delay_micros=10).to_operator_spec()
    assert generator.say([("b", 400)]) == [390]


def test_the_time_column_can_be_named_here() -> None:
    untimed = StreamSchema(SCHEMA)
    spec = WatermarkConfig(time_column="ts").to_operator_spec()
    generator = Generator(spec, untimed)

    output = an_operator(spec).output_schema((untimed,))

    assert output == STREAM
    assert generator.say([("a", 100)]) == [100]


def test_everything_that_does_not_fit_is_reported_at_once() -> None:
    spec = WatermarkConfig(time_column="tss", partition_column="devise").to_operator_spec()

    with pytest.raises(SchemaError) as caught:
        an_operator(spec).output_schema((STREAM,))

    assert "time column 'tss' is not a column; did you mean 'ts'" in caught.value.message
    assert "did you mean 'device'" in caught.value.message


def test_a_stream_without_event_time_is_refused() -> None:
    with pytest.raises(SchemaError, match="name the time column"):
        an_operator(WatermarkConfig().to_operator_spec()).output_schema(
            (StreamSchema(SCHEMA),)
        )


@pytest.mark.parametrize("wrong", [{"delay_micros": -1}, {"idle_timeout_micros": 0}])
def test_impossible_durations_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        an_operator(OperatorSpec("watermark", wrong))


def test_values_of_a_dictionary_that_no_row_has_are_no_partitions() -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema([pa.field("device", kind), _FIELDS[1]])
    generator = Generator(BY_DEVICE, StreamSchema(schema, "ts"))
    devices = pa.DictionaryArray.from_arrays(
        pa.array([0, 2, None, 3], pa.int8()), pa.array(["a", "unused", "b", "a"])
    )
    times = pa.array([100, 200, 300, 400], pa.timestamp("us"))
    batch = pa.RecordBatch.from_arrays([devices, times], schema=schema)

    assert generator.say_batches([batch]) == [190]
    assert set(_latest_by(devices, times.cast(pa.int64()).to_numpy()).items()) == {
        ("a", 400),
        ("b", 200),
        (None, 300),
    }


@pytest.mark.parametrize("kind", [pa.binary(), pa.binary(2), pa.large_binary()])
def test_bytes_name_partitions_whether_they_are_text_or_not(kind: Any) -> None:
    values = [b"\xff\x00", b"ab", None, b"\x00a", b"\xff\x01", b"ab"]
    times = pa.array(range(6), pa.int64()).to_numpy()
    latest = _latest_by(pa.array(values, kind), times)
    assert latest == {"\0ff00": 0, "ab": 5, None: 2, "\0" + "0061": 3, "\0ff01": 4}
