"""Every method of a view takes rows, keys and instants in all usual forms, or says what to give."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # it has no stubs here
import polars as pl
import pyarrow as pa
import pytest

from penstock.core.ids import Epoch
from penstock.core.watermark import EventTime
from penstock.errors import SchemaError, StateError
from penstock.state.tables.table import Frontier
from penstock.state.tables.table_manager import TableManager
from tests.unit.state.tables.manager_builders import ROWS, a_manager
from tests.unit.state.tables.table_builders import an_environment

KEYS = ["a", "b"]
BATCH = pa.RecordBatch.from_pydict({"key": KEYS, "value": [1, 2], "time": [10, 20]}, ROWS)
WHEN = [datetime.fromtimestamp(second, UTC).replace(tzinfo=None) for second in (1, 2)]

GIVEN_ROWS: dict[str, Any] = {
    "record batch": BATCH,
    "table": pa.table(BATCH),
    "table of chunks": pa.Table.from_batches([BATCH.slice(0, 1), BATCH.slice(1)]),
    "large strings in another order": pa.table(
        {
            "time": BATCH.column("time"),
            "key": pa.array(KEYS, pa.large_string()),
            "value": pa.array([1, 2]),
        }
    ),
    "polars": pl.DataFrame(BATCH),
    "pandas": pd.DataFrame(
        {"key": KEYS, "value": [1, 2], "time": np.array([10, 20], "datetime64[us]")}
    ),
    "lists": {"key": KEYS, "value": [1, 2], "time": [10, 20]},
    "numpy": {
        "key": np.array(KEYS),
        "value": np.array([1, 2], np.int32),
        "time": np.array([10, 20], "datetime64[us]"),
    },
    "arrays": {
        "key": pa.array(KEYS),
        "value": pl.Series([1, 2]),
        "time": pa.chunked_array([[10], [20]], pa.timestamp("us")),
    },
    "dictionaries": BATCH.to_pylist(),
}
GIVEN_KEYS: dict[str, Any] = {
    **GIVEN_ROWS,
    "list of keys": KEYS,
    "tuple of keys": tuple(KEYS),
    "numpy keys": np.array(KEYS),
    "array of keys": pa.array(KEYS),
    "chunked keys": pa.chunked_array([["a"], ["b"]]),
    "series of keys": pl.Series(KEYS),
    "pandas keys": pd.Series(KEYS),
    "only keys": {"key": KEYS},
}
by_rows = pytest.mark.parametrize("rows", GIVEN_ROWS.values(), ids=GIVEN_ROWS)
by_keys = pytest.mark.parametrize("keys", GIVEN_KEYS.values(), ids=GIVEN_KEYS)


def written(manager: TableManager) -> TableManager:
    manager.get_keyed_state("totals").put(BATCH)
    manager.get_time_keyed_state("panes").insert(BATCH, None)
    return manager


@by_rows
def test_a_keyed_table_takes_rows_in_every_form(rows: Any) -> None:
    view = a_manager().get_keyed_state("totals")
    view.put(rows)
    assert view.get(BATCH).rows.to_pylist() == BATCH.to_pylist()


@by_rows
def test_a_time_keyed_table_takes_rows_in_every_form(rows: Any) -> None:
    manager = a_manager()
    manager.get_time_keyed_state("panes").insert(rows, None)
    manager.get_key_time_state("panes").insert(rows, None)
    found = manager.get_time_keyed_state("panes").rows()
    assert found.to_pylist() == [*BATCH.to_pylist(), *BATCH.to_pylist()]


@by_keys
def test_keys_are_looked_up_and_deleted_in_every_form(keys: Any) -> None:
    manager = written(a_manager())
    totals = manager.get_keyed_state("totals")
    assert totals.get(keys).rows.to_pylist() == BATCH.to_pylist()
    assert totals.get(keys, columns="value").rows.to_pylist() == [
        {"value": 1},
        {"value": 2},
    ]
    grouped = manager.get_key_time_state("panes").get(keys)
    assert grouped.rows.to_pylist() == BATCH.to_pylist()
    assert grouped.offsets.tolist() == [0, 1, 2]
    totals.delete(keys)
    assert not totals.get(keys).found.any()


GIVEN_INSTANTS: dict[str, Any] = {
    "list": [1_000_000, 2_000_000],
    "list of datetimes": WHEN,
    "numpy": np.array([1_000_000, 2_000_000]),
    "numpy datetimes": np.array([1, 2], "datetime64[s]"),
    "int64": pa.array([1_000_000, 2_000_000]),
    "int32": pa.array([1_000_000, 2_000_000], pa.int32()),
    "timestamps": pa.array([1, 2], pa.timestamp("s")),
    "zoned": pa.array([1_000, 2_000], pa.timestamp("ms", "Europe/Berlin")),
    "nanoseconds": pa.array([999_999_001, 2_000_000_000], pa.timestamp("ns")),
    "chunked": pa.chunked_array([[1_000_000], [2_000_000]]),
    "chunked timestamps": pa.chunked_array([[1], [2]], pa.timestamp("s")),
    "polars": pl.Series([1_000_000, 2_000_000]),
    "polars datetimes": pl.Series(WHEN),
    "pandas": pd.Series(WHEN),
}


@pytest.mark.parametrize("instants", GIVEN_INSTANTS.values(), ids=GIVEN_INSTANTS)
def test_each_row_expires_at_its_own_instant_in_every_form(instants: Any) -> None:
    manager = a_manager()
    manager.get_time_keyed_state("panes").insert(BATCH, instants)
    restored = {0: manager.checkpoint(Epoch(1), Epoch(1), None).metadata}
    for watermark, live in ((999_999, KEYS), (1_000_000, ["b"]), (2_000_000, [])):
        manager.catch_up(manager.environment, restored)
        manager.begin_epoch(Frontier(watermark, 0))
        found = manager.get_time_keyed_state("panes").rows()
        assert found.column("key").to_pylist() == live


@pytest.mark.parametrize(
    "instant",
    [1_000_000, np.int64(1_000_000), EventTime(1_000_000), WHEN[0], pd.Timestamp(WHEN[0])],
    ids=lambda instant: type(instant).__name__,
)
def test_one_instant_is_for_all_rows_and_bounds_ranges(instant: Any) -> None:
    manager = written(a_manager())
    view = manager.get_time_keyed_state("panes")
    assert view.rows(None, instant).num_rows == 2
    assert view.rows(instant).num_rows == 0
    assert view.batches(instant) == []
    assert (view.min_time(), view.min_time(instant)) == (10, None)
    view.insert(BATCH, instant)
    manager.catch_up(
        an_environment(manager.environment.store, attempt=2),
        {0: manager.checkpoint(Epoch(1), Epoch(1), None).metadata},
    )
    manager.begin_epoch(Frontier(1_000_000, 0))
    assert view.rows().num_rows == 2


def test_rows_may_expire_never_one_by_one() -> None:
    manager = a_manager()
    manager.get_time_keyed_state("panes").insert(BATCH, [None, 5])
    manager.get_time_keyed_state("panes").insert(BATCH, [None, None])
    manager.get_time_keyed_state("panes").insert(BATCH, pa.array([None, WHEN[0]]))
    restored = {0: manager.checkpoint(Epoch(1), Epoch(1), None).metadata}
    manager.catch_up(manager.environment, restored)
    manager.begin_epoch(Frontier(10**15, 0))
    found = manager.get_time_keyed_state("panes").rows().column("key").to_pylist()
    assert found == ["a", "a", "b", "a"]


@pytest.mark.parametrize(
    ("instants", "hint"),
    [
        ("tomorrow", "str is no instant"),
        (1.5, "float is no instant"),
        (True, "bool is no instant"),
        (np.datetime64("NaT"), "NaT is no instant"),
        (pd.NaT, "NaT is no instant"),
        (1 << 63, "do not fit 64 bits"),
        ([1], "2 rows were given with 1 instants"),
        (["a", "b"], "the instants are of type string"),
        (np.array([1.5, 2.5]), "the instants are of type double"),
        (pa.array([True, False]), "the instants are of type bool"),
        ([1, WHEN[0]], "holds no instants"),
        (np.array([[1], [2]]), "ndarray holds no instants"),
        (pa.array([1, 1 << 63], pa.uint64()), "not in range"),
    ],
)
def test_what_is_no_expiry_is_refused_with_what_to_give(instants: Any, hint: str) -> None:
    view = a_manager().get_time_keyed_state("panes")
    for insert in (view.insert, view.by_key().insert):
        with pytest.raises(SchemaError, match="'panes' cannot expire so") as raised:
            insert(BATCH, instants)
        assert hint in raised.value.message
        assert "Give microseconds since 1970" in raised.value.message
    assert view.rows().num_rows == 0


@pytest.mark.parametrize(
    ("rows", "hint"),
    [
        (7, "got int"),
        ("a", "got str"),
        (None, "got NoneType"),
        ([1, 2], "got list of int"),
        (pa.array([1]), "got Int64Array"),
        ({"key": ["a"], "value": [1]}, "column 'time' is missing"),
        ({"key": ["a"], "value": ["x"], "time": [1]}, "column 'value' is no int64"),
        ({"key": ["a"], "value": [1, 2], "time": [1]}, "different lengths"),
        ({"key": "a", "value": [1], "time": [1]}, "is one value"),
        ([{"key": "a", "valu": 1, "time": 1}], "did you mean 'value'"),
    ],
)
def test_what_are_no_rows_is_refused_and_names_the_table(rows: Any, hint: str) -> None:
    manager = a_manager()
    totals, panes = (
        manager.get_keyed_state("totals"),
        manager.get_time_keyed_state("panes"),
    )
    uses: list[tuple[str, Callable[[], Any]]] = [
        ("totals", lambda: totals.put(rows)),
        ("panes", lambda: panes.insert(rows, None)),
    ]
    for table, use in uses:
        with pytest.raises(SchemaError, match=f"table '{table}'") as raised:
            use()
        assert hint in raised.value.message


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        (7, "got int"),
        ("a", "got str"),
        ([1.5], "column 'key' is no string"),
        (np.array([1, 2]), "column 'key' is no string"),
        (pa.array([1, 2]), "column 'key' is int64, expected string"),
        ({"value": [1]}, "column 'key' is missing"),
        (pl.DataFrame({"value": [1]}), "column 'key' is missing"),
        (pd.DataFrame({"value": [1]}), "column 'key' is missing"),
    ],
)
def test_what_are_no_keys_is_refused_and_names_the_table(keys: Any, hint: str) -> None:
    manager = a_manager()
    totals, panes = manager.get_keyed_state("totals"), manager.get_key_time_state("panes")
    for use in (totals.get, totals.delete, panes.get):
        with pytest.raises(SchemaError, match=r"'(totals|panes)'") as raised:
            use(keys)
        assert hint in raised.value.message


@pytest.mark.parametrize("bound", ["noon", 1.5, [1], np.array([1, 2])])
def test_what_is_no_instant_is_refused_as_a_bound(bound: Any) -> None:
    view = a_manager().get_time_keyed_state("panes")
    for use in (view.rows, view.batches, view.min_time):
        with pytest.raises(SchemaError, match=r"'panes'.*is no instant.*a datetime"):
            use(bound)


def test_a_value_that_msgpack_lacks_is_refused_and_named() -> None:
    view = a_manager().get_global_keyed_state("counts")
    uses: list[Callable[[], Any]] = [
        lambda: view.insert("a", np.int64(1)),
        lambda: view.insert(np.array(["a"]), 1),
        lambda: view.get(["a"]),
    ]
    for use in uses:
        with pytest.raises(StateError, match="table 'counts'"):
            use()
