"""Timers fire once, when their clock passes them, whatever happens in between."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.schema import StreamSchema
from penstock.errors import InternalError, StateError, UserError
from penstock.operators.chain import declared_tables
from penstock.operators.timers import Timers, timer_tables
from penstock.state.tables.specs import TimeDomain
from penstock.state.tables.table import Frontier
from penstock.state.tables.table_manager import TableManager
from tests.builders.scripted import PLAIN, Parts, Scripted
from tests.unit.operators.timer_cluster import INPUT, Handle, Timer, TimerCluster, keys
from tests.unit.state.tables.table_builders import an_environment

MAX = (1 << 63) - 1
BOTH = pytest.mark.parametrize("domain", list(TimeDomain))


@BOTH
def test_a_timer_fires_when_its_clock_reaches_it_and_not_again(domain: TimeDomain) -> None:
    cluster = TimerCluster(domain)
    assert cluster.run_epoch(10, lambda t: t.set(("a", 30))) == []
    assert cluster.run_epoch(29) == []
    assert not cluster.has_fired()
    assert cluster.run_epoch(30) == [("a", 30)]
    assert cluster.has_fired()
    assert cluster.run_epoch(30) == []
    assert cluster.run_epoch(99) == []


@BOTH
@pytest.mark.parametrize("warm", [False, True])
def test_timers_survive_a_rescale(domain: TimeDomain, warm: bool) -> None:
    timers: list[Timer] = [(f"user-{number}", 50 + number) for number in range(40)]
    timers.append((None, 55))
    cluster = TimerCluster(domain, 2)
    cluster.run_epoch(10, lambda t: t.set(*timers), warm=warm)
    cluster.rescale(3)
    half = cluster.run_epoch(65, warm=warm)
    assert sorted(half, key=repr) == sorted(
        (timer for timer in timers if timer[1] <= 65), key=repr
    )
    cluster.rescale(1)
    rest = cluster.run_epoch(200, warm=warm)
    assert sorted([*half, *rest], key=repr) == sorted(timers, key=repr)


@BOTH
def test_due_timers_come_earliest_first_in_a_fixed_order(domain: TimeDomain) -> None:
    timers: list[Timer] = [("a", 20), ("b", 15), ("c", 20), ("d", 12), ("e", 15)]
    orders = []
    for chosen in (timers, timers[::-1]):
        cluster = TimerCluster(domain)
        cluster.run_epoch(10, lambda t, chosen=chosen: t.set(*chosen))  # type: ignore[misc]
        orders.append(cluster.run_epoch(30))
    assert [due for _, due in orders[0]] == [12, 15, 15, 20, 20]
    assert orders[0] == orders[1]


@BOTH
def test_setting_a_timer_twice_is_one_timer(domain: TimeDomain) -> None:
    cluster = TimerCluster(domain)
    cluster.run_epoch(1, lambda t: t.set(("a", 9), ("a", 9), ("a", 8)))
    cluster.run_epoch(2, lambda t: t.set(("a", 9)))
    assert cluster.run_epoch(20, lambda t: t.set(("a", 9))) == [("a", 8), ("a", 9)]


@BOTH
@pytest.mark.parametrize("epochs", [1, 2])
def test_the_last_of_set_and_cancel_counts(domain: TimeDomain, epochs: int) -> None:
    cluster = TimerCluster(domain)
    first = [lambda t: t.set(("a", 9), ("b", 9)), lambda t: t.cancel(("a", 9), ("b", 9))]
    last = [lambda t: t.set(("b", 9)), lambda t: t.cancel(("never set", 9))]
    for use in (*first, *last):
        cluster.run_epoch(1 if epochs == 1 else cluster.clock or 1, use)
    assert cluster.run_epoch(20) == [("b", 9)]


@BOTH
@pytest.mark.parametrize("now", [10, 15])
def test_a_timer_for_the_past_fires_in_the_epoch_that_sets_it(
    domain: TimeDomain, now: int
) -> None:
    """Also when the clock stands still, so that nothing passes it; and once."""
    cluster = TimerCluster(domain)
    cluster.run_epoch(10)
    assert cluster.run_epoch(now, lambda t: t.set(("a", 3))) == [("a", 3)]
    assert cluster.has_fired()
    assert cluster.run_epoch(now) == []
    assert cluster.run_epoch(now + 1) == []
    assert cluster.run_epoch(99) == []


@BOTH
def test_a_past_timer_does_not_fire_one_for_the_next_instant(domain: TimeDomain) -> None:
    cluster = TimerCluster(domain)
    cluster.run_epoch(10)
    assert cluster.run_epoch(10, lambda t: t.set(("a", 3), ("a", 11))) == [("a", 3)]
    assert cluster.run_epoch(11) == [("a", 11)]


@BOTH
def test_timers_set_by_timers_fire_in_the_same_epoch(domain: TimeDomain) -> None:
    def again(handle: Handle, fired: list[Timer]) -> None:
        handle.set(*((user, due + 10) for user, due in fired))

    cluster = TimerCluster(domain)
    cluster.run_epoch(1, lambda t: t.set(("a", 5)))
    assert cluster.run_epoch(30, on_fire=again) == [("a", 5), ("a", 15), ("a", 25)]
    assert cluster.run_epoch(35, on_fire=again) == [("a", 35)]


@BOTH
def test_a_timer_set_anew_by_its_own_firing_fires_again(domain: TimeDomain) -> None:
    def once_more(handle: Handle, fired: list[Timer]) -> None:
        if not seen:
            seen.extend(fired)
            handle.set(*fired)

    seen: list[Timer] = []
    cluster = TimerCluster(domain)
    cluster.run_epoch(1, lambda t: t.set(("a", 5)))
    assert cluster.run_epoch(9, on_fire=once_more) == [("a", 5), ("a", 5)]
    assert cluster.run_epoch(10) == []


@BOTH
def test_a_past_timer_set_after_firing_is_kept_for_the_next_epoch(
    domain: TimeDomain,
) -> None:
    cluster = TimerCluster(domain)
    cluster.run_epoch(10, at_end=lambda t: t.set(("a", 3), ("b", 10)))
    assert cluster.next_due() == 11
    assert cluster.run_epoch(10, lambda t: t.cancel(("b", 10))) == [("a", 3)]
    assert cluster.run_epoch(20) == []


@BOTH
def test_a_torn_epoch_leaves_nothing_behind(domain: TimeDomain) -> None:
    """Its subtasks and their views survive; the rows they wrote do not count."""
    cluster = TimerCluster(domain)
    cluster.run_epoch(10, lambda t: t.set(("a", 15), ("b", 90)), warm=True)
    for warm in (True, True, False):
        fired = cluster.run_epoch(
            20, lambda t: t.set(("c", 5), ("d", 18)), warm=warm, is_torn=True
        )
        assert fired == [("c", 5), ("a", 15), ("d", 18)]
    assert cluster.run_epoch(20, warm=True) == [("a", 15)]
    assert cluster.run_epoch(100, warm=True) == [("b", 90)]


@BOTH
def test_a_torn_first_epoch_leaves_nothing_behind(domain: TimeDomain) -> None:
    cluster = TimerCluster(domain)
    torn = cluster.run_epoch(10, lambda t: t.set(("a", 5)), warm=True, is_torn=True)
    assert torn == [("a", 5)]
    assert cluster.run_epoch(12, warm=True) == []


@BOTH
def test_a_restore_of_an_older_epoch_fires_again_what_it_had_before_it(
    domain: TimeDomain,
) -> None:
    cluster = TimerCluster(domain)
    cluster.run_epoch(10, lambda t: t.set(("a", 15), ("b", 90)), warm=True)
    assert cluster.run_epoch(20, warm=True) == [("a", 15)]
    assert cluster.run_epoch(30, warm=True) == []
    cluster.restore(2)
    assert cluster.run_epoch(40, warm=True) == [("a", 15)]


def test_event_timers_wait_for_the_first_watermark() -> None:
    cluster = TimerCluster(TimeDomain.EVENT_TIME)
    assert cluster.run_epoch(None, lambda t: t.set(("a", -5), ("b", 5))) == []
    assert cluster.run_epoch(None) == []
    assert cluster.run_epoch(0) == [("a", -5)]
    assert cluster.run_epoch(5) == [("b", 5)]


@pytest.mark.parametrize("warm", [False, True])
def test_a_timer_can_be_set_for_the_first_instant_of_all(warm: bool) -> None:
    cluster = TimerCluster(TimeDomain.EVENT_TIME)
    assert cluster.run_epoch(None, lambda t: t.set(("a", -(1 << 63))), warm=warm) == []
    assert cluster.run_epoch(-MAX, warm=warm) == [("a", -(1 << 63))]
    assert cluster.run_epoch(0, warm=warm) == []


def test_the_end_of_data_fires_every_event_timer() -> None:
    cluster = TimerCluster(TimeDomain.EVENT_TIME)
    cluster.run_epoch(0, lambda t: t.set(("a", 5), ("b", MAX)))
    assert cluster.run_epoch(MAX) == [("a", 5), ("b", MAX)]
    assert cluster.run_epoch(MAX) == []
    assert cluster.next_due() is None


def test_a_watermark_that_says_nothing_leaves_the_clock_where_it_was() -> None:
    cluster = TimerCluster(TimeDomain.EVENT_TIME)
    cluster.run_epoch(10)
    manager = cluster._open(0, 10, warm=False)
    timers = Timers(TimeDomain.EVENT_TIME, manager, INPUT)
    timers.begin_epoch(10)
    timers.set(keys("a", "b"), np.array([3, 11]))
    due = timers.take_due(None)
    assert due is not None
    assert due.due_micros.to_pylist() == [3]
    assert timers.take_due(None) is None


@BOTH
def test_the_next_timer_is_known_whatever_was_cancelled(domain: TimeDomain) -> None:
    cluster = TimerCluster(domain, 2)
    cluster.run_epoch(1)
    assert cluster.next_due() is None
    cancelled: list[Timer] = [("a", 20 + step * 7_000) for step in range(100)]
    cluster.run_epoch(2, lambda t: t.set(*cancelled, ("b", 9_000_000)))
    assert cluster.next_due() == 20
    cluster.run_epoch(3, lambda t: t.cancel(*cancelled))
    assert cluster.next_due() == 9_000_000
    cluster.run_epoch(9_000_000)
    assert cluster.next_due() is None


@BOTH
def test_what_fires_in_its_own_epoch_is_not_stored(domain: TimeDomain) -> None:
    cluster = TimerCluster(domain)
    cluster.run_epoch(10)
    cluster.run_epoch(20, lambda t: t.set(("a", 5), ("b", 20)))
    assert cluster.bytes_written == 0


@BOTH
def test_passed_timers_leave_no_files(domain: TimeDomain) -> None:
    cluster = TimerCluster(domain)
    cluster.run_epoch(10, lambda t: t.set(("a", 20)))
    cluster.run_epoch(20)
    assert not cluster.published[-1].metadata[0].table_checkpoint_metadata


@BOTH
def test_compaction_keeps_the_order_of_set_and_cancel(domain: TimeDomain) -> None:
    cluster = TimerCluster(domain)
    cluster.run_epoch(1, lambda t: t.set(("a", 50), ("b", 50), ("c", 4)))
    cluster.run_epoch(2, lambda t: t.cancel(("a", 50), ("b", 50)))
    cluster.run_epoch(5, lambda t: t.set(("b", 50)))
    assert cluster.compact() == 1
    assert cluster.run_epoch(60) == [("b", 50)]


def test_the_clock_of_timers_never_goes_back() -> None:
    manager = TableManager.load(
        an_environment(), timer_tables([TimeDomain.EVENT_TIME], INPUT), {}
    )
    manager.begin_epoch(Frontier(10))
    timers = Timers(TimeDomain.EVENT_TIME, manager, INPUT)
    timers.begin_epoch(10)
    with pytest.raises(InternalError, match="went back from 10 to 9"):
        timers.take_due(9)


def test_timers_need_a_keyed_input() -> None:
    setting = Scripted(timers=[TimeDomain.EVENT_TIME])
    node = Parts().node("op", lambda: setting, PLAIN)
    with pytest.raises(UserError, match="key_by"):
        declared_tables(setting, node)
    assert declared_tables(Scripted(), node) == ()


def test_each_time_domain_has_a_table_of_its_own() -> None:
    specs = timer_tables(list(TimeDomain)[::-1], INPUT)
    assert [spec.name for spec in specs] == [
        "penstock.event-timers",
        "penstock.processing-timers",
    ]


def test_keys_called_like_the_columns_of_the_table_are_no_trouble() -> None:
    fields: Any = {"due": pa.string(), "is_set": pa.int32(), "fires_at": pa.bool_()}
    schema = pa.schema(fields)
    keyed = StreamSchema(schema, key_columns=("due", "is_set", "fires_at"))
    specs = timer_tables([TimeDomain.EVENT_TIME], keyed)
    manager = TableManager.load(an_environment(), specs, {})
    manager.begin_epoch(Frontier(0))
    timers = Timers(TimeDomain.EVENT_TIME, manager, keyed)
    timers.begin_epoch(0)
    row = {"due": "x", "is_set": 1, "fires_at": True}
    timers.set(pa.RecordBatch.from_pylist([row], schema=schema), 5)
    due = timers.take_due(7)
    assert due is not None
    assert due.keys.schema.equals(schema)
    assert (due.keys.to_pylist(), due.due_micros.to_pylist()) == ([row], [5])


def test_keys_of_another_subtask_are_refused() -> None:
    specs = timer_tables([TimeDomain.EVENT_TIME], INPUT)
    manager = TableManager.load(an_environment(index=0, parallelism=2), specs, {})
    manager.begin_epoch(Frontier(0))
    timers = Timers(TimeDomain.EVENT_TIME, manager, INPUT)
    timers.begin_epoch(0)
    foreign = next(u for u in map(str, range(99)) if not Handle(timers, 0, 2).owns(u))
    with pytest.raises(StateError, match="does not belong to subtask 0 of 2"):
        timers.set(keys(foreign), 5)
