"""Commits: every acknowledged epoch's staged output, whoever finishes it, as often as needed."""

from functools import partial
from typing import Any

import pytest

from penstock.core.ids import Subtask
from penstock.errors import ExternalError, PenstockError, StateError, UserCodeError
from penstock.graph.logical import Exchange
from penstock.operators.context import CommitContext, CommitPart, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.runtime.driver.committing import raise_failed
from penstock.runtime.driver.decide import JobPhase
from penstock.runtime.plan.executor import PartReport, to_error_part
from penstock.state.tables.specs import global_table
from tests.builders.driven_job import DrivenJob
from tests.builders.scripted import PLAIN, NumberedSource, Scripted, link

STAGED = global_table("staged", str, bytes, uses_two_phase_commit=True)


class Target:
    """The system a sink writes to: survives all drivers."""

    def __init__(self) -> None:
        self.committed: dict[int, dict[int, bytes]] = {}
        self.calls: list[int] = []
        self.failures: list[Exception] = []
        self.released = 0

    def commit(self, epoch: int, data: Any, ctx: CommitContext) -> None:
        self.calls.append(int(epoch))
        if self.failures:
            raise self.failures.pop(0)
        self.committed[int(epoch)] = dict(data["staged"])

    def release(self) -> None:
        self.released += 1

    def sink(self, kind: type[Scripted] = Scripted) -> Scripted:
        def stage(barrier: object, ctx: OperatorContext, *_: object) -> None:
            subtask = ctx.task.subtask.index
            ctx.insert_committing_data("staged", f"{ctx.epoch}-{subtask}".encode())

        return kind(
            "write",
            is_sink=True,
            tables=[STAGED],
            handle_checkpoint=stage,
            handle_commit=self.commit,
            release=self.release,
        )


def a_job(target: Target) -> DrivenJob:
    job = DrivenJob()
    job.add("read", lambda: NumberedSource({"s": range(4)}))
    job.add("write", target.sink, PLAIN, parallelism=2)
    job.join(link("read", "write", exchange=Exchange.REBALANCE))
    return job


def test_a_commit_gets_the_data_of_all_subtasks_once_per_operator() -> None:
    target = Target()
    assert a_job(target).run().phase is JobPhase.FINISHED
    assert target.calls == [1, 2, 3]
    for epoch, parts in target.committed.items():
        assert parts == {0: f"{epoch}-0".encode(), 1: f"{epoch}-1".encode()}


def test_a_commit_that_failed_is_made_up_for_before_anything_else() -> None:
    target = Target()
    target.failures = [ExternalError("down")]
    job = a_job(target)
    status = job.run()
    assert status.phase is JobPhase.FINISHED
    assert status.restarts == 1
    assert target.calls == [1, 1, 2, 3]
    assert target.committed[1] == {0: b"1-0", 1: b"1-1"}


def test_an_error_of_user_code_says_that_the_epoch_is_acknowledged() -> None:
    target = Target()
    target.failures = [ValueError("no such table")]
    job = a_job(target)
    with pytest.raises(UserCodeError) as raised:
        job.run()
    assert raised.value.context == {
        "operator": "write",
        "epoch": 1,
        "hook": "handle_commit",
    }
    assert "it is committed again at the next start" in raised.value.message
    assert target.committed == {}
    assert job.run().phase is JobPhase.FINISHED
    assert sorted(target.committed) == [1, 2, 3]


def test_the_instance_that_commits_is_released_also_when_it_failed() -> None:
    target = Target()
    target.failures = [ValueError("no")]
    with pytest.raises(UserCodeError):
        a_job(target).run()
    # Two subtasks and the instance that committed.
    assert target.released >= 3


def test_one_instance_commits_all_epochs_of_a_session_and_is_released_at_its_end() -> None:
    target = Target()
    committing: list[Scripted] = []
    released: list[Scripted] = []

    class Counted(Scripted):
        def handle_commit(self, epoch: Any, commit_data: Any, ctx: CommitContext) -> None:
            committing.append(self)
            assert self not in released
            super().handle_commit(epoch, commit_data, ctx)

        def release(self) -> None:
            released.append(self)

    job = DrivenJob()
    job.add("read", lambda: NumberedSource({"s": range(4)}))
    job.add("write", lambda: target.sink(Counted), PLAIN, parallelism=2)
    job.join(link("read", "write", exchange=Exchange.REBALANCE))
    assert job.run().phase is JobPhase.FINISHED
    assert target.calls == [1, 2, 3]
    assert len(set(map(id, committing))) == 1
    assert released.count(committing[0]) == 1


def test_a_sink_that_failed_is_dropped_and_built_again_for_the_next_commit() -> None:
    target = Target()
    target.failures = [ExternalError("down")]
    committing: list[Scripted] = []

    class Counted(Scripted):
        def handle_commit(self, epoch: Any, commit_data: Any, ctx: CommitContext) -> None:
            committing.append(self)
            super().handle_commit(epoch, commit_data, ctx)

    job = DrivenJob()
    job.add("read", lambda: NumberedSource({"s": range(4)}))
    job.add("write", lambda: target.sink(Counted), PLAIN)
    job.join(link("read", "write"))
    assert job.run().phase is JobPhase.FINISHED
    first, *others = committing
    assert len(others) == 3
    assert all(sink is others[0] and sink is not first for sink in others)


def test_a_sink_that_is_gone_is_missed_while_its_commit_is_open() -> None:
    target = Target()
    target.failures = [ValueError("no")]
    job = a_job(target)
    with pytest.raises(UserCodeError):
        job.run()
    job.settings = DrivenJob(allow_dropped_state=True).settings
    job.nodes, job.edges = job.nodes[:1], []
    job.add("other", lambda: Scripted("other", is_sink=True), PLAIN)
    job.join(link("read", "other"))
    with pytest.raises(StateError, match="start the job once with the graph it had"):
        job.run()


