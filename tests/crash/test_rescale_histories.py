"""Deleted, expired and merged rows stay so through every change of parallelism.

The dangerous history: a file is seen in parts by several subtasks; one of them deletes its
keys and merges the tombstones away; then the parts come together again. Were the file seen
whole, what was deleted would be back.
"""

from functools import cache

import pytest

from penstock.state.storage.memory import MemoryStore
from tests.builders.kept_epochs import files_of, load_epoch
from tests.builders.shop import (
    SHOP,
    Operation,
    ShopEpoch,
    ShopModel,
    check_contents,
    owner_of_key,
    shop_specs,
)
from tests.builders.state_job import StateJob

KEYS = [f"key {number}" for number in range(24)]
ROWS = [(key, 1, 10) for key in KEYS]
KEYED = ("totals", "recent", "lines")
HISTORIES = [
    (middle, index, end)
    for middle in (2, 3, 4)
    for index in range(middle)
    for end in (1, 2, 3, 4)
    if end != middle
]


class History:
    """A job and the model of its newest epoch."""

    def __init__(self, job: StateJob, model: ShopModel) -> None:
        self.job = job
        self.model = model

    def run_epoch(self, *operations: Operation, watermark: int | None = None) -> None:
        epoch = ShopEpoch(self.job, self.model, 1)
        epoch.check()
        epoch.apply(operations)
        epoch.check()
        assert self.job.publish(self.job.checkpoint_subtasks(watermark)) is None
        self.model = epoch.finished(self.job.watermark)

    def check(self) -> None:
        for parallelism in (1, 3):
            managers = load_epoch(
                self.job.checkpoints,
                SHOP,
                self.job.specs[SHOP],
                int(self.job.epoch) - 1,
                parallelism=parallelism,
            )
            check_contents(managers, self.model, 1)


@cache
def one_subtask() -> tuple[dict[str, bytes], ShopModel]:
    """Two epochs of one subtask that wrote every key."""
    history = History(StateJob(shop_specs()), ShopModel())
    for number in (1, 2):
        rows = [(key, number, 10) for key in KEYS]
        history.run_epoch(
            *(("put", table, rows) for table in KEYED), ("insert_panes", rows, 30)
        )
    store = history.job.store
    assert isinstance(store, MemoryStore)
    return store.contents(), history.model


def rescaled_to(parallelism: int) -> History:
    objects, model = one_subtask()
    job = StateJob(shop_specs(), store=MemoryStore(objects), parallelism=parallelism)
    return History(job, model)


@pytest.mark.slow
@pytest.mark.parametrize(("middle", "index", "end"), HISTORIES)
def test_what_one_subtask_deleted_and_merged_away_never_comes_back(
    middle: int, index: int, end: int
) -> None:
    history = rescaled_to(middle)
    job = history.job
    gone = [key for key in KEYS if owner_of_key(key, middle) == index]
    history.run_epoch(*(("delete", table, gone) for table in KEYED))
    assert job.compact(SHOP, index)
    history.run_epoch()
    for table in KEYED:
        assert (
            sum(file.row_count for file in files_of(job.metadata[SHOP][index], table)) == 0
        )
    job.start(parallelism=end)
    history.run_epoch()
    history.check()
    for number in range(end):
        job.compact(SHOP, number)
    history.run_epoch(("put", "totals", ROWS[:3]))
    history.check()


@pytest.mark.slow
@pytest.mark.parametrize(("middle", "index", "end"), HISTORIES)
def test_what_expired_and_was_merged_away_in_one_subtask_never_comes_back(
    middle: int, index: int, end: int
) -> None:
    history = rescaled_to(middle)
    job = history.job
    own = [row for row in ROWS if owner_of_key(row[0], middle) == index]
    late = [(key, number, 20) for key, number, _ in own[:2]]
    history.run_epoch(("put", "totals", late), ("insert_panes", late, 50), watermark=30)
    assert job.compact(SHOP, index)
    history.run_epoch()
    job.start(parallelism=end)
    history.run_epoch()
    history.check()
    history.run_epoch(watermark=45)
    history.check()
    for number in range(end):
        job.compact(SHOP, number)
    history.run_epoch()
    history.check()
