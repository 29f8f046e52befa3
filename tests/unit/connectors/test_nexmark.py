"""The Nexmark source in epochs: splits, budgets, rate, ends, and what it refuses."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.catalog import default_registry
from penstock.connectors.nexmark.source import nexmark
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.splits import SourceBudget
from penstock.testing import SourceHarness
from tests.builders.chain_rig import DrivenSource, a_source

SECOND = 1_000_000
BIDS = ["auction", "bidder", "price", "date_time"]


def by_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["date_time"])


def all_rows(
    spec: OperatorSpec, *, budget: int = 1_000_000, parallelism: int = 1
) -> list[dict[str, Any]]:
    with SourceHarness(spec, parallelism=parallelism) as harness:
        harness.read_all(rows=budget)
        return by_time(harness.rows())


@pytest.mark.slow
@given(
    splits=st.integers(1, 7),
    parallelism=st.integers(1, 3),
    budget=st.integers(60, 500),
    kind=st.sampled_from(["all", "persons", "auctions", "bids"]),
)
def test_rows_do_not_depend_on_splits_subtasks_or_epochs(
    splits: int, parallelism: int, budget: int, kind: str
) -> None:
    events = 333
    once = all_rows(nexmark(events, kind=kind))

    spread = all_rows(
        nexmark(events, kind=kind, splits=splits), budget=budget, parallelism=parallelism
    )

    assert spread == once


def test_splits_go_on_where_they_were_with_other_parallelism() -> None:
    spec = nexmark(5_000, kind="bids", splits=4, columns=BIDS)
    with SourceHarness(spec, parallelism=2) as harness:
        harness.read(rows=1_000)
        harness.rescale(3)
        harness.read(rows=1_000)
        harness.rescale(1)
        harness.read_all()
        rows = by_time(harness.rows())

    assert rows == all_rows(nexmark(5_000, kind="bids", columns=BIDS))


def test_splits_move_through_event_time_together() -> None:
    source = DrivenSource(nexmark(100_000, splits=4, columns=["date_time"], gap="1ms"))
    source.run_epoch(SourceBudget(rows=10_000))

    times = [
        a_source(source.spec).output_schema().event_times_of(batch)
        for batch in source.taken.batches
    ]
    latest = [int(part.max()) for part in times]

    assert len(latest) == 4
    assert max(latest) - min(latest) <= 3 * 50 * 1_000


def test_a_second_run_of_a_planned_epoch_gives_the_same_rows() -> None:
    spec, budget = nexmark(10_000, splits=2), SourceBudget(rows=300)

    once, again = DrivenSource(spec), DrivenSource(spec)

    assert once.run_epoch(budget) == again.run_epoch(budget)
    assert once.known == again.known
    assert len(once.taken.rows()) == 300


def test_a_plan_is_read_to_its_end_even_when_time_is_up() -> None:
    source = DrivenSource(nexmark(1_000, splits=2))

    rows = source.run_epoch(SourceBudget(wall_micros=0))

    assert len(rows) == 1_000


def test_a_budget_of_bytes_limits_an_epoch_of_long_rows() -> None:
    source = DrivenSource(nexmark(kind="auctions"))

    source.run_epoch(SourceBudget(size_bytes=1 << 20))

    size_bytes = sum(batch.nbytes for batch in source.taken.batches)
    assert 0.8 * (1 << 20) <= size_bytes <= 1.2 * (1 << 20)


@pytest.mark.parametrize(
    ("kind", "rows"), [("all", 120), ("persons", 3), ("auctions", 9), ("bids", 108)]
)
def test_the_first_events_are_counted_whatever_their_kind(kind: str, rows: int) -> None:
    source = DrivenSource(nexmark(120, kind=kind, splits=2))

    assert len(source.run_epoch()) == rows
    assert source.has_ended()


def test_no_events_end_at_once() -> None:
    source = DrivenSource(nexmark(0, splits=2))

    assert source.run_epoch() == []
    assert source.has_ended()


def test_without_a_count_it_never_ends() -> None:
    source = DrivenSource(nexmark())

    counts = [len(source.run_epoch(SourceBudget(rows=60))) for _ in range(3)]

    assert counts == [60, 60, 60]
    assert source.plan.has_more
    assert not source.has_ended()


def test_the_rate_is_of_all_events_and_counts_from_the_first_epoch() -> None:
    source = DrivenSource(nexmark(rate=1_000, kind="bids", columns=BIDS))

    assert source.run_epoch(now_micros=100 * SECOND) == []
    assert len(source.run_epoch(now_micros=101 * SECOND)) == 920
    assert source.run_epoch(now_micros=101 * SECOND) == []
    assert len(source.run_epoch(now_micros=103 * SECOND)) == 1_840


def test_event_time_keeps_up_with_the_rate() -> None:
    source = DrivenSource(nexmark(rate=30_000, columns=["date_time"]))
    source.run_epoch(now_micros=0)

    times = [row["date_time"] for row in source.run_epoch(now_micros=SECOND // 2)]

    assert (times[-1] - times[0]).total_seconds() == pytest.approx(0.5, rel=1e-3)


def test_event_times_follow_from_start_and_gap() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    spec = nexmark(3, start=start, gap=timedelta(seconds=2), columns=["date_time"])

    times = [row["date_time"] for row in DrivenSource(spec).run_epoch()]

    naive = start.replace(tzinfo=None)
    assert times == [naive, naive + timedelta(seconds=2), naive + timedelta(seconds=4)]


def test_events_are_late_by_less_than_the_disorder() -> None:
    ordered = DrivenSource(nexmark(5_000, gap="1ms", columns=["date_time"])).run_epoch()
    spec = nexmark(5_000, gap="1ms", disorder="200ms", columns=["date_time"])
    disordered = DrivenSource(spec).run_epoch()

    delays = [
        before["date_time"] - after["date_time"]
        for before, after in zip(ordered, disordered, strict=True)
    ]

    assert min(delays) >= timedelta(0)
    assert timedelta(milliseconds=190) < max(delays) < timedelta(milliseconds=200)


def test_the_stored_number_of_splits_wins_over_another_setting() -> None:
    source = DrivenSource(nexmark(1_000, splits=2))
    first = source.run_epoch(SourceBudget(rows=400))
    source.spec = nexmark(1_000, splits=5)

    rest = source.run_epoch()

    assert by_time([*first, *rest]) == all_rows(nexmark(1_000))
    assert set(source.known) == {"0-of-2", "1-of-2"}
    assert source.has_ended()


def test_fewer_events_than_were_emitted_end_the_source() -> None:
    source = DrivenSource(nexmark(1_000))
    source.run_epoch(SourceBudget(rows=400))
    source.spec = nexmark(100)

    assert source.run_epoch() == []
    assert source.has_ended()


def test_only_the_columns_asked_for_are_emitted_in_their_order() -> None:
    spec = nexmark(50, kind="bids", columns=["price", "date_time", "auction"])
    whole = DrivenSource(nexmark(50, kind="bids")).run_epoch()

    rows = DrivenSource(spec).run_epoch()

    assert rows == [{name: row[name] for name in rows[0]} for row in whole]
    assert a_source(spec).output_schema().arrow.names == ["price", "date_time", "auction"]


def test_without_its_time_column_a_stream_has_no_event_time() -> None:
    stream = a_source(nexmark(kind="bids", columns=["price"])).output_schema()

    assert stream.time_column is None


@pytest.mark.parametrize("kind", ["all", "persons", "auctions", "bids"])
def test_the_event_time_is_the_time_column(kind: str) -> None:
    stream = a_source(nexmark(kind=kind)).output_schema()

    assert stream.time_column == "date_time"
    assert stream.arrow.field("date_time").type == pa.timestamp("us")


def test_all_that_is_wrong_is_reported_at_once() -> None:
    with pytest.raises(UserError) as caught:
        nexmark(
            -1,
            rate=0,
            seed=-1,
            splits=0,
            gap="soon",
            disorder="2h",
            auctions=0,
            bidders=0,
            hot_auction_ratio=0,
            columns=["event_typ"],
        )

    message = caught.value.message
    names = ("events", "rate", "seed", "splits", "gap", "auctions", "bidders")
    for name in (*names, "hot_auction_ratio"):
        assert f"{name} is" in message
    assert "disorder must be" in message
    assert "did you mean 'event_type'" in message
    assert caught.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"kind": "bid"}, "did you mean 'bids'"),
        ({"kind": "persons", "proportions": (0, 3, 46), "bidders": 9}, "have none of them"),
        ({"proportions": (0, 0, 1), "bidders": 9}, "bids without auctions"),
        ({"proportions": (0, 1, 1)}, "have no persons"),
        ({"proportions": (1, 3)}, "must be three"),
        ({"proportions": (1, -3, 46)}, "none may be negative"),
        ({"proportions": (0, 0, 0)}, "between 1 and"),
        ({"rate": float("inf")}, "rate is inf"),
        ({"columns": []}, "columns is empty"),
        ({"events": 1 << 60, "gap": "1h"}, "gap is too long"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(
    settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        nexmark(**settings)


def test_a_config_from_elsewhere_is_checked_too() -> None:
    with pytest.raises(UserError, match="splits is 0"):
        default_registry(load_plugins=False).construct(
            OperatorSpec("nexmark", {"splits": 0})
        )


def test_it_shows_what_it_generates() -> None:
    shown = a_source(nexmark(10, kind="bids", splits=2)).display()

    assert shown.fields == {"events": "10", "seed": "0", "kind": "bids", "splits": "2"}
