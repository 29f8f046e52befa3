from datetime import UTC, datetime, timedelta

import pytest

from penstock.connectors.impulse import impulse
from penstock.errors import UserError
from penstock.operators.splits import SourceBudget
from tests.builders.chain_rig import DrivenSource

SECOND = 1_000_000


def counters(rows: list[dict[str, object]]) -> list[object]:
    return sorted(row["counter"] for row in rows)  # type: ignore[type-var]


def test_it_counts_to_the_end_over_all_splits() -> None:
    source = DrivenSource(impulse(10, splits=3))

    rows = source.run_epoch()

    assert counters(rows) == list(range(10))
    assert all(row["split"] == row["counter"] % 3 for row in rows)
    assert source.has_ended()


def test_event_times_follow_from_the_counter() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    source = DrivenSource(impulse(3, start=start, step=timedelta(seconds=2)))

    times = [row["ts"] for row in source.run_epoch()]

    naive = start.replace(tzinfo=None)
    assert times == [naive, naive + timedelta(seconds=2), naive + timedelta(seconds=4)]


def test_a_budget_cuts_epochs_and_a_plan_is_repeatable() -> None:
    source, again = (DrivenSource(impulse(10, splits=2)) for _ in range(2))
    budget = SourceBudget(rows=4)

    first = source.run_epoch(budget)
    known = dict(source.known)
    rest = [counters(source.run_epoch(budget)) for _ in range(2)]

    assert again.run_epoch(budget) == first
    assert again.known == known
    assert [counters(first), *rest] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert source.has_ended()


def test_the_rate_counts_from_the_first_epoch() -> None:
    source = DrivenSource(impulse(rate=10, splits=2))

    assert source.run_epoch(now_micros=100 * SECOND) == []
    assert counters(source.run_epoch(now_micros=101 * SECOND)) == list(range(10))
    assert source.run_epoch(now_micros=101 * SECOND) == []
    half = source.run_epoch(now_micros=101 * SECOND + SECOND // 2)
    assert counters(half) == list(range(10, 15))
    assert not source.has_ended()


def test_without_a_count_it_never_ends() -> None:
    source = DrivenSource(impulse())

    rows = [len(source.run_epoch(SourceBudget(rows=5))) for _ in range(4)]

    assert rows == [5, 5, 5, 5]
    assert source.plan.has_more
    assert not source.has_ended()


def test_the_stored_number_of_splits_wins_over_another_setting() -> None:
    source = DrivenSource(impulse(10, splits=2))
    source.run_epoch(SourceBudget(rows=4))
    source.spec = impulse(10, splits=5)

    rest = source.run_epoch()

    assert counters(rest) == list(range(4, 10))
    assert set(source.known) == {"0-of-2", "1-of-2"}
    assert source.has_ended()


def test_all_splits_are_known_after_the_first_epoch_even_without_rows() -> None:
    source = DrivenSource(impulse(rate=1, splits=3))

    source.run_epoch(now_micros=0)

    assert set(source.known) == {"0-of-3", "1-of-3", "2-of-3"}


def test_counting_to_zero_ends_at_once() -> None:
    source = DrivenSource(impulse(0, splits=2))

    assert source.run_epoch() == []
    assert source.has_ended()


def test_all_wrong_numbers_are_reported_at_once() -> None:
    with pytest.raises(UserError) as caught:
        impulse(-1, rate=0, splits=0, step=timedelta(seconds=-1))

    for name in ("count", "rate", "splits", "step"):
        assert f"{name} is" in caught.value.message
