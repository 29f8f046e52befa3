"""What a worker remembers, and that it forgets whatever did not count."""

from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import UserCodeError
from penstock.graph.logical import Exchange, WatermarkSpec
from penstock.operators.context import OperatorContext
from penstock.runtime.driver.outcomes import EpochRan, Torn
from penstock.runtime.driver.session import JobSession
from penstock.runtime.in_process import Chaos, InProcessExecutor, Mischief
from penstock.state.tables.specs import global_table
from tests.builders.driven_job import DrivenJob
from tests.builders.scripted import BY_USER, Log, NumberedSource, Scripted, link

_WATERMARK = WatermarkSpec()
COUNTS = global_table("counts", str, int)


class Counting(Scripted):
    """Counts rows in memory and puts the sum into a table; right only if both stay in step."""

    def __init__(self, log: Log, results: list[int], **hooks: Any) -> None:
        super().__init__(
            "count",
            log,
            tables=[COUNTS],
            is_sink=True,
            on_start=self._start,
            process_batch=self._count,
            handle_checkpoint=self._keep,
            **hooks,
        )
        self._results = results
        self._seen = 0

    def _start(self, ctx: OperatorContext) -> None:
        self._seen = ctx.get_global_keyed_state("counts").get("rows") or 0

    def _count(self, batch: pa.RecordBatch, *_: object) -> None:
        self._seen += batch.num_rows

    def _keep(self, barrier: object, ctx: OperatorContext, *_: object) -> None:
        ctx.get_global_keyed_state("counts").insert("rows", self._seen)
        self._results.append(self._seen)


def a_session(log: Log, results: list[int], **hooks: Any) -> JobSession:
    job = DrivenJob()
    job.add("read", lambda: NumberedSource({"s": range(20)}))
    job.add("count", lambda: Counting(log, results, **hooks), BY_USER)
    job.join(link("read", "count", exchange=Exchange.BY_KEY))
    return job.session()


def executor_of(session: JobSession) -> InProcessExecutor:
    executor = session.environment.executor
    assert isinstance(executor, InProcessExecutor)
    return executor


def test_a_worker_that_remembers_goes_on_and_one_that_forgets_gives_the_same() -> None:
    for forgets in (False, True):
        log, results = Log(), list[int]()
        session = a_session(log, results)
        for _ in range(4):
            session.run_epoch()
            if forgets:
                executor_of(session).worker.forget()
        assert results == [2, 4, 6, 8]
        assert log.of("count").count("on_start") == (4 if forgets else 1)


def test_what_a_run_that_did_not_count_left_in_memory_is_forgotten() -> None:
    log, results = Log(), list[int]()
    session = a_session(log, results)
    session.run_epoch()
    executor = executor_of(session)
    executor.chaos = Chaos(1.0, kinds=(Mischief.RETRY,))
    for _ in range(3):
        assert isinstance(session.run_epoch(), EpochRan)
    executor.chaos = Chaos(1.0, seed=1, kinds=(Mischief.LOSE,))
    while not isinstance(session.run_epoch(), Torn):
        pass
    executor.chaos = Chaos()
    before = results[-1]
    session.run_epoch()
    session.run_epoch()
    assert results[-1] - results[-2] == 2
    assert results[-2] in (before, before + 2)


class _Enduring(Counting):
    """Goes on as it is; what it counted in epochs that did not count stays counted."""

    def can_skip_epochs(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [Counting, _Enduring])
def test_an_operator_that_says_so_goes_on_after_an_epoch_that_did_not_count(
    kind: type[Counting],
) -> None:
    log, results = Log(), list[int]()
    job = DrivenJob()
    job.add("read", lambda: NumberedSource({"s": range(20)}))
    job.add("count", lambda: kind(log, results), BY_USER)
    job.join(link("read", "count", exchange=Exchange.BY_KEY))
    session = job.session()
    session.run_epoch()
    executor = executor_of(session)
    # The epoch runs twice, and the run that is kept in the worker is not the one that counts.
    executor.chaos = Chaos(1.0, kinds=(Mischief.RETRY,))
    session.run_epoch()
    executor.chaos = Chaos()
    session.run_epoch()
    is_enduring = kind is _Enduring
    assert ("release" in log.of("count")) is not is_enduring
    assert (log.of("count").count("on_start") == 1) is is_enduring
    assert (results[-1] == 6) is not is_enduring


def test_every_epoch_may_fail_once_in_the_same_worker() -> None:
    log, results = Log(), list[int]()
    moods: list[bool] = []

    def fail_every_other(watermark: Any, *_: object) -> Any:
        moods.append(True)
        if len(moods) % 2:
            raise ValueError("again, please")
        return watermark

    job = DrivenJob()
    job.add("read", lambda: NumberedSource({"s": range(20)}), watermark=_WATERMARK)
    job.add(
        "count",
        lambda: Counting(log, results, handle_watermark=fail_every_other),
        BY_USER,
    )
    job.join(link("read", "count", exchange=Exchange.BY_KEY))
    session = job.session()
    for _ in range(4):
        with pytest.raises(UserCodeError):
            session.run_epoch()
        session.run_epoch()
    assert results == [2, 4, 6, 8]


def test_chains_of_earlier_claims_are_let_go_of() -> None:
    log, results = Log(), list[int]()
    job = DrivenJob()
    job.add("read", lambda: NumberedSource({"s": range(20)}))
    job.add("count", lambda: Counting(log, results), BY_USER)
    job.join(link("read", "count", exchange=Exchange.BY_KEY))
    environment = job.environment()
    JobSession.start(environment).run_epoch()
    log.take()
    JobSession.start(environment).run_epoch()
    assert log.of("count").count("release") == 1
    assert results == [2, 4]
    executor = environment.executor
    assert isinstance(executor, InProcessExecutor)
    assert {key.generation for key in executor.worker.chains} == {2}
