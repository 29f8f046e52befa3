"""The workflows of the crash matrix, and the jobs they find when they start."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from penstock.core.ids import Epoch, JobId, SavepointName
from penstock.errors import PenstockError
from penstock.state.protocol.publication import CommitPermit, ReadyCheckpoint
from penstock.state.protocol.records import CheckpointRef
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from tests.builders.small_driver import Sink, SmallDriver, a_driver, checkpoints_in

BRANCH = JobId("branch")
SAVEPOINT = SavepointName("before-upgrade")


@dataclass(frozen=True, slots=True)
class Past:
    """A job as the workflow under test finds it."""

    objects: dict[str, bytes]
    acknowledged: tuple[CheckpointRef, ...]
    sink: Sink
    driver: SmallDriver | None = None

    def sink_copy(self) -> Sink:
        return Sink(list(self.sink.commits))


@dataclass(slots=True)
class Attempt:
    """One process that carries out the workflow under test."""

    past: Past
    store: ObjectStore
    sink: Sink
    acknowledged: list[CheckpointRef]
    """What this process was told is acknowledged; kept here, as it may die."""

    def driver(self, *, keep_epochs: int = 2) -> SmallDriver:
        """The driver of the past, in this process: it has claimed already."""
        assert self.past.driver is not None
        return replace(
            self.past.driver,
            checkpoints=checkpoints_in(self.store, self.past.driver.checkpoints.job),
            sink=self.sink,
            keep_epochs=keep_epochs,
            acknowledged=self.acknowledged,
        )


Workflow = Callable[[Attempt], object]


def start(attempt: Attempt, restore: CheckpointRef | None = None) -> SmallDriver:
    driver = SmallDriver(
        checkpoints_in(attempt.store),
        attempt.sink,
        acknowledged=attempt.acknowledged,
        keep_epochs=2,
    )
    return driver.start(restore=restore)


def take_over(attempt: Attempt) -> object:
    return start(attempt)


def take_over_and_restore(attempt: Attempt) -> object:
    return start(attempt, restore=attempt.past.acknowledged[1])


def restore_and_publish(attempt: Attempt) -> object:
    return start(attempt, restore=attempt.past.acknowledged[1]).run_epoch()


def publish_and_commit(attempt: Attempt) -> object:
    driver = attempt.driver()
    manifest = driver.write_epoch()
    try:
        outcome = driver.publish(manifest)
    except PenstockError:
        outcome = driver.publish(manifest)  # repeating it is promised to be safe
    assert isinstance(outcome, ReadyCheckpoint | CommitPermit)
    driver.finish(outcome)
    return outcome


def collect(attempt: Attempt) -> object:
    return attempt.driver(keep_epochs=1).collect()


def sweep_old(attempt: Attempt) -> object:
    return attempt.driver(keep_epochs=1).sweep()


def pin(attempt: Attempt) -> object:
    return checkpoints_in(attempt.store).pin(SAVEPOINT, Epochs(Epoch(2)))


def unpin(attempt: Attempt) -> object:
    return checkpoints_in(attempt.store).unpin(SAVEPOINT)


def branch(attempt: Attempt) -> object:
    return checkpoints_in(attempt.store).branch(BRANCH, Epochs(Epoch(2)))


def release_origin(attempt: Attempt) -> object:
    driver = attempt.driver(keep_epochs=1)
    return driver.checkpoints.release_origin(driver.claim)


def leave(attempt: Attempt) -> object:
    driver = attempt.driver()
    driver.collect()
    driver.checkpoints.leave(driver.claim)
    return driver.claim


def release_restore(attempt: Attempt) -> object:
    driver = attempt.driver()
    driver.checkpoints.release_honoured_restores(driver.claim)
    return driver.claim


def _past_of(store: MemoryStore, driver: SmallDriver, *others: CheckpointRef) -> Past:
    return Past(store.contents(), (*others, *driver.acknowledged), driver.sink, driver)


@cache
def nothing() -> Past:
    return Past({}, (), Sink())


@cache
def four_epochs() -> Past:
    store = MemoryStore()
    return _past_of(store, a_driver(store, epochs=4))


@cache
def an_open_commit() -> Past:
    store = MemoryStore()
    driver = a_driver(store, epochs=3)
    manifest = driver.write_epoch()
    driver.publish(manifest)
    past = _past_of(store, driver)
    return replace(past, acknowledged=(*past.acknowledged, manifest.ref))


@cache
def a_pending_restore() -> Past:
    store, sink = MemoryStore(), Sink()
    first = a_driver(store, epochs=4, sink=sink)
    driver = a_driver(store, restore=first.acknowledged[0], sink=sink)
    return _past_of(store, driver, *first.acknowledged)


@cache
def an_honoured_restore() -> Past:
    """A restore whose first epoch is published and whose pin is not released yet."""
    store, sink = MemoryStore(), Sink()
    first = a_driver(store, epochs=4, sink=sink)
    driver = a_driver(store, restore=first.acknowledged[1], sink=sink)
    driver.restoring = False
    driver.run_epoch()
    return _past_of(store, driver, *first.acknowledged)


@cache
def a_savepoint_and_garbage() -> Past:
    """Many epochs, one of them pinned, some given up, and what failed attempts left."""
    store, sink = MemoryStore(), Sink()
    driver = a_driver(store, epochs=2, sink=sink)
    lost = driver.write_epoch()
    checkpoints_in(store).pin(SAVEPOINT, Epochs(Epoch(2)))
    successor = a_driver(store, epochs=5, sink=sink)
    assert lost.ref not in successor.acknowledged
    successor.collect()
    successor.run_epochs(2)
    return _past_of(store, successor, *driver.acknowledged)


@cache
def an_outgrown_branch() -> Past:
    store, sink = MemoryStore(), Sink()
    origin = a_driver(store, epochs=4, sink=sink)
    checkpoints_in(store).branch(BRANCH, Epochs(Epoch(2)))
    driver = a_driver(store, job=BRANCH, epochs=6, keep_epochs=1, sink=sink)
    driver.collect()
    return _past_of(store, driver, *origin.acknowledged)
