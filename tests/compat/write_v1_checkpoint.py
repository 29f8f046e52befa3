"""Write the checkpoint of format 1 that every later version has to open.

    python -m tests.compat.write_v1_checkpoint

writes `tests/compat/checkpoints/v1`, which is committed. Run it only when the on-disk format
is changed deliberately *before its first release*; the folder must be deleted by hand first.
After a release a new format gets a folder, a program and a test of its own beside this one,
and this one stays as it is for ever: there are jobs that have nothing else.

What is in it: five epochs of one operator. Epochs 1 and 2 by version 1 of the program with
one subtask; 3 to 5 by version 2 with two, so that lists see parts of older files. Tombstones,
expired rows, files of both versions, merged files, a savepoint of epoch 2, a collection that
gave up epoch 1, committed output, and an epoch 5 that was acknowledged but not committed.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.core.ids import Epoch, SavepointName, Subtask
from penstock.core.key_hash import hash_keys, owners_of
from penstock.state.protocol.records import RULES
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.urls import open_store
from penstock.state.tables.table_manager import TableManager
from tests.builders.state_job import StateJob
from tests.compat.v1_contents import (
    HIGH,
    LOW,
    NULLS,
    PLAIN,
    SETTINGS,
    SINK,
    Key,
    typed_rows,
)
from tests.compat.v1_program import COUNTS, KEY_FIELDS, KEYS, OPERATOR, ROWS, specs

FOLDER = Path(__file__).parent / "checkpoints" / "v1"
START = 1_700_000_000_000_000
SAVEPOINT = SavepointName("before-upgrade")


def named_rows(version: int, *rows: tuple[Key, str, int]) -> pa.RecordBatch:
    """Rows of key, name and time in the columns of one version."""
    columns: dict[str, Any] = {
        "text": [key[0] for key, _, _ in rows],
        "number": [key[1] for key, _, _ in rows],
        "old_name": [name for _, name, _ in rows],
        "new_name": [name for _, name, _ in rows],
        "time": [time for _, _, time in rows],
    }
    schema: Any = ROWS[version].SCHEMA
    return pa.RecordBatch.from_pydict({n: columns[n] for n in schema.names}, schema=schema)


def keys_of(*keys: Key) -> pa.RecordBatch:
    columns: list[Any] = [
        pa.array([key[place] for key in keys], field.type)
        for place, field in enumerate(KEY_FIELDS)
    ]
    return pa.RecordBatch.from_arrays(columns, KEYS)


def own(batch: pa.RecordBatch, subtask: Subtask) -> Iterable[pa.RecordBatch]:
    """Cut out the rows of one subtask, one by one: views cannot be gathered."""
    hashes = hash_keys([batch.column(name) for name in KEYS], row_count=batch.num_rows)
    for place, owner in enumerate(owners_of(hashes, subtask.parallelism).tolist()):
        if owner == subtask.index:
            yield batch.slice(place, 1)


class Epoch1:
    """All tables get their first rows."""

    version, clock, watermark = 1, 0, 10

    def write(self, _operator: str, subtask: Subtask, manager: TableManager) -> None:
        count = COUNTS[1]
        counts = manager.get_global_keyed_state("counts")
        for key, number in {"a": 1, "b": 2, "ž": 3, "gone": 9}.items():
            counts.insert(key, count(number))
        for setting, value in SETTINGS.items():
            manager.get_global_keyed_state("settings").insert(setting, value)
        typed = typed_rows((LOW, "low"), (HIGH, "high"), (NULLS, "none"), (PLAIN, "low"))
        for row in own(typed, subtask):
            manager.get_keyed_state("types").put(row)
        names = [
            (LOW, "low", 100),
            (PLAIN, "plain", 200),
            (NULLS, "null", 300),
            (HIGH, "h", 150),
        ]
        manager.get_keyed_state("names").put(named_rows(1, *names))
        manager.get_keyed_state("recent").put(named_rows(1, (LOW, "early", 1)))
        panes = manager.get_time_keyed_state("panes")
        panes.insert(named_rows(1, (LOW, "one", 1)), 1_050)
        panes.insert(named_rows(1, (NULLS, "for ever", 3)), None)
        panes.insert(named_rows(1, (HIGH, "dead", 1)), 40)
        manager.get_time_keyed_state("marks").insert(
            named_rows(1, (PLAIN, "a mark", 1)), None
        )


class Epoch2:
    """Some keys go, by tombstone and by time."""

    version, clock, watermark = 1, 600, 50

    def write(self, _operator: str, _subtask: Subtask, manager: TableManager) -> None:
        counts = manager.get_global_keyed_state("counts")
        counts.insert("a", COUNTS[1](10))
        counts.remove("gone")
        manager.get_keyed_state("types").delete(keys_of(HIGH))
        manager.get_keyed_state("names").delete(keys_of(HIGH))
        manager.get_keyed_state("recent").put(named_rows(1, (HIGH, "late", 1)))
        panes = manager.get_time_keyed_state("panes")
        panes.insert(named_rows(1, (LOW, "two", 2)), 1_050)


class Epoch3:
    """The next version of the program, with two subtasks."""

    version, clock, watermark = 2, 1_000, 1_100

    def write(self, _operator: str, subtask: Subtask, manager: TableManager) -> None:
        counts = manager.get_global_keyed_state("counts")
        if subtask.index == 0:
            counts.remove("b")
            marks = manager.get_time_keyed_state("marks")
            marks.insert(named_rows(2, (PLAIN, "of one", 2)), None)
        else:
            counts.insert("ž", COUNTS[2](4, "subtask 1"))
        for row in own(typed_rows((PLAIN, "high")), subtask):
            manager.get_keyed_state("types").put(row)
        for row in own(named_rows(2, (PLAIN, "again", 500)), subtask):
            manager.get_keyed_state("names").put(row)
        for row in own(named_rows(2, (NULLS, "and ever", 4)), subtask):
            manager.get_time_keyed_state("panes").insert(row, None)


class Epoch4:
    """Swaps in what was merged after epoch 3."""

    version, clock, watermark = 2, 1_000, 1_100

    def write(self, _operator: str, subtask: Subtask, manager: TableManager) -> None:
        if subtask.index == 0:
            counts = manager.get_global_keyed_state("counts")
            counts.insert("new", COUNTS[2](5, "subtask 0"))
        else:
            marks = manager.get_time_keyed_state("marks")
            marks.insert(named_rows(2, (PLAIN, "of two", 2)), None)


class Epoch5:
    """Is acknowledged, and never committed."""

    version, clock, watermark = 2, 1_000, 1_100

    def write(self, _operator: str, subtask: Subtask, manager: TableManager) -> None:
        for row in own(named_rows(2, (HIGH, "three", 5)), subtask):
            manager.get_time_keyed_state("panes").insert(row, None)


def write_checkpoint(folder: Path) -> None:
    """Run the five epochs into an empty folder."""
    job = StateJob(specs(1), store=open_store(str(folder)), rules=RULES)
    for epoch in (Epoch1(), Epoch2(), Epoch3(), Epoch4(), Epoch5()):
        number = int(job.epoch)
        job.clock.micros = START + epoch.clock
        if number == 3:
            job.start(specs=specs(2), parallelism=2)
        if number == 4:
            assert job.compact(OPERATOR, 0)

        def write(operator: str, subtask: Subtask, manager: TableManager) -> None:
            epoch.write(operator, subtask, manager)  # noqa: B023 - called within the loop
            if subtask.index in SINK[number]:  # noqa: B023 - called within the loop
                manager.insert_committing_data("counts", SINK[number][subtask.index])  # noqa: B023 - as above

        permit = job.publish(job.run_subtasks(write, watermark=epoch.watermark))
        assert permit is not None
        if number < 5:
            job.commit(permit)
        if number == 2:
            job.checkpoints.pin(SAVEPOINT, Epochs(Epoch(2)))
        if number == 4:
            job.checkpoints.collect(job.claim, keep_epochs=2)


if __name__ == "__main__":
    if FOLDER.exists():
        sys.exit(f"{FOLDER} exists: read the first lines of this file before deleting it")
    write_checkpoint(FOLDER)
