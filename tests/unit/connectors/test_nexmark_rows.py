"""What Nexmark's rows hold: proportions, references, hot spots, prices, populations."""

from collections import Counter
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from penstock.connectors.nexmark.rows import FIRST_ID, ID_LEAD
from penstock.connectors.nexmark.source import nexmark
from tests.builders.chain_rig import DrivenSource

EVENTS = 50_000


def table_of(**settings: Any) -> pa.Table:
    source = DrivenSource(nexmark(settings.pop("events", EVENTS), **settings))
    source.run_epoch()
    return pa.Table.from_batches(source.taken.batches)


def numbers(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = table.column(name).cast(pa.int64()).to_numpy()
    return values


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_rest_bids() -> None:
    types = table_of(columns=["event_type"]).column("event_type").to_pylist()

    assert Counter(types) == {0: 1_000, 1: 3_000, 2: 46_000}
    assert types[:50] == types[-50:] == [0] + [1] * 3 + [2] * 46


def test_an_event_of_the_mixed_stream_holds_the_row_of_its_kind() -> None:
    mixed = table_of(events=200).to_pylist()

    for number, (name, kind) in enumerate(
        [("person", "persons"), ("auction", "auctions"), ("bid", "bids")]
    ):
        rows = [event[name] for event in mixed if event["event_type"] == number]
        others = [event[name] for event in mixed if event["event_type"] != number]
        assert rows == table_of(events=200, kind=kind).to_pylist()
        assert set(others) == {None}
        assert all(
            event["date_time"] == event[name]["date_time"]
            for event in mixed
            if event["event_type"] == number
        )


@pytest.mark.parametrize(("kind", "count"), [("persons", 1_000), ("auctions", 3_000)])
def test_ids_count_up_without_gaps(kind: str, count: int) -> None:
    ids = numbers(table_of(kind=kind), "id")

    assert ids.tolist() == list(range(FIRST_ID, FIRST_ID + count))


def test_bids_are_for_auctions_in_flight_by_people_who_are_active() -> None:
    bids = table_of(kind="bids")
    group = np.arange(len(bids)) // 46
    last_auction, last_person = FIRST_ID + group * 3 + 2, FIRST_ID + group

    auctions, bidders = numbers(bids, "auction"), numbers(bids, "bidder")

    assert (auctions <= last_auction + ID_LEAD).all()
    assert (auctions >= np.maximum(last_auction - 100, FIRST_ID)).all()
    assert (bidders <= last_person + ID_LEAD).all()
    assert (bidders >= np.maximum(last_person - 1_000, FIRST_ID)).all()


def test_sellers_are_people_who_are_active() -> None:
    auctions = table_of(kind="auctions")
    last_person = FIRST_ID + np.arange(len(auctions)) // 3

    sellers = numbers(auctions, "seller")

    assert (sellers <= last_person + ID_LEAD).all()
    assert (sellers >= np.maximum(last_person - 1_000, FIRST_ID)).all()


def share_of_hot(table: pa.Table, column: str, hot_index: int) -> float:
    return float(np.mean(numbers(table, column) % 100 == hot_index))


@pytest.mark.parametrize(("ratio", "share"), [(1, 0.0), (2, 1 / 2), (4, 3 / 4)])
def test_hot_ones_get_all_but_one_in_ratio(ratio: int, share: float) -> None:
    bids = table_of(kind="bids", hot_auction_ratio=ratio, hot_bidder_ratio=ratio)
    auctions = table_of(kind="auctions", hot_seller_ratio=ratio)

    # Those who are drawn evenly hit a hot one too, about one time in a hundred.
    assert share_of_hot(bids, "auction", 0) == pytest.approx(share, abs=0.03)
    assert share_of_hot(bids, "bidder", 1) == pytest.approx(share, abs=0.03)
    assert share_of_hot(auctions, "seller", 0) == pytest.approx(share, abs=0.03)


def test_prices_are_spread_over_six_orders_of_magnitude() -> None:
    prices = numbers(table_of(kind="bids", columns=["price"]), "price")

    magnitudes = np.bincount(np.floor(np.log10(prices)).astype(np.int64), minlength=8)

    assert prices.min() >= 100
    assert prices.max() <= 10**8
    assert magnitudes[2:8] / len(prices) == pytest.approx([1 / 6] * 6, abs=0.01)


def test_auctions_end_after_they_began_at_or_above_their_first_price() -> None:
    auctions = table_of(kind="auctions", gap="1ms")

    lengths = (numbers(auctions, "expires") - numbers(auctions, "date_time")) / 1_000_000

    assert lengths.min() > 0
    # On average until 100 more auctions have begun: 1,666 events of a millisecond.
    assert lengths.mean() == pytest.approx(1.666, rel=0.05)
    assert (numbers(auctions, "reserve") > numbers(auctions, "initial_bid")).all()
    assert set(numbers(auctions, "category").tolist()) == {10, 11, 12, 13, 14}


def test_texts_look_like_what_they_are() -> None:
    people = table_of(kind="persons").to_pylist()

    assert all(
        set(row["email"][:7]) <= set("abcdefghijklmnopqrstuvwxyz")
        and row["email"][7] == "@"
        and row["email"].endswith(".com")
        and [len(part) for part in row["credit_card"].split()] == [4] * 4
        and row["credit_card"].replace(" ", "").isdigit()
        for row in people
    )
    assert len({row["email"] for row in people}) == len(people)
    assert len({row["name"] for row in people}) == 99
    assert {row["state"] for row in people} == {"AZ", "CA", "ID", "OR", "WA", "WY"}


def test_half_of_the_bids_come_through_a_hot_channel() -> None:
    bids = table_of(kind="bids", columns=["channel", "url"]).to_pylist()

    hot = [row for row in bids if not row["channel"].startswith("channel-")]

    assert len(hot) / len(bids) == pytest.approx(0.5, abs=0.01)
    assert {row["channel"] for row in hot} == {"Google", "Facebook", "Baidu", "Apple"}
    assert all(
        row["url"].endswith(f"&channel_id={row['channel'].removeprefix('channel-')}")
        for row in bids
        if row["channel"].startswith("channel-")
    )


@pytest.mark.parametrize(("kind", "size"), [("persons", 200), ("auctions", 500)])
def test_rows_have_the_size_of_the_standard(kind: str, size: int) -> None:
    table = table_of(kind=kind)

    assert table.nbytes / len(table) == pytest.approx(size, rel=0.15)


def test_bids_alone_can_be_drawn_evenly_from_fixed_populations() -> None:
    bids = table_of(
        events=200_000,
        kind="bids",
        proportions=(0, 0, 1),
        gap="10us",
        disorder="200ms",
        auctions=1_000,
        bidders=10_000,
        columns=["auction", "bidder", "price", "date_time"],
    )

    by_auction = np.bincount(numbers(bids, "auction") - FIRST_ID)
    by_bidder = np.bincount(numbers(bids, "bidder") - FIRST_ID)
    times = numbers(bids, "date_time")

    assert len(bids) == 200_000
    assert len(by_auction) == 1_000
    assert len(by_bidder) == 10_000
    # Even draws vary by the square root of their mean: six times that is never reached.
    assert abs(by_auction - 200).max() < 6 * 200**0.5
    assert abs(by_bidder - 20).max() < 6.5 * 20**0.5
    assert timedelta(microseconds=int(times.max() - times.min())) < timedelta(seconds=2.2)
    assert (np.maximum.accumulate(times) - times).max() < 200_000


def test_another_seed_gives_other_rows_of_the_same_ids() -> None:
    one, other = table_of(kind="persons"), table_of(kind="persons", seed=1)

    assert one.column("id") == other.column("id")
    for column in ("name", "email", "credit_card", "extra"):
        same = sum(
            left == right
            for left, right in zip(
                one.column(column).to_pylist(),
                other.column(column).to_pylist(),
                strict=True,
            )
        )
        assert same < 50


def test_columns_are_independent_of_each_other() -> None:
    bids = table_of(kind="bids", proportions=(0, 0, 1), auctions=1 << 20, bidders=1 << 20)
    columns = np.array(
        [numbers(bids, "auction"), numbers(bids, "bidder"), np.log(numbers(bids, "price"))]
    )

    correlations = np.corrcoef([*columns, np.arange(len(bids))])

    assert abs(correlations - np.eye(4)).max() < 0.02
