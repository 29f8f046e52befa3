"""Commits: every acknowledged epoch's staged output, whoever finishes it, as often as needed."""

from typing import Any

import pytest

from penstock.errors import ExternalError, StateError, UserCodeError
from penstock.graph.logical import Exchange
from penstock.operators.context import CommitContext, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.runtime.driver.decide import JobPhase
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
