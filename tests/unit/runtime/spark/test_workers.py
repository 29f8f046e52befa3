"""A process that runs tasks has one worker, and with it one store and one cache, per driver."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.core import settings
from penstock.core.ids import JobId, Subtask
from penstock.core.settings import current
from penstock.operators.chain import AssembledChain, ChainSetting
from penstock.operators.user_functions import pickle_function
from penstock.runtime.spark.task import WorkerSpec, worker_of
from penstock.runtime.task.task import ChainKey, KeptChain
from penstock.state.storage.local_disk import LocalStore
from tests.builders.pipeline_job import REGISTRY


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker adopts the driver's settings for its whole process: here that ends with the test."""
    monkeypatch.setattr(settings, "_adopted", None)


def a_spec(name: str, folder: Path) -> WorkerSpec:
    store = LocalStore(folder / "store")
    registry = pickle_function(REGISTRY, "registry")
    return WorkerSpec(name, store, str(folder / "cache"), current(), registry)


def test_tasks_of_one_driver_share_the_worker_that_the_first_of_them_made(
    tmp_path: Path,
) -> None:
    spec = a_spec("one", tmp_path)
    first = worker_of(spec)
    # Every task is sent a copy of the spec, and with it of the store.
    second = worker_of(pickle.loads(pickle.dumps(spec)))
    assert second is first
    assert second.store is first.store is spec.store


def test_tasks_of_another_driver_have_a_worker_of_their_own(tmp_path: Path) -> None:
    first, other = (worker_of(a_spec(name, tmp_path)) for name in ("two", "three"))
    assert other is not first


def test_a_task_adopts_its_own_settings_also_in_a_worker_that_another_task_made(
    tmp_path: Path,
) -> None:
    one, other = a_spec("four", tmp_path), a_spec("five", tmp_path)
    other = replace(other, settings=replace(current(), memory_budget_bytes=2_345_678))
    worker_of(one)
    worker_of(other)
    assert current().memory_budget_bytes == 2_345_678
    worker_of(one)
    assert current() == one.settings


def test_workers_of_earlier_jobs_are_released_and_dropped(tmp_path: Path) -> None:
    first = worker_of(a_spec("first", tmp_path))
    setting = ChainSetting(
        JobId("j"),
        Subtask(0, 1),
        first.registry,
        first.clock,
        lambda *_: pytest.fail("no table"),
    )
    key = ChainKey(JobId("j"), 1, "fingerprint", 0, 0)
    first.keep_chain(key, KeptChain(AssembledChain([], [], setting), 1, {}))
    for number in range(8):
        worker_of(a_spec(f"later-{number}", tmp_path))
    assert first.chains == {}
    assert worker_of(a_spec("first", tmp_path)) is not first