def test_a_sink_without_handle_commit_is_told_to_have_one() -> None:
    class Forgetful(Scripted):
        plan_commit = ArrowOperator.plan_commit
        handle_commit = ArrowOperator.handle_commit

    def stage(barrier: object, ctx: OperatorContext, *_: object) -> None:
        ctx.insert_committing_data("staged", b"x")

    job = DrivenJob()
    job.add("read", lambda: NumberedSource({"s": range(4)}))
    job.add(
        "write",
        lambda: Forgetful(is_sink=True, tables=[STAGED], handle_checkpoint=stage),
        PLAIN,
    )
    job.join(link("read", "write"))
    with pytest.raises(UserCodeError, match="has no handle_commit: implement it"):
        job.run()


def test_all_parts_run_before_any_sink_ends_its_commit() -> None:
    """Parts of several sinks are one job of the executor."""
    called: list[tuple[str, str, int]] = []
    contexts: list[CommitContext] = []

    def sink(name: str) -> Scripted:
        def stage(barrier: object, ctx: OperatorContext, *_: object) -> None:
            ctx.insert_committing_data("staged", b"ab")

        def plan(epoch: int, data: Any, ctx: CommitContext) -> list[CommitPart]:
            return [CommitPart(bytes([letter])) for letter in data["staged"][0]]

        def carry_out(epoch: int, part: bytes, ctx: CommitContext) -> None:
            contexts.append(ctx)
            called.append((name, part.decode(), int(epoch)))

        def end(epoch: int, data: Any, ctx: CommitContext) -> None:
            called.append((name, "end", int(epoch)))

        return Scripted(
            name,
            is_sink=True,
            tables=[STAGED],
            handle_checkpoint=stage,
            plan_commit=plan,
            handle_commit_part=carry_out,
            handle_commit=end,
        )

    job = DrivenJob()
    job.add("read", lambda: NumberedSource({"s": range(4)}))
    for name in ("one", "two"):
        job.add(name, partial(sink, name), PLAIN)
        job.join(link("read", name))
    assert job.run().phase is JobPhase.FINISHED
    first = [(name, what) for name, what, epoch in called if epoch == 1]
    assert first == [
        ("one", "a"),
        ("one", "b"),
        ("two", "a"),
        ("two", "b"),
        ("one", "end"),
        ("two", "end"),
    ]
    assert [str(ctx.task.subtask) for ctx in contexts[:2]] == [
        str(Subtask(0, 2)),
        str(Subtask(1, 2)),
    ]
    assert len({ctx.attempt for ctx in contexts}) == len(contexts)
    assert len({ctx.identity for ctx in contexts}) == 1


@pytest.mark.parametrize("hook", ["plan_commit", "handle_commit_part"])
def test_an_error_in_a_commit_by_parts_names_the_hook_and_the_epoch_is_made_up_for(
    hook: str,
) -> None:
    target, failures = Target(), [ValueError("no such topic")]

    def fail(*_: object) -> list[CommitPart]:
        if failures:
            raise failures.pop()
        return [CommitPart(b"x")]

    def planned(*_: object) -> list[CommitPart]:
        return [CommitPart(b"x")]

    def sink() -> Scripted:
        made = target.sink()
        made.hooks.update({"plan_commit": planned, hook: fail})
        return made

    job = DrivenJob()
    job.add("read", lambda: NumberedSource({"s": range(4)}))
    job.add("write", sink, PLAIN)
    job.join(link("read", "write"))
    with pytest.raises(UserCodeError, match="no such topic") as raised:
        job.run()
    assert raised.value.context["hook"] == hook
    assert "committed again at the next start" in raised.value.message
    assert target.committed == {}
    assert job.run().phase is JobPhase.FINISHED
    assert sorted(target.committed) == [1, 2, 3]


def test_a_sink_that_plans_parts_needs_no_handle_commit_but_handle_commit_part() -> None:
    class ByParts(Scripted):
        handle_commit_part = ArrowOperator.handle_commit_part
        handle_commit = ArrowOperator.handle_commit

    parts: list[CommitPart] = []

    def stage(barrier: object, ctx: OperatorContext, *_: object) -> None:
        ctx.insert_committing_data("staged", b"x")

    job = DrivenJob()
    job.add("read", lambda: NumberedSource({"s": range(4)}))
    job.add(
        "write",
        lambda: ByParts(
            is_sink=True,
            tables=[STAGED],
            handle_checkpoint=stage,
            plan_commit=lambda *_: parts,
        ),
        PLAIN,
    )
    job.join(link("read", "write"))
    parts.append(CommitPart(b"x"))
    with pytest.raises(UserCodeError, match="has no handle_commit_part: implement it"):
        job.run()
    parts.clear()
    assert job.run().phase is JobPhase.FINISHED


def test_of_several_failures_one_that_stays_is_raised_and_the_others_are_notes() -> None:
    def report(error: PenstockError | None) -> PartReport:
        return PartReport(None if error is None else to_error_part(error))

    raise_failed([report(None), report(None)])
    away, wrong = ExternalError("away"), UserCodeError("wrong")
    with pytest.raises(UserCodeError, match="wrong") as raised:
        raise_failed([report(None), report(away), report(wrong), report(away)])
    assert raised.value.__notes__ == ["Also failed: away"]
    with pytest.raises(ExternalError, match="away"):
        raise_failed([report(away)])
