"""Full and read-only disks below a job: caches only get slow, stores stop it without a loss."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.ids import Epoch
from penstock.errors import ErrorCode, StorageError
from penstock.state.files.cache import FileCache
from penstock.state.storage.urls import open_store
from penstock.state.tables.specs import keyed_table
from penstock.state.tables.table import Frontier
from penstock.state.tables.table_manager import TableManager
from tests.builders.kept_epochs import an_attempt, load_epoch, remount, small_disk
from tests.builders.shop import SHOP, ShopEpoch, ShopModel, check_contents, shop_specs
from tests.builders.state_job import StateJob
from tests.unit.state.tables.table_builders import an_environment

KEYS = [f"key {number}" for number in range(300)]


def run_epoch(job: StateJob, history: dict[int, ShopModel]) -> None:
    """An epoch of some 20 KB in all kinds of tables, next to its model."""
    number = int(job.epoch)
    epoch = ShopEpoch(job, history[0 if job.base is None else int(job.base.ref.epoch)], 1)
    rows = [(key, number * place, number) for place, key in enumerate(KEYS)]
    epoch.apply(
        [
            ("put", "totals", rows),
            ("delete", "totals", KEYS[number::7]),
            ("insert_panes", rows, None),
            ("count", number, "epochs", number),
        ]
    )
    work = job.checkpoint_subtasks(number)
    assert job.publish(work) is None
    history[number] = epoch.finished(number)


def run_many(step: Callable[[int], None]) -> None:
    for number in range(200):
        step(number)


def check_newest(job: StateJob, history: dict[int, ShopModel]) -> None:
    assert job.base is not None
    epoch = int(job.base.ref.epoch)
    managers = load_epoch(job.checkpoints, SHOP, job.specs[SHOP], epoch, cache=job.cache)
    check_contents(managers, history[epoch], 1)


@pytest.mark.parametrize("problem", ["full", "read-only", "too small for anything"])
def test_a_cache_that_cannot_be_written_is_only_slow(
    problem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    with small_disk(folder, "8k" if problem == "too small for anything" else "64k"):
        job = StateJob(shop_specs(), cache=FileCache(folder, 1 << 30), parallelism=2)
        history = {0: ShopModel()}
        with caplog.at_level(logging.WARNING):
            run_epoch(job, history)
            if problem == "read-only":
                remount(folder, "ro")
            for _ in range(3):
                run_epoch(job, history)
                check_newest(job, history)
            job.start(parallelism=3)
            run_epoch(job, history)
            check_newest(job, history)
    warnings = [text for text in caplog.messages if "cannot be written" in text]
    assert len(warnings) == 1
    assert str(folder) in warnings[0]


def test_an_epoch_that_outgrows_memory_and_disk_fails_and_loses_nothing(
    tmp_path: Path,
) -> None:
    columns: dict[str, Any] = {"key": pa.int64(), "text": pa.string()}
    spec = keyed_table("texts", pa.schema(columns), key_columns=["key"])

    def rows(start: int) -> pa.RecordBatch:
        texts = [f"{number:01000d}" for number in range(start, start + 1_000)]
        keys = list(range(start, start + 1_000))
        return pa.RecordBatch.from_pydict({"key": keys, "text": texts})

    folder = tmp_path / "cache"
    with small_disk(folder, "1m"):
        small = an_environment(cache=FileCache(folder, 1 << 20))
        attempt = an_attempt(small.store, small.task, cache=small.cache)
        manager = TableManager.load(attempt, [spec], {})
        manager.begin_epoch(Frontier())
        manager.get_keyed_state("texts").put(rows(0))
        restored = {0: manager.checkpoint(Epoch(1), Epoch(1), None).metadata}
        tight = type(attempt)(
            attempt.task,
            attempt.generation,
            attempt.token,
            attempt.store,
            attempt.cache,
            memory_budget_bytes=1 << 20,
        )
        manager = TableManager.load(tight, [spec], restored)
        manager.begin_epoch(Frontier())
        view = manager.get_keyed_state("texts")
        with pytest.raises(StorageError, match="Free space there") as raised:
            run_many(lambda number: view.put(rows(1_000 * number)))
        assert raised.value.code is ErrorCode.STORAGE_FULL
        assert str(folder) in str(raised.value)
    manager = TableManager.load(an_attempt(small.store, small.task), [spec], restored)
    manager.begin_epoch(Frontier())
    found = [batch.num_rows for batch in manager.get_keyed_state("texts").scan()]
    assert sum(found) == 1_000


def test_a_full_store_stops_the_job_at_an_acknowledged_epoch(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with small_disk(folder, "512k"):
        store = open_store(str(folder))
        job = StateJob(shop_specs(), store=store, parallelism=2)
        history = {0: ShopModel()}
        with pytest.raises(StorageError) as raised:
            run_many(lambda _: run_epoch(job, history))
        assert raised.value.code is ErrorCode.STORAGE_FULL
        assert "space" in str(raised.value)
        assert max(history) > 1
        check_newest(job, history)
        remount(folder, "size=4m")
        job.start()
        assert job.base is not None
        assert job.base.ref.epoch == max(history)
        check_newest(job, history)
        run_epoch(job, history)
        check_newest(job, history)


def test_a_store_that_becomes_read_only_can_still_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with small_disk(folder, "4m"):
        job = StateJob(shop_specs(), store=open_store(str(folder)), parallelism=2)
        history = {0: ShopModel()}
        run_epoch(job, history)
        remount(folder, "ro")
        with pytest.raises(StorageError) as raised:
            run_epoch(job, history)
        assert raised.value.code is ErrorCode.STORAGE_READ_ONLY
        check_newest(job, history)
        with pytest.raises(StorageError) as raised:
            job.start()
        assert raised.value.code is ErrorCode.STORAGE_READ_ONLY
        check_newest(job, history)
        remount(folder, "rw")
        job.start()
        run_epoch(job, history)
        check_newest(job, history)
        assert max(history) == 2
