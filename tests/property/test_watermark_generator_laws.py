"""However partitions move between subtasks, the watermark neither overtakes nor forgets one."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.schema import StreamSchema
from penstock.core.watermark import IDLE, InputWatermark, advance, event_time_of, merge
from penstock.graph.logical import MAIN, Node
from penstock.operators.event_time import WatermarkConfig
from tests.builders.chain_rig import OPERATOR, REGISTRY, ChainRig, GivenBatch

LATENESS = 5
DEVICES = ("a", "b", "c")
_FIELDS: list[Any] = [pa.field("device", pa.string()), pa.field("ts", pa.timestamp("us"))]
STREAM = StreamSchema(pa.schema(_FIELDS), "ts")
SPEC = WatermarkConfig(delay_micros=LATENESS, partition_column="device").to_operator_spec()

Rows = dict[str, tuple[int, int]]
"""By device: which subtask gets its row (modulo the parallelism), and by how much it is later."""

rows = st.dictionaries(
    st.sampled_from(DEVICES), st.tuples(st.integers(0, 2), st.integers(-LATENESS, 50))
)
epochs = st.lists(st.tuples(st.integers(1, 3), rows), max_size=6)


class Stream:
    """Devices that feed a generator, and what later operators make of its watermarks."""

    def __init__(self) -> None:
        node = Node(OPERATOR, SPEC, inputs=(STREAM,), outputs={MAIN: STREAM})
        self.rig = ChainRig(REGISTRY, [node])
        self.latest = dict.fromkeys(DEVICES, 0)
        self._inputs: tuple[InputWatermark, ...] = (InputWatermark(),)

    def run(self, parallelism: int, fed: Rows) -> None:
        batches: list[list[GivenBatch]] = [[] for _ in range(parallelism)]
        for device, (subtask, step) in fed.items():
            time = self.latest[device] + step
            self.latest[device] = max(self.latest[device], time)
            columns: list[Any] = [
                pa.array([device]),
                pa.array([time], pa.timestamp("us")),
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=STREAM.arrow)
            batches[subtask % parallelism].append((OPERATOR, 0, batch))
        self.rig.restart()
        ran = self.rig.run_subtasks(batches, spoken={(OPERATOR, 0): IDLE})
        answers = [subtask.watermarks[OPERATOR] for subtask in ran]
        self._inputs = advance(self._inputs, [merge(answers)]).inputs

    def frontier(self) -> int:
        """How far event time has come for an operator behind all subtasks."""
        known = event_time_of(self._inputs)
        assert known is not None
        return known.micros

    def slowest(self) -> int:
        return min(self.latest.values()) - LATENESS


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3), epochs)
def test_no_partition_is_overtaken_and_none_holds_the_watermark_for_ever(
    first: int, history: list[tuple[int, Rows]]
) -> None:
    stream = Stream()
    stream.run(first, {device: (index, 0) for index, device in enumerate(DEVICES)})

    for parallelism, fed in history:
        stream.run(parallelism, fed)
        assert stream.frontier() <= stream.slowest()

    parallelism = history[-1][0] if history else first
    stream.run(parallelism, {})
    assert stream.frontier() == stream.slowest()
