"""Rows of a keyed table that are routed by a part of their key live with all of that part."""

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.core.ids import Subtask
from penstock.core.key_hash import hash_keys, owners_of
from penstock.errors import StateError
from penstock.state.tables.columns import KeyedSchema
from penstock.state.tables.keyed import KeyedTable
from penstock.state.tables.keyed_view import KeyedView
from tests.unit.state.tables.keyed_harness import an_environment

COLUMNS = pa.schema([("user", pa.int64()), ("slot", pa.int32()), ("n", pa.int64())])
SCHEMA = KeyedSchema("table", COLUMNS, ("user", "slot"), None, ("user",))
USERS = list(range(40))


def rows_of(users: list[int], slots: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"user": u, "slot": s, "n": 100 * u + s} for u in users for s in range(slots)],
        COLUMNS,
    )


def view_of(subtask: Subtask, folder: Path) -> KeyedView:
    environment = an_environment(folder, subtask=subtask)
    return KeyedTable(SCHEMA.to_config(), environment, (), 0).view()


def test_every_slot_of_a_key_is_accepted_by_the_owner_of_the_key(tmp_path: Path) -> None:
    owners = owners_of(hash_keys([pa.array(USERS)]), 3)
    for index in range(3):
        mine = [user for user in USERS if owners[user] == index]
        view = view_of(Subtask(index, 3), tmp_path)
        view.put(rows_of(mine, 5))
        found = view.get(rows_of(mine, 5))
        assert found.found.all()
        assert found.rows.column("n").to_pylist() == [
            100 * user + slot for user in mine for slot in range(5)
        ]
        view.delete(rows_of(mine, 2))
        assert sum(batch.num_rows for batch in view.scan()) == 3 * len(mine)
        view.release()


def test_a_key_of_somebody_else_is_refused_whatever_its_slot(tmp_path: Path) -> None:
    owners = owners_of(hash_keys([pa.array(USERS)]), 3)
    foreign = [user for user in USERS if owners[user] != 0]
    view = view_of(Subtask(0, 3), tmp_path)
    with pytest.raises(StateError, match="does not belong to subtask 0 of 3"):
        view.put(rows_of(foreign[:1], 1))
    view.release()
