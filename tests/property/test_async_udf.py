"""Async functions under any history of silence and rescaling: once each, in order, in time."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.ids import owner_of
from penstock.core.watermark import MAX_EVENT_TIME, MIN_MICROS, EventTime
from tests.unit.operators.udfs.by_hand import OperatorByHand
from tests.unit.operators.udfs.service import KEYED, Service, rows

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (the rows have none either)
USERS = [f"user-{number}" for number in range(6)]


@dataclass(frozen=True)
class Step:
    """One epoch: who sends rows of what age, what gets no answer, and how wide it runs."""

    sent: list[tuple[str, int]]
    """Users, and how far beyond the last watermark their rows are; negative: late."""
    silent: int
    """Which calls get no answer: those whose number has this remainder by 3."""
    parallelism: int


STEPS = st.lists(
    st.builds(
        Step,
        sent=st.lists(st.tuples(st.sampled_from(USERS), st.integers(-15, 30)), max_size=6),
        silent=st.integers(0, 3),
        parallelism=st.integers(1, 3),
    ),
    min_size=1,
    max_size=5,
)


def _batches(step: Step, first: int, watermark: int) -> dict[int, list[pa.RecordBatch]]:
    given: dict[int, list[pa.RecordBatch]] = {}
    for offset, (user, age) in enumerate(step.sent):
        batch = rows(first + offset, user=user, at=watermark + age)
        owner = owner_of(int(KEYED.key_hashes_of(batch)[0]), step.parallelism)
        given.setdefault(owner, []).append(batch)
    return given


@given(steps=STEPS, ordered=st.booleans())
@pytest.mark.slow
@settings(deadline=None, max_examples=60)
def test_rows_leave_once_in_order_and_never_behind_the_watermark(
    steps: list[Step], ordered: bool
) -> None:
    service = Service()
    by_hand = OperatorByHand(lambda: service.build(ordered=ordered), KEYED)
    sent_by_user: dict[str, list[int]] = {user: [] for user in USERS}
    left_by_user: dict[str, list[int]] = {user: [] for user in USERS}
    late: set[int] = set()
    promised, watermark, count = MIN_MICROS, 0, 0
    for number, step in enumerate([*steps, Step([], 3, 2)]):
        is_last = number == len(steps)
        service.silent = {n for n in range(100) if n % 3 == step.silent}
        by_hand.parallelism = step.parallelism
        given_rows = _batches(step, count, watermark)
        for offset, (user, age) in enumerate(step.sent):
            sent_by_user[user].append(count + offset)
            if age < 0 and number > 0:
                late.add(count + offset)
        count += len(step.sent)
        watermark += 10
        outputs = by_hand.run_epoch(
            given_rows, MAX_EVENT_TIME if is_last else EventTime(watermark)
        )
        for output in outputs:
            for row in output.main:
                left_by_user[row["user"]].append(row["n"])
                assert row["tens"] == 10 * row["n"]
                micros = (row["at"] - EPOCH) // timedelta(microseconds=1)
                assert micros >= promised or row["n"] in late
        said = [output.watermark for output in outputs]
        times = [time.micros for time in said if isinstance(time, EventTime)]
        assert len(times) == len(outputs)
        assert min(times) >= promised, "it never goes back"
        promised = min(times)
    assert {user: sorted(left) for user, left in left_by_user.items()} == sent_by_user
    if ordered:
        assert left_by_user == sent_by_user
