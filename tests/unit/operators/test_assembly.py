"""Chains as they are put together, forgotten and let go of."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import UserCodeError, UserError
from penstock.state.tables.specs import global_table
from tests.builders.chain_rig import ChainRig
from tests.builders.scripted import BY_USER, PLAIN, Log, Parts, Scripted, link, rows


def a_rig(log: Log, **hooks: object) -> ChainRig:
    parts = Parts()
    nodes = [
        parts.node("a", lambda: Scripted("a", log, **hooks), PLAIN),  # type: ignore[arg-type]
        parts.node("b", lambda: Scripted("b", log), PLAIN),
    ]
    return ChainRig(parts.registry, nodes, [link("a", "b")])


def test_forgotten_operators_are_released_and_built_anew_on_their_tables() -> None:
    log = Log()
    rig = a_rig(log)
    rig.run()
    first = rig.chain.nodes[0].instance
    log.take()
    rig.chain.forget()
    assert log.take() == [("a", "release"), ("b", "release")]
    rig.chain.forget()
    assert log.take() == []
    assert rig.run(("a", 0, rows(1))).numbers("b") == [1]
    assert rig.chain.nodes[0].instance is not first
    assert log.of("a")[0] == "on_start"


def test_rows_that_leave_and_rows_that_stay_in_the_chain_are_the_same() -> None:
    ran = a_rig(Log()).run(("a", 0, rows(1, 2)))
    assert ran.numbers("a") == ran.numbers("b") == [1, 2]
    assert ran.reports["b"].rows_taken == 2


def test_what_release_raises_is_logged_and_everybody_is_released(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Log()

    def fail() -> None:
        raise ValueError("cannot close")

    rig = a_rig(log, release=fail)
    rig.run()
    rig.restart()
    assert log.of("b")[-1] == "release"
    assert "operator 'a' failed in release" in caplog.text
    assert "cannot close" in caplog.text


def test_an_instance_serves_one_node() -> None:
    log = Log()
    rig = a_rig(log)
    first, second = rig.chain.nodes
    assert first.instance is not second.instance


def test_what_cannot_be_built_is_refused_before_any_hook_is_called() -> None:
    log, parts = Log(), Parts()
    twice = [global_table("t", str, int), global_table("t", str, int)]
    rig = ChainRig(
        parts.registry, [parts.node("a", lambda: Scripted("a", log, tables=twice), PLAIN)]
    )
    with pytest.raises(UserError, match="'t'"):
        rig.run()
    assert log.calls == []


def declared_by(hook: str, declare: Callable[[], Any]) -> None:
    operator, parts = Scripted("a"), Parts()
    setattr(operator, hook, declare)
    ChainRig(parts.registry, [parts.node("a", lambda: operator, BY_USER)]).run()


@pytest.mark.parametrize("hook", ["tables", "timers", "tick_interval"])
def test_an_exception_in_what_declares_tables_timers_or_ticks_names_the_operator(
    hook: str,
) -> None:
    with pytest.raises(
        UserCodeError, match=f"'a' raised ZeroDivisionError in {hook}: "
    ) as e:
        declared_by(hook, lambda: 1 // 0)
    assert e.value.context == {"operator": "a", "hook": hook}
    assert isinstance(e.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("hook", "declared", "hint"),
    [("tables", ["t"], "TableSpec"), ("timers", ["event-time"], "TimeDomain.EVENT_TIME")],
)
def test_what_is_declared_as_something_else_is_refused(
    hook: str, declared: Any, hint: str
) -> None:
    with pytest.raises(UserError, match=f"'a' returned .* from {hook}: .*{hint}"):
        declared_by(hook, lambda: declared)
