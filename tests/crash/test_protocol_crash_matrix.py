"""Every workflow of the protocol, with every fault at every storage call, then recovery.

Each trial starts from a prepared job and runs one workflow on a store that fails once. The
process then is dead and another takes over, or it is alive and tries again; a write still
under way lands before the recovery, or after it. Then every invariant must hold, and the
job must be able to go on.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.protocol import codec
from penstock.state.protocol.records import ClaimRecord, Fenced, PinKind
from penstock.state.protocol.takeover import TakenOver, TakeOverOutcome
from penstock.state.storage.local_disk import LocalStore
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.testing import (
    STORAGE_FAULTS,
    CrashError,
    Fault,
    FaultMode,
    FaultyStore,
    Lands,
    Trial,
    assert_acknowledged_epochs_survive,
    assert_commits_were_permitted,
    assert_job_is_whole,
    stored_objects,
    sweep,
)
from tests.builders.profile import a_start, by_profile
from tests.builders.protocol import JOB
from tests.builders.small_driver import (
    FencedOffError,
    SmallDriver,
    a_driver,
    checkpoints_in,
)
from tests.crash.protocol_workflows import (
    BRANCH,
    SAVEPOINT,
    Attempt,
    Past,
    Workflow,
    a_pending_restore,
    a_savepoint_and_garbage,
    an_honoured_restore,
    an_open_commit,
    an_outgrown_branch,
    branch,
    collect,
    four_epochs,
    leave,
    nothing,
    pin,
    publish_and_commit,
    release_origin,
    release_restore,
    restore_and_publish,
    sweep_old,
    take_over,
    take_over_and_restore,
    unpin,
)

FAULTS = (*STORAGE_FAULTS, Fault(FaultMode.LOSE_RESPONSE, lands=Lands.NOW))


MATRIX: list[tuple[Workflow, Callable[[], Past]]] = [
    (take_over, nothing),
    (take_over, four_epochs),
    (take_over, an_open_commit),
    (take_over, a_pending_restore),
    (take_over, an_honoured_restore),
    (take_over_and_restore, four_epochs),
    (restore_and_publish, four_epochs),
    (publish_and_commit, four_epochs),
    (publish_and_commit, a_pending_restore),
    (collect, four_epochs),
    (collect, a_savepoint_and_garbage),
    (sweep_old, a_savepoint_and_garbage),
    (pin, four_epochs),
    (pin, a_pending_restore),
    (unpin, a_savepoint_and_garbage),
    (branch, four_epochs),
    (release_origin, an_outgrown_branch),
    (release_restore, an_honoured_restore),
    (leave, four_epochs),
]


def names(case: object) -> str:
    return getattr(case, "__name__", str(case))


EVERY = by_profile(default=3, ci=1, nightly=1)
"""Of how many trials in turn one is checked."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What becomes of a process whose workflow met a fault."""

    name: str
    faults: tuple[Fault, ...]
    again: bool = False
    """Whether a process that saw an error calls the workflow once more."""
    late_first: bool = True
    """Whether writes under way land before others recover, or after."""


LATE = tuple(
    fault for fault in FAULTS if fault.lands is Lands.LATER and fault.late_calls is None
)
SURVIVED = tuple(fault for fault in FAULTS if not fault.mode.startswith("crash"))
ENDINGS = [
    Ending("dies", FAULTS),
    Ending("dies-and-its-write-lands-last", LATE, late_first=False),
    Ending("tries-again", SURVIVED, again=True),
    Ending(
        "tries-again-and-its-first-write-lands-last", LATE, again=True, late_first=False
    ),
]


def attempts(
    workflow: Workflow, past: Past, make_store: Callable[[], ObjectStore], ending: Ending
) -> Iterator[tuple[Trial, Attempt]]:
    """Yield every trial with its attempt."""
    running: list[Attempt] = []

    def run(store: FaultyStore) -> object:
        attempt = Attempt(past, store, past.sink_copy(), [])
        running.append(attempt)
        try:
            return workflow(attempt)
        except PenstockError:
            if not ending.again:
                raise
        return workflow(attempt)

    for trial in sweep(run, ending.faults, make_store=make_store):
        yield trial, running[-1]


def check(store: ObjectStore, attempt: Attempt) -> None:
    """Check everything that was promised, to this process and to those before it."""
    for job in {JOB, BRANCH}:
        checkpoints = checkpoints_in(store, job)
        assert_job_is_whole(checkpoints)
        mine = [ref for ref in attempt.past.acknowledged if ref.job == job]
        mine += [ref for ref in attempt.acknowledged if ref.job == job]
        assert_acknowledged_epochs_survive(checkpoints, mine)
        commits = [commit for commit in attempt.sink.commits if commit[0].job == job]
        if commits:
            assert_commits_were_permitted(checkpoints, commits)


