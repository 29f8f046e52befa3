"""What Kafka knows about records, as columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as pen
from penstock.connectors.kafka.fetched import Range
from penstock.connectors.kafka.positions import Held, Partition, PartitionOffset
from penstock.connectors.kafka.records import Chunk, Piece
from penstock.connectors.kafka.source import KafkaSource
from penstock.errors import UserError


def test_a_timestamp_that_no_column_holds_is_unknown() -> None:
    millis = np.array([0, -1, 1_700_000_000_000_000_000, 5])
    values = pa.array([b"a", b"b", b"c", b"d"])
    chunk = Chunk(np.arange(4), values, {}, millis, 5, 4)
    times = Piece(Partition("a", 0), [chunk], 4).column("timestamp")
    assert times.cast(pa.int64()).to_pylist() == [0, None, None, 5_000]


class _Held:
    """Topics of which all before an offset was removed."""

    @property
    def calls(self) -> "_Held":
        return self

    def held(self, partitions: Sequence[Partition]) -> dict[str, Held]:
        return {each.split: Held(500, 900) for each in partitions}


def test_what_is_gone_of_a_range_is_lost_up_to_its_end_and_what_is_behind_it_is_not() -> (
    None
):
    spec = pen.kafka("a", servers="a:1", schema={"n": int}, on_lost="continue")
    source: Any = KafkaSource(spec.source_config())
    source._topics = _Held()
    one = Partition("a", 0)
    offsets = {one: PartitionOffset("id", 150)}
    # Whether the offsets from 200 on are gone as well is asked when they are planned.
    assert source._go_on(one, 150, {one: Range(0, 200)}, offsets) == 200
    assert offsets[one].lost == 50
    assert source._go_on(one, 200, {one: Range(0, 700)}, offsets) == 500
    assert offsets[one].lost == 350


def test_what_is_gone_of_a_range_is_refused_unless_the_user_accepts_it() -> None:
    spec = pen.kafka("a", servers="a:1", schema={"n": int})
    source: Any = KafkaSource(spec.source_config())
    source._topics = _Held()
    one = Partition("a", 0)
    with pytest.raises(UserError, match="offsets 150 to 199 of a/0 were removed"):
        source._go_on(one, 150, {one: Range(0, 200)}, {one: PartitionOffset("id", 150)})
