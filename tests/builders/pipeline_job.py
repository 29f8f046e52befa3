"""A job and the world around it: its store, its clock, the book of its output, its drivers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from penstock.catalog import default_registry
from penstock.core.clock import ManualClock
from penstock.core.settings import CompactionSettings
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.decide import JobPhase, JobStatus, StopMode
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import DriverSettings, JobEnvironment, ManualPacer
from penstock.runtime.driver.listening import StatusFunction
from penstock.runtime.driver.policies import RestartPolicy
from penstock.runtime.in_process import Chaos, InProcessExecutor
from penstock.runtime.task.task import Worker
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.files.cache import FileCache
from penstock.state.protocol.records import ProtocolRules
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.testing import assert_job_is_whole
from tests.builders.pipeline_graphs import START_MICROS, Shape
from tests.builders.pipeline_operators import Book, open_book

RULES = ProtocolRules(waypoint_stride=4, adoption_window=2)
"""So small that short runs meet waypoints and void compactions."""
REGISTRY = default_registry(load_plugins=False)
_BOOKS = count()


def small_settings(**changes: object) -> DriverSettings:
    """Settings with which a few rows make several epochs, compactions and collections."""
    settings: dict[str, object] = {
        "collect_every": 1,
        "keep_epochs": 2,
        "budget": SourceBudget(rows=5),
        "adapts_budget": False,
        "torn_limit": 1_000,
        "compaction": CompactionSettings(min_files=2, min_expiring_files=2),
        "restarts": RestartPolicy(max_restarts=3),
        "rules": RULES,
    }
    return DriverSettings(**(settings | changes))  # type: ignore[arg-type]  # as declared there


@dataclass
class PipelineJob:
    """One job of a shape, run by any number of drivers, one after the other or side by side."""

    shape: Shape
    folder: Path
    """Where caches go."""
    inner: ObjectStore = field(default_factory=MemoryStore)
    settings: DriverSettings = field(default_factory=small_settings)
    clock: ManualClock = field(default_factory=lambda: ManualClock(START_MICROS))

    def __post_init__(self) -> None:
        self.book_name = f"book-{next(_BOOKS)}"
        self.book: Book = open_book(self.book_name)

    def driver(
        self,
        store: ObjectStore | None = None,
        *,
        parallelism: Sequence[int] = (2, 3, 1),
        chaos: Chaos | None = None,
        between_supersteps: Callable[[int], None] | None = None,
        cache: str = "cache",
        seed: int = 0,
        on_status: Callable[[JobStatus], None] | None = None,
    ) -> JobDriver:
        """Return a driver in a new process: with a worker that remembers nothing."""
        used = self.inner if store is None else store
        files = FileCache(self.folder / cache, limit_bytes=1 << 30)
        worker = Worker(used, files, REGISTRY, self.clock)
        executor = InProcessExecutor(
            worker,
            seed=seed,
            chaos=chaos or Chaos(),
            between_supersteps=between_supersteps,
        )
        environment = JobEnvironment(
            self.shape.graph(self.book_name, parallelism),
            used,
            files,
            executor,
            REGISTRY,
            self.clock,
            self.settings,
        )
        heard = [] if on_status is None else [StatusFunction(on_status)]
        return JobDriver(environment, pacer=ManualPacer(self.clock), listeners=heard)

    def checkpoints(self) -> JobCheckpoints:
        job = self.shape.graph(self.book_name).job
        return JobCheckpoints(self.inner, job, self.clock, self.settings.rules)

    def run_epochs(
        self, count: int, *, stop: StopMode = StopMode.IMMEDIATE, **options: Any
    ) -> JobStatus:
        """Let another driver take over, publish so many epochs, and stop in the given way.

        Other ways than at once take one more epoch.
        """
        drivers: list[JobDriver] = []

        def watch(status: JobStatus) -> None:
            if status.epochs_published >= count:
                drivers[0].request_stop(stop)

        drivers.append(self.driver(on_status=watch, **options))
        return drivers[0].run()

    def finish(self, **options: Any) -> JobStatus:
        """Let another driver run the job to its end, and check everything."""
        status = self.driver(**options).run()
        assert status.phase is JobPhase.FINISHED
        self.check()
        return status

    def check(self) -> None:
        """The output is as it must be, once; what is kept could be restored."""
        assert self.book.output() == self.shape.expected
        assert_job_is_whole(self.checkpoints())
