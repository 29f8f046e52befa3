"""Split states that say nothing about filtered rows are read, and are written as before."""

import msgspec
import pyarrow as pa
import pytest

from penstock.core.schema import StreamSchema
from penstock.operators.splits import SplitState, SplitTimes

OLD = {
    "offset": [7, 0],
    "ended": False,
    "max_event_time_micros": 40,
    "last_active_micros": 9,
}
"""What a table held before filtered rows were told apart."""


def test_a_state_of_an_older_version_has_no_filtered_rows() -> None:
    stored = msgspec.msgpack.encode(OLD)
    state = msgspec.msgpack.decode(stored, type=SplitState)
    assert state == SplitState([7, 0], max_event_time_micros=40, last_active_micros=9)
    assert state.filtered_micros is None


@pytest.mark.parametrize("limit", [None, 0, 40, 10**15])
def test_such_a_state_goes_on_at_its_event_time(limit: int | None) -> None:
    state = msgspec.convert(OLD, SplitState)
    times = SplitTimes("read", StreamSchema(pa.schema([])))
    times.begin_epoch(limit)
    assert times.settled("a", state) is state


def test_a_state_without_filtered_rows_has_the_bytes_it_always_had() -> None:
    state = SplitState([7, 0], max_event_time_micros=40, last_active_micros=9)
    defaults = {"ended"}
    before = {name: value for name, value in OLD.items() if name not in defaults}
    assert msgspec.msgpack.encode(state) == msgspec.msgpack.encode(before)
