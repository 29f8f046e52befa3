"""The order of hooks, and where rows land that are emitted on the way."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.watermark import IDLE, MAX_EVENT_TIME, EventTime
from penstock.errors import ErrorCode, ExternalError, UserCodeError, UserError
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.state.tables.specs import TimeDomain, global_table
from tests.builders.chain_rig import ChainRig
from tests.builders.scripted import BY_USER, PLAIN, Log, Parts, Scripted, link, rows

A0 = ("a", 0)
SEEN = global_table("seen", str, int)


def emit(*numbers: int, output: str = "main") -> Callable[..., None]:
    """Return a hook that emits rows, whatever it is given."""

    def hook(*arguments: Any) -> None:
        collector = arguments[-1]
        assert isinstance(collector, ArrowCollector)
        collector.collect(rows(*numbers), output)

    return hook


def straight(log: Log, **first: Any) -> ChainRig:
    """Return a → b → c, where `first` goes to a."""
    parts = Parts()
    nodes = [
        parts.node("a", lambda: Scripted("a", log, **first), BY_USER),
        parts.node("b", lambda: Scripted("b", log), PLAIN),
        parts.node("c", lambda: Scripted("c", log, is_sink=True), PLAIN),
    ]
    return ChainRig(parts.registry, nodes, [link("a", "b"), link("b", "c")])


def test_every_hook_is_called_in_the_documented_order() -> None:
    log = Log()

    def set_timer(batch: pa.RecordBatch, ctx: OperatorContext, *_: object) -> None:
        ctx.event_timers.set(batch, 5)

    rig = straight(
        log,
        timers=[TimeDomain.EVENT_TIME],
        tick=timedelta(microseconds=1),
        process_batch=set_timer,
    )
    rig.run(("a", 0, rows(1)), spoken={A0: EventTime(5)}, is_stop=True)
    assert log.take_of("a") == [
        "on_start",
        "process_batch",
        "handle_watermark",
        "handle_timers",
        "handle_tick",
        "on_close Stop",
        "handle_checkpoint",
    ]


def test_a_second_epoch_does_not_start_the_operator_again_but_a_new_process_does() -> None:
    log = Log()
    rig = straight(log)
    rig.run(("a", 0, rows(1)), spoken={A0: EventTime(1)})
    log.take()
    rig.run(("a", 0, rows(2)), spoken={A0: EventTime(2)})
    assert log.take_of("a") == ["process_batch", "handle_watermark", "handle_checkpoint"]
    rig.restart()
    assert log.take_of("a") == ["release"]
    rig.run(spoken={A0: EventTime(2)})
    assert log.take_of("a") == ["on_start", "handle_watermark", "handle_checkpoint"]


def test_operators_start_last_first_so_that_whoever_takes_rows_is_ready() -> None:
    log = Log()
    straight(log).run()
    assert log.calls[:3] == [("c", "on_start"), ("b", "on_start"), ("a", "on_start")]


def test_an_operator_ends_its_whole_epoch_before_the_next_merges_watermarks() -> None:
    log = Log()
    rig = straight(log)
    rig.run(("a", 0, rows(1)), spoken={A0: EventTime(1)})
    assert log.calls[3:] == [
        ("a", "process_batch"),
        ("b", "process_batch"),
        ("c", "process_batch"),
        ("a", "handle_watermark"),
        ("a", "handle_checkpoint"),
        ("b", "handle_watermark"),
        ("b", "handle_checkpoint"),
        ("c", "handle_watermark"),
        ("c", "handle_checkpoint"),
    ]


@pytest.mark.parametrize(
    "hook", ["handle_watermark", "handle_tick", "on_close", "handle_checkpoint"]
)
def test_rows_of_any_hook_are_in_the_next_operators_checkpoint_of_the_same_epoch(
    hook: str,
) -> None:
    log, parts = Log(), Parts()

    def remember(batch: pa.RecordBatch, ctx: OperatorContext, *_: object) -> None:
        ctx.get_global_keyed_state("seen").insert("rows", batch.num_rows)

    first: dict[str, Any] = {hook: emit(1, 2, 3)}
    rig = ChainRig(
        parts.registry,
        [
            parts.node(
                "a",
                lambda: Scripted("a", log, tick=timedelta(microseconds=1), **first),
                PLAIN,
            ),
            parts.node(
                "b",
                lambda: Scripted("b", log, tables=[SEEN], process_batch=remember),
                PLAIN,
            ),
        ],
        [link("a", "b")],
    )
    rig.run(spoken={A0: EventTime(1)}, is_stop=True)
    assert log.of("b").index("process_batch") < log.of("b").index("handle_checkpoint")
    rig.restart()
    rig.run()
    view = rig.chain.nodes[1].tables.get_global_keyed_state("seen")
    assert view.get("rows") == 3


def test_no_watermark_is_told_before_the_input_has_spoken() -> None:
    log = Log()
    rig = straight(log)
    ran = rig.run(("a", 0, rows(1)))
    assert "handle_watermark" not in log.of("a")
    assert ran.watermarks == {"a": None, "b": None, "c": None}


def test_the_watermark_is_told_once_per_epoch_also_when_it_stands_still() -> None:
    log = Log()
    rig = straight(log)
    for _ in range(3):
        rig.run(("a", 0, rows(1)), ("a", 0, rows(2)), spoken={A0: EventTime(7)})
    assert log.of("a").count("handle_watermark") == 3
    assert log.of("c").count("handle_watermark") == 3


def test_all_idle_is_passed_on_as_idle_and_event_time_stands_still() -> None:
    log = Log()
    rig = straight(log)
    rig.run(spoken={A0: EventTime(7)})
    ran = rig.run(spoken={A0: IDLE})
    assert ran.watermarks["c"] == IDLE
    assert ran.reports["c"].inputs[0].event_time_micros == 7
    assert ran.reports["c"].inputs[0].idle


def a_diamond(log: Log) -> ChainRig:
    """Return a → (left, right) → join, where `left` holds the watermark back by 10."""
    parts = Parts()

    def hold(watermark: object, *_: object) -> EventTime | object:
        if isinstance(watermark, EventTime) and watermark != MAX_EVENT_TIME:
            return EventTime(watermark.micros - 10)
        return watermark

    nodes = [
        parts.node("a", lambda: Scripted("a", log), PLAIN),
        parts.node(
            "left",
            lambda: Scripted(
                "left", log, handle_watermark=hold, handle_checkpoint=emit(100)
            ),
            PLAIN,
        ),
        parts.node("right", lambda: Scripted("right", log), PLAIN),
        parts.node(
            "join",
            lambda: Scripted(
                "join", log, process_batch_index=lambda i, n, b, x, c: c.collect(b)
            ),
            PLAIN,
            PLAIN,
        ),
    ]
    links = [
        link("a", "left"),
        link("a", "right"),
        link("left", "join"),
        link("right", "join", index=1),
    ]
    return ChainRig(parts.registry, nodes, links)


def test_a_diamond_gives_both_sides_their_rows_and_merges_their_watermarks() -> None:
    log = Log()
    ran = a_diamond(log).run(("a", 0, rows(1)), spoken={A0: EventTime(50)})
    assert ran.numbers("join") == [1, 1, 100]
    assert ran.watermarks["join"] == EventTime(40)
    joined = log.of("join")
    assert joined == [
        "on_start",
        "process_batch_index 0 of 2",
        "process_batch_index 1 of 2",
        "process_batch_index 0 of 2",
        "handle_watermark",
        "handle_checkpoint",
    ]


def test_branches_each_get_all_rows_and_side_outputs_go_where_they_are_read() -> None:
    log, parts = Log(), Parts()

    def divide(batch: pa.RecordBatch, ctx: object, collector: ArrowCollector) -> None:
        collector.collect(batch)
        collector.collect(rows(-1), "odd")
        collector.collect(rows(-2, -3), "unread")

    rig = ChainRig(
        parts.registry,
        [
            parts.node(
                "a",
                lambda: Scripted("a", log, process_batch=divide),
                PLAIN,
                side_outputs={"odd": PLAIN, "unread": PLAIN},
            ),
            parts.node("b", lambda: Scripted("b", log), PLAIN),
            parts.node("c", lambda: Scripted("c", log), PLAIN),
            parts.node("d", lambda: Scripted("d", log), PLAIN),
        ],
        [link("a", "b"), link("a", "c"), link("a", "d", output="odd")],
    )
    ran = rig.run(("a", 0, rows(1, 2)))
    assert ran.numbers("b") == ran.numbers("c") == [1, 2]
    assert ran.numbers("d") == [-1]
    assert ran.reports["a"].rows_emitted == {"main": 2, "odd": 1, "unread": 2}
    assert ran.reports["d"].rows_taken == 1


def test_the_end_of_data_flushes_closes_once_and_rests_from_then_on() -> None:
    log = Log()
    told: list[object] = []
    rig = straight(log, handle_watermark=lambda w, *_: told.append(w))
    rig.run(("a", 0, rows(1)), spoken={A0: MAX_EVENT_TIME})
    assert told == [MAX_EVENT_TIME]
    assert log.take_of("c") == [
        "on_start",
        "process_batch",
        "handle_watermark",
        "on_close EndOfData",
        "handle_checkpoint",
    ]
    ran = rig.run(spoken={A0: MAX_EVENT_TIME}, is_stop=True)
    assert log.take() == []
    assert ran.watermarks == {"a": MAX_EVENT_TIME, "b": MAX_EVENT_TIME, "c": MAX_EVENT_TIME}
    assert ran.reports["a"].wake_up_micros is None


def test_an_input_that_ended_stays_so_while_the_other_goes_on() -> None:
    log, parts = Log(), Parts()
    rig = ChainRig(
        parts.registry, [parts.node("a", lambda: Scripted("a", log), PLAIN, PLAIN)]
    )
    rig.run(spoken={("a", 0): MAX_EVENT_TIME, ("a", 1): EventTime(5)})
    ran = rig.run(("a", 1, rows(6)), spoken={("a", 0): MAX_EVENT_TIME, ("a", 1): IDLE})
    assert ran.watermarks["a"] == IDLE
    assert not any(hook.startswith("on_close") for hook in log.of("a"))
    ran = rig.run(spoken={("a", 0): MAX_EVENT_TIME, ("a", 1): EventTime(9)})
    assert ran.watermarks["a"] == EventTime(9)
    rig.run(spoken={("a", 0): MAX_EVENT_TIME, ("a", 1): MAX_EVENT_TIME})
    assert log.of("a").count("on_close EndOfData") == 1


@pytest.mark.parametrize(
    ("is_stop", "then_stop", "closes"), [(True, False, True), (False, True, False)]
)
def test_a_graceful_stop_closes_operators_and_a_checkpoint_then_stop_does_not(
    is_stop: bool,
    then_stop: bool,
    closes: bool,
) -> None:
    log = Log()
    rig = straight(log)
    rig.run(spoken={A0: EventTime(3)}, is_stop=is_stop, then_stop=then_stop)
    assert ("on_close Stop" in log.of("a")) is closes
    assert rig.watermarks[rig.nodes[2].operator][0].event_time_micros == 3


def test_a_failure_behind_collect_cannot_be_hidden_by_catching_it() -> None:
    log = Log()

    def swallow(batch: pa.RecordBatch, ctx: object, collector: ArrowCollector) -> None:
        with suppress(Exception):
            collector.collect(batch)

    def fail(batch: pa.RecordBatch, ctx: object, collector: object) -> None:
        raise ValueError("no such user")

    parts = Parts()
    rig = ChainRig(
        parts.registry,
        [
            parts.node("a", lambda: Scripted("a", log, process_batch=swallow), PLAIN),
            parts.node("b", lambda: Scripted("b", log, process_batch=fail), PLAIN),
        ],
        [link("a", "b")],
    )
    with pytest.raises(UserCodeError) as raised:
        rig.run(("a", 0, rows(1)))
    assert raised.value.context["operator"] == "b"
    assert "no such user" in raised.value.message
    assert "handle_checkpoint" not in log.of("b")


def test_an_error_behind_collect_names_whoever_raised_it_not_whoever_emitted() -> None:
    parts = Parts()

    def fail(*_: object) -> None:
        raise ExternalError("the service is down")

    rig = ChainRig(
        parts.registry,
        [
            parts.node("a", Scripted, PLAIN),
            parts.node("b", lambda: Scripted(process_batch=fail), PLAIN),
        ],
        [link("a", "b")],
    )
    with pytest.raises(ExternalError) as raised:
        rig.run(("a", 0, rows(1)))
    assert raised.value.context == {
        "operator": "b",
        "subtask": 0,
        "epoch": 1,
        "hook": "process_batch",
    }


def test_a_chain_goes_on_after_an_epoch_that_failed_once_its_failure_is_forgotten() -> None:
    log, parts, moody = Log(), Parts(), [True]

    def fail_once(*_: object) -> None:
        if moody.pop():
            moody.append(False)
            raise UserError("not today", code=ErrorCode.INVALID_NUMBER)
        moody.append(False)

    rig = ChainRig(
        parts.registry,
        [parts.node("a", lambda: Scripted("a", log, on_start=fail_once), PLAIN)],
    )
    with pytest.raises(UserError, match="not today"):
        rig.run()
    rig.run(("a", 0, rows(1)))
    assert log.of("a") == ["on_start", "on_start", "process_batch", "handle_checkpoint"]
