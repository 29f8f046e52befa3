"""Journal and requests under every failure of a storage call: the job is whole, a request is honoured.

A job runs with requests that wait for it, and meets one fault at one call of the journal or of the
requests. It dies there or goes on. Then a driver without faults finishes the job.
"""

from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from typing_extensions import override

import penstock as pen
from penstock.catalog import default_registry
from penstock.core.clock import ManualClock, new_token
from penstock.core.ids import JobId
from penstock.errors import PenstockError
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.decide import JobPhase, JobStatus
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import DriverSettings, JobEnvironment, ManualPacer
from penstock.runtime.driver.listening import JobListener
from penstock.runtime.driver.progress import EpochProgress
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.journal.attendant import Attendant
from penstock.runtime.journal.reading import events_since
from penstock.runtime.journal.requests import ask, new_request
from penstock.runtime.task.task import Worker
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.storage.memory import MemoryStore
from penstock.testing import (
    STORAGE_FAULTS,
    CrashError,
    Fault,
    FaultMode,
    assert_job_is_whole,
    list_sink,
    list_source,
)
from penstock.testing.faults import FaultyStore
from penstock.testing.stepped_job import NO_CACHE

JOB = JobId("shop")
ROWS = [{"user": f"u{number % 5}", "paid": number} for number in range(40)]
PATHS = ("shop/events/*", "shop/events", "shop/requests/*", "shop/requests")


class Ticking(JobListener):
    """Lets every epoch take a second."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    @override
    def on_epoch(self, epoch: EpochProgress) -> None:
        self._clock.advance("1s")


@dataclass
class Shop:
    """A job with a journal whose storage calls are all made in order, by one thread."""

    store: MemoryStore = field(default_factory=MemoryStore)
    clock: ManualClock = field(default_factory=lambda: ManualClock(10**15))
    name: str = field(default_factory=lambda: f"journal-{new_token()}")

    @property
    def has_fired(self) -> bool:
        """Whether the fault of the last run has struck."""
        return self._used.has_fired

    def pipeline(self) -> pen.Pipeline:
        shop = pen.Pipeline("shop")
        sales = shop.read("sales", list_source(ROWS))
        sales.key_by("user").aggregate("spent", total=pen.sum("paid")).write(
            "out", list_sink(self.name)
        )
        return shop

    def run(self, *faults: Fault) -> JobStatus:
        store, registry = FaultyStore(self.store, *faults), default_registry()
        self._used = store
        executor = InProcessExecutor(Worker(store, NO_CACHE, registry, self.clock))
        environment = JobEnvironment(
            *(self.pipeline().graph(), store, NO_CACHE, executor, registry, self.clock),
            DriverSettings(budget=SourceBudget(rows=5), adapts_budget=False),
        )
        driver = JobDriver(environment, pacer=ManualPacer(self.clock))
        driver.add_listener(Ticking(self.clock))
        driver.add_listener(Attendant(driver, environment, in_thread=False))
        return driver.run()


def run_with(fault: Fault) -> tuple[Shop, bool]:
    """Run a job with a fault while a savepoint and a stop are asked for; say whether it died."""
    shop = Shop()
    asked = [
        new_request("savepoint", now_micros=shop.clock.micros, name="kept"),
        new_request("stop", now_micros=shop.clock.micros + 1),
    ]
    for request in asked:
        ask(shop.store, JOB, request)
    try:
        shop.run(fault)
    except (CrashError, PenstockError):
        return shop, True
    return shop, False


@pytest.mark.parametrize("fault", STORAGE_FAULTS, ids=lambda fault: str(fault.mode))
@pytest.mark.parametrize("path", PATHS)
def test_a_fault_of_the_journal_or_a_request_leaves_the_job_whole(
    fault: Fault, path: str
) -> None:
    for at in count(1):
        shop, has_died = run_with(replace(fault, at=at, path=path))
        if not shop.has_fired:
            assert at > 1 or fault.mode is FaultMode.STALE_LIST  # of listings only
            return
        is_crash = fault.mode in {FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER}
        assert has_died <= is_crash, "only a crash may end the job"
        shop.clock.advance("3s")
        # Whatever was left open is honoured by this driver; then nothing keeps the next one.
        shop.run()
        shop.clock.advance("3s")
        assert shop.run().phase is JobPhase.FINISHED
        assert_job_is_whole(JobCheckpoints(shop.store, JOB, shop.clock))
        assert list(shop.store.list("shop/requests")) == []
        names = [pin.name for pin in pen.checkpoints(shop.store, "shop").savepoints()]
        assert names == ["kept"]
        for event in events_since(shop.store, JOB, 0):
            assert event.job == "shop"


def test_a_journal_that_can_never_be_written_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = Shop()
    broken = Fault(FaultMode.FAIL_BEFORE, at=None, path="shop/events/*")
    assert shop.run(broken).phase is JobPhase.FINISHED
    told = [record for record in caplog.records if "journal" in record.getMessage()]
    assert len(told) == 1
