"""The in-process executor: order between producers by seed, order of each producer kept."""

import pyarrow as pa

from penstock.graph.logical import Exchange
from penstock.runtime.driver.session import JobSession
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.task.task import Worker
from tests.builders.driven_job import DrivenJob
from tests.builders.scripted import PLAIN, NumberedSource, Scripted, link
from tests.unit.state.tables.table_builders import NO_CACHE


def order_of_rows(seed: int) -> list[str]:
    """Return whose rows a consumer of four producers saw, in order."""
    seen: list[str] = []

    def note(batch: pa.RecordBatch, *_: object) -> None:
        seen.extend(f"{row['user']}{row['n']}" for row in batch.to_pylist())

    job = DrivenJob()
    splits = {name: range(2) for name in "abcd"}
    job.add("read", lambda: NumberedSource(splits), parallelism=4)
    job.add("write", lambda: Scripted(is_sink=True, process_batch=note), PLAIN)
    job.join(link("read", "write", exchange=Exchange.REBALANCE))
    environment = job.environment()
    worker = Worker(job.store, NO_CACHE, job.parts.registry, job.clock)
    environment.executor = InProcessExecutor(worker, seed=seed)
    JobSession.start(environment).run_epoch()
    return seen


def test_producers_are_mixed_by_seed_and_each_keeps_its_order() -> None:
    orders = [order_of_rows(seed) for seed in range(6)]
    assert len({tuple(order) for order in orders}) > 1
    for order in orders:
        assert sorted(order) == [f"{name}{n}" for name in "abcd" for n in (0, 1)]
        for name in "abcd":
            assert order.index(f"{name}0") < order.index(f"{name}1")


def test_the_same_seed_gives_the_same_order() -> None:
    assert order_of_rows(3) == order_of_rows(3)


def test_between_supersteps_somebody_may_look_in() -> None:
    job = DrivenJob()
    job.add("read", lambda: NumberedSource({"s": range(2)}))
    job.add("write", lambda: Scripted(is_sink=True), PLAIN)
    job.join(link("read", "write", exchange=Exchange.REBALANCE))
    levels: list[int] = []
    environment = job.environment()
    worker = Worker(job.store, NO_CACHE, job.parts.registry, job.clock)
    environment.executor = InProcessExecutor(worker, between_supersteps=levels.append)
    JobSession.start(environment).run_epoch()
    assert levels == [0, 1]
