"""A restore goes back past a newest epoch that is damaged, in whichever way it was asked for."""

from collections.abc import Callable

import pytest

import penstock as pen
from penstock.core.ids import Epoch
from penstock.errors import CorruptStateError
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.protocol import paths
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.testing import CUT, LocalJob, ScriptedSource

EPOCHS = 3


def a_pipeline() -> pen.Pipeline:
    pipeline = pen.Pipeline("job")
    script = [step for n in range(6) for step in ([{"n": n}], CUT)]
    pipeline.read("rows", ScriptedSource(script)).write("out", pen.blackhole())
    return pipeline


def damage(store: MemoryStore, checkpoints: JobCheckpoints, what: str) -> None:
    newest = checkpoints.epochs()[0].record.ref
    record = paths.epoch_record_path(newest.job, newest.epoch)
    store.put(record if what == "record" else paths.manifest_path(newest), b"garbage")


def by_the_program(_: JobCheckpoints) -> int | None:
    return 1


def after_a_death(checkpoints: JobCheckpoints) -> int | None:
    claim = checkpoints.newest_claim()
    assert claim is not None
    checkpoints.store.delete(paths.left_path(claim.job, claim.generation))
    return 1


def by_hand(checkpoints: JobCheckpoints) -> int | None:
    pen.checkpoints(checkpoints.store, "job").restore(1)
    return None


def again_after_its_claim(checkpoints: JobCheckpoints) -> int | None:
    checkpoints.take_over(restore=checkpoints.plan_restore(Epochs(Epoch(1))).ref)
    return 1


@pytest.mark.parametrize("what", ["manifest", "record"])
@pytest.mark.parametrize(
    "ask", [by_the_program, after_a_death, by_hand, again_after_its_claim]
)
def test_a_damaged_newest_epoch_does_not_keep_a_restore_from_going_on(
    ask: Callable[[JobCheckpoints], int | None], what: str
) -> None:
    store = MemoryStore()
    job = LocalJob(a_pipeline(), store=store)
    job.run(epochs=EPOCHS)
    damage(store, job.checkpoints, what)
    restore = ask(job.checkpoints)
    assert a_pipeline().check(store, restore=restore).epoch == 1
    done = a_pipeline().run_in_process(store, restore=restore)
    assert done.phase is pen.JobPhase.FINISHED
    first = job.checkpoints.manifest(job.checkpoints.plan_restore(Epochs(Epoch(4))).ref)
    assert first.parent is not None
    assert first.parent.epoch == 1


def test_an_epoch_behind_a_restore_that_is_damaged_stops_a_start() -> None:
    store = MemoryStore()
    job = LocalJob(a_pipeline(), store=store)
    job.run(epochs=EPOCHS)
    job.run(epochs=1, restore=Epochs(Epoch(1)))
    damage(store, job.checkpoints, "record")
    with pytest.raises(CorruptStateError, match=r"0000000004\.record"):
        a_pipeline().run_in_process(store)
    with pytest.raises(CorruptStateError, match=r"0000000004\.record"):
        job.checkpoints.take_over()
