"""All rows of a part of the key: what is returned, deleted, refused, and how rows lie in files."""

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.ids import Subtask
from penstock.core.key_hash import hash_keys, owners_of
from penstock.errors import InternalError, SchemaError, StateError, UserError
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.columns import KeyedSchema
from penstock.state.tables.expiry import TimeToLive
from penstock.state.tables.keyed import KeyedTable
from penstock.state.tables.keyed_view import KeyedView
from penstock.state.tables.table import Frontier
from tests.unit.state.tables.keyed_harness import KeyedHarness, a_schema, an_environment

COLUMNS = {"user": pa.string(), "at": pa.int64(), "value": pa.large_string()}
SCHEMA = a_schema(COLUMNS, "user", "at", routed_by=("user",))


def a_view(folder: Path, schema: KeyedSchema = SCHEMA) -> KeyedView:
    return KeyedTable(schema.to_config(), an_environment(folder), (), 0).view()


def rows_of(user: str, *ats: int, mark: str = "") -> list[dict[str, Any]]:
    return [{"user": user, "at": at, "value": f"{user}{at}{mark}"} for at in ats]


def values(view: KeyedView, *users: str, **options: Any) -> list[list[Any]]:
    found = view.get_all(list(users), **options)
    return [found.rows_of(i)["value"].to_pylist() for i in range(len(users))]


def test_rows_are_grouped_by_prefix_and_in_key_order(tmp_path: Path) -> None:
    view = a_view(tmp_path)
    view.put(rows_of("ada", 5, -1, 3) + rows_of("bob", 2))
    view.put(rows_of("ada", 4, 3, mark="!"))
    found = view.get_all(["bob", "eve", "ada"])
    assert found.offsets.tolist() == [0, 1, 1, 5]
    assert found.rows.schema == SCHEMA.declared
    assert values(view, "bob", "eve", "ada") == [
        ["bob2"],
        [],
        ["ada-1", "ada3!", "ada4!", "ada5"],
    ]


def test_a_prefix_that_is_asked_for_twice_is_answered_twice(tmp_path: Path) -> None:
    view = a_view(tmp_path)
    view.put(rows_of("ada", 1, 2))
    assert values(view, "ada", "bob", "ada") == [["ada1", "ada2"], [], ["ada1", "ada2"]]


def test_a_limit_gives_the_first_or_the_last_rows_in_the_same_order(tmp_path: Path) -> None:
    view = a_view(tmp_path)
    view.put(rows_of("ada", *range(100)) + rows_of("bob", 7))
    assert values(view, "ada", "bob", limit=2) == [["ada0", "ada1"], ["bob7"]]
    assert values(view, "ada", "bob", limit=2, last=True) == [["ada98", "ada99"], ["bob7"]]
    for limit in (100, 1 << 31, 1 << 32, 1 << 63, 1 << 64):
        assert [len(found) for found in values(view, "ada", "bob", limit=limit)] == [100, 1]


def test_columns_limit_what_is_returned(tmp_path: Path) -> None:
    view = a_view(tmp_path)
    view.put(rows_of("ada", 2, 1))
    assert view.get_all(["ada"], columns="value").rows.to_pydict() == {
        "value": ["ada1", "ada2"]
    }
    found = view.get_all(["ada"], columns=["value", "user"]).rows
    assert found.column_names == ["value", "user"]
    assert view.get_all(["ada"], columns=[]).offsets.tolist() == [0, 2]
    with pytest.raises(SchemaError, match="has no columns price"):
        view.get_all(["ada"], columns=["price"])


def test_deleting_prefixes_deletes_their_rows_and_no_others(tmp_path: Path) -> None:
    view = a_view(tmp_path)
    view.put(rows_of("ada", 1, 2) + rows_of("bob", 1))
    view.delete_all(["ada", "eve", "ada"])
    assert values(view, "ada", "bob") == [[], ["bob1"]]
    view.put(rows_of("ada", 2, mark="again"))
    assert values(view, "ada") == [["ada2again"]]
    view.delete_all([])
    assert values(view, "bob") == [["bob1"]]