def go_on(store: ObjectStore, attempt: Attempt) -> None:
    """Let a healthy driver of every job there take over, publish, collect and sweep."""
    for job in (JOB, BRANCH):
        if not [*store.list(f"{job}/generations")]:
            continue
        driver = SmallDriver(checkpoints_in(store, job), attempt.sink, keep_epochs=2)
        driver.start().run_epochs(2)
        driver.collect()
        driver.sweep()
        attempt.acknowledged.extend(driver.acknowledged)
        check_restores_are_released(driver)


def check_restores_are_released(driver: SmallDriver) -> None:
    """Every claim's request is honoured now; only one that never claimed may leave a pin."""
    owners = {
        codec.decode(ClaimRecord, data, path).owner
        for path, data in stored_objects(driver.checkpoints.store).items()
        if path.startswith(f"{driver.checkpoints.job}/") and path.endswith("/claim")
    }
    for held in driver.checkpoints.pins():
        if held.kind is PinKind.RESTORE:
            assert held.name.removeprefix("restore-") not in owners, f"{held} is honoured"


def check_outcome(workflow: Workflow, trial: Trial, attempt: Attempt) -> None:
    """Check what the workflow itself promised, if it returned."""
    store = trial.store.store
    if trial.error is not None:
        assert isinstance(trial.error, PenstockError | CrashError)
    elif workflow is pin:
        assert SAVEPOINT in {pin.name for pin in checkpoints_in(store).pins()}
    elif workflow is unpin:
        assert SAVEPOINT not in {pin.name for pin in checkpoints_in(store).pins()}
    elif workflow is leave:
        assert checkpoints_in(store).running() is None
    elif workflow is branch:
        assert a_driver(MemoryStore(stored_objects(store)), job=BRANCH).next_epoch == 3
    elif workflow in (publish_and_commit, restore_and_publish):
        assert attempt.acknowledged[-1] in attempt.sink.refs
    elif workflow is take_over_and_restore:
        successor = a_driver(MemoryStore(stored_objects(store)))
        assert successor.base is not None
        assert successor.base.ref == attempt.past.acknowledged[1]


def explore(
    workflow: Workflow, past: Past, make_store: Callable[[], ObjectStore], ending: Ending
) -> int:
    """Run every trial, check it or one of a few in turn by profile; return their number."""
    trials = a_start(EVERY)
    first = trials
    for trial, attempt in attempts(workflow, past, make_store, ending):
        trials += 1
        if trials % EVERY:
            continue
        store = trial.store.store
        try:
            check_outcome(workflow, trial, attempt)
            if ending.late_first:
                trial.store.deliver_late()
            check(store, attempt)
            go_on(store, attempt)
            check(store, attempt)
            if not ending.late_first:
                trial.store.deliver_late()
                check(store, attempt)
                go_on(store, attempt)
                check(store, attempt)
        except BaseException as error:
            error.add_note(f"fault: {trial.fault}; the workflow's error: {trial.error!r}")
            error.add_note("\n".join(map(str, trial.store.calls)))
            raise
    return trials - first


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name)
@pytest.mark.parametrize(("workflow", "past"), MATRIX, ids=names)
def test_a_fault_at_any_storage_call_leaves_the_job_whole_and_able_to_go_on(
    workflow: Workflow, past: Callable[[], Past], ending: Ending
) -> None:
    origin = past()
    trials = explore(workflow, origin, lambda: MemoryStore(origin.objects), ending)
    assert trials >= 2 * len(ending.faults)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workflow", "past"),
    [
        (publish_and_commit, four_epochs),
        (collect, four_epochs),
        (take_over_and_restore, four_epochs),
    ],
    ids=names,
)
def test_the_same_holds_on_a_disk(
    workflow: Workflow, past: Callable[[], Past], tmp_path: Path
) -> None:
    origin = past()
    numbers = count()

    def on_disk() -> ObjectStore:
        store = LocalStore(tmp_path / str(next(numbers)), durable=False)
        for path, data in origin.objects.items():
            store.put(path, data)
        return store

    modes = {FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER, FaultMode.FAIL_AFTER}
    faults = tuple(fault for fault in FAULTS if fault.mode in modes)
    assert explore(workflow, origin, on_disk, Ending("dies", faults)) >= len(faults)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name)
def test_a_driver_that_takes_itself_for_replaced_is_found(
    ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_over_rightly = JobCheckpoints.take_over

    def take_over_wrongly(checkpoints: JobCheckpoints) -> TakeOverOutcome:
        taken = take_over_rightly(checkpoints)
        has_failed = (
            isinstance(checkpoints.store, FaultyStore) and checkpoints.store.has_fired
        )
        if has_failed and isinstance(taken, TakenOver):
            return Fenced(taken.claim.generation)
        return taken

    monkeypatch.setattr(
        JobCheckpoints, "take_over", lambda self, **_: take_over_wrongly(self)
    )
    with pytest.raises(FencedOffError):
        explore(take_over, nothing(), MemoryStore, ending)