@pytest.mark.parametrize(
    "prefixes",
    [
        ["ada"],
        {"user": ["ada"]},
        [{"user": "ada", "other": 1}],
        pa.array(["ada"]),
        pa.record_batch({"user": ["ada"], "at": [9]}),
        pa.table({"other": [1], "user": ["ada"]}),
        pl.DataFrame({"user": ["ada"]}),
        pl.Series(["ada"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_prefixes_come_in_all_forms_of_rows(tmp_path: Path, prefixes: Any) -> None:
    view = a_view(tmp_path)
    view.put(rows_of("ada", 1))
    assert view.get_all(prefixes).rows.num_rows == 1


def test_several_columns_are_a_prefix_in_their_own_order(tmp_path: Path) -> None:
    kinds = {"a": pa.int64(), "b": pa.string(), "c": pa.int8(), "n": pa.int64()}
    view = a_view(tmp_path, a_schema(kinds, "a", "b", "c", routed_by=("c", "a")))
    rows = [{"a": i % 2, "b": f"b{i}", "c": i % 3, "n": i} for i in range(12)]
    view.put(rows)
    found = view.get_all({"a": [1, 0], "c": [2, 0]}, columns="n")
    assert found.rows["n"].to_pylist() == [11, 5, 0, 6]
    assert found.offsets.tolist() == [0, 2, 4]


def test_a_prefix_may_be_the_whole_key(tmp_path: Path) -> None:
    view = a_view(tmp_path, a_schema(COLUMNS, "user", routed_by=("user",)))
    view.put(rows_of("ada", 1))
    view.put(rows_of("ada", 2))
    assert values(view, "ada", "bob", limit=1) == [["ada2"], []]
    assert view.get_all(["ada"], columns=[]).offsets.tolist() == [0, 1]


def test_expired_rows_are_gone_from_their_prefix(tmp_path: Path) -> None:
    kinds = {"user": pa.string(), "at": pa.timestamp("us"), "value": pa.string()}
    schema = a_schema(kinds, "user", "at", ttl=TimeToLive(10, "at"), routed_by=("user",))
    view = a_view(tmp_path, schema)
    view.put(
        pa.table({"user": ["ada"] * 3, "at": [1, 2, 3], "value": list("abc")}).cast(
            schema.declared
        )
    )
    view.advance(Frontier(12))
    assert values(view, "ada") == [["c"]]
    assert values(view, "ada", limit=1) == [["c"]]
    view.advance(Frontier(13))
    assert values(view, "ada") == [[]]


def test_a_table_without_prefix_says_how_to_declare_one(tmp_path: Path) -> None:
    view = a_view(tmp_path, a_schema(COLUMNS, "user", "at"))
    for call in (view.get_all, view.delete_all):
        with pytest.raises(SchemaError, match=r"\(user, at\).*routed_by"):
            call(["ada"])


def test_lists_in_the_rest_have_no_order_and_are_refused_by_prefix(tmp_path: Path) -> None:
    kinds = {"user": pa.string(), "path": pa.list_(pa.int8()), "n": pa.int64()}
    view = a_view(tmp_path, a_schema(kinds, "user", "path", routed_by=("user",)))
    view.put([{"user": "ada", "path": [i], "n": i} for i in range(5)])
    view.put([{"user": "ada", "path": [3], "n": 30}])
    keys = [{"user": "ada", "path": [i]} for i in range(5)]
    assert view.get(keys).rows["n"].to_pylist() == [0, 1, 2, 30, 4]
    with pytest.raises(SchemaError, match=r"no order within a key of user.*path: list"):
        view.get_all(["ada"])


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "2"])
def test_a_limit_that_is_no_number_of_rows_is_refused(tmp_path: Path, limit: Any) -> None:
    with pytest.raises(UserError, match="1 or more"):
        a_view(tmp_path).get_all(["ada"], limit=limit)


def test_prefixes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    view = a_view(tmp_path)
    with pytest.raises(SchemaError, match=r"keys \(user\) were given to table 'table'"):
        view.get_all({"name": ["ada"]})
    with pytest.raises(SchemaError, match="'user'"):
        view.get_all(pa.record_batch({"user": [1]}))


def test_a_prefix_of_somebody_else_is_refused(tmp_path: Path) -> None:
    users = [f"user {n}" for n in range(20)]
    owners = owners_of(hash_keys([pa.array(users)]), 3).tolist()
    environment = an_environment(tmp_path, subtask=Subtask(0, 3))
    view = KeyedTable(SCHEMA.to_config(), environment, (), 0).view()
    mine = [user for user, owner in zip(users, owners, strict=True) if owner == 0]
    assert view.get_all(mine).rows.num_rows == 0
    with pytest.raises(StateError, match="does not belong to subtask 0 of 3"):
        view.get_all(users)


def test_a_released_view_is_not_used_again(tmp_path: Path) -> None:
    view = a_view(tmp_path)
    view.release()
    with pytest.raises(InternalError):
        view.get_all(["ada"])


def stored_keys(harness: KeyedHarness) -> list[tuple[int, Any]]:
    """Hash and rest of each row of the only file, as they lie there."""
    assert isinstance(harness.store, MemoryStore)
    (file,) = harness.files()
    rows = pq.read_table(pa.BufferReader(harness.store.read(file.path)))
    hashes: list[Any] = rows["_key_hash"].to_pylist()
    return list(zip(hashes, rows["at"].to_pylist(), strict=True))


def test_rows_of_one_prefix_lie_in_files_in_key_order(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path, SCHEMA)
    batch = pa.RecordBatch.from_pylist(
        [row for at in (3, -2, 9, 0) for row in rows_of("ada", at) + rows_of("bob", at)],
        SCHEMA.declared,
    )
    harness.put(batch.slice(0, 5))
    harness.put(batch.slice(5))
    harness.checkpoint()
    keys = stored_keys(harness)
    assert keys == sorted(keys)
    assert len(keys) == 8


def test_files_from_before_are_read_alike_and_put_in_order_when_merged(
    tmp_path: Path,
) -> None:
    harness = KeyedHarness(tmp_path, SCHEMA)
    for mark in ("", "!"):
        rows = rows_of("ada", *range(0, 40, 1 + len(mark)), mark=mark)
        harness.put(pa.RecordBatch.from_pylist(rows, SCHEMA.declared))
        harness.checkpoint(turned=True)
    harness.restore(1)
    before = values(harness.views[0], "ada")
    assert before == [[f"ada{at}" + "!" * (at % 2 == 0) for at in range(40)]]
    assert values(harness.views[0], "ada", limit=3) == [before[0][:3]]
    assert harness.compact() == 1
    keys = stored_keys(harness)
    assert keys == sorted(keys)
    assert values(harness.views[0], "ada") == before


def test_a_prefix_with_very_many_rows_costs_what_is_asked_of_it(tmp_path: Path) -> None:
    count = 200_000
    kinds = {"user": pa.int8(), "at": pa.int64(), "n": pa.int64()}
    schema = a_schema(kinds, "user", "at", routed_by=("user",))
    harness = KeyedHarness(tmp_path, schema)
    # A walk from row to row through the prefix, as in a true collision, would take hours.
    for first in (0, 1):
        at = pa.array(range(first, count, 1 + first), pa.int64())
        user = pa.array([1] * len(at), pa.int8())
        harness.put(pa.record_batch({"user": user, "at": at, "n": at}))
        harness.checkpoint()
    view = harness.views[0]
    keys = pa.record_batch({"user": pa.array([1] * 3, pa.int8()), "at": [5, 7, count]})
    assert view.get(keys).found.tolist() == [True, True, False]
    assert view.get_all([1], limit=2, last=True).rows["at"].to_pylist() == [
        count - 2,
        count - 1,
    ]
    assert view.get_all([1]).rows.num_rows == count
    assert harness.compact() == 1
    assert view.get_all([1], limit=1).rows["n"].to_pylist() == [0]
