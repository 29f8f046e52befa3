"""What an operator sees of a keyed table within and across epochs."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.ids import Subtask
from penstock.core.key_hash import hash_keys
from penstock.errors import ErrorCode, InternalError, SchemaError, StateError
from penstock.state.tables.keyed import KeyedTable
from penstock.state.tables.keyed_view import KeyedView
from tests.unit.state.tables.keyed_harness import (
    SIMPLE,
    KeyedHarness,
    a_schema,
    an_environment,
    rows_of,
)


def rows(*pairs: tuple[int | None, str | None]) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([key for key, _ in pairs], pa.int64()),
            pa.array([value for _, value in pairs], pa.string()),
        ],
        schema=SIMPLE.declared,
    )


def keys(*values: int | None) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(values, pa.int64())})


def values_of(view: KeyedView, *wanted: int | None) -> list[Any]:
    return view.get(keys(*wanted)).rows.column("value").to_pylist()


@pytest.fixture
def view(tmp_path: Path) -> KeyedView:
    return KeyedHarness(tmp_path).views[0]


def test_rows_come_back_in_the_order_of_the_probes_with_nulls_where_missing(
    view: KeyedView,
) -> None:
    view.put(rows((1, "a"), (2, "b"), (3, None)))
    answer = view.get(keys(3, 9, 1, 1, 2))
    assert answer.rows.to_pylist() == [
        {"key": 3, "value": None},
        {"key": None, "value": None},
        {"key": 1, "value": "a"},
        {"key": 1, "value": "a"},
        {"key": 2, "value": "b"},
    ]
    assert answer.found.tolist() == [True, False, True, True, True]


def test_an_empty_table_finds_nothing(view: KeyedView) -> None:
    answer = view.get(keys(1, 2))
    assert answer.found.tolist() == [False, False]
    assert answer.rows.num_rows == 2
    assert rows_of(view) == []


def test_no_probes_give_no_rows(view: KeyedView) -> None:
    view.put(rows((1, "a")))
    answer = view.get(keys())
    assert answer.rows.num_rows == 0
    assert answer.rows.schema.names == ["key", "value"]


def test_putting_and_deleting_nothing_changes_nothing(view: KeyedView) -> None:
    view.put(rows())
    view.delete(keys())
    assert rows_of(view) == []


def test_the_last_row_of_a_repeated_key_wins(view: KeyedView) -> None:
    view.put(rows((1, "first"), (2, "b"), (1, "last")))
    assert values_of(view, 1, 2) == ["last", "b"]
    assert len(rows_of(view)) == 2


def test_a_get_sees_the_puts_and_deletes_before_it(view: KeyedView) -> None:
    view.put(rows((1, "a"), (2, "b")))
    view.delete(keys(1))
    assert values_of(view, 1, 2) == [None, "b"]
    view.put(rows((1, "again")))
    assert values_of(view, 1, 2) == ["again", "b"]


def test_a_null_key_is_a_key(view: KeyedView) -> None:
    view.put(rows((None, "nothing"), (0, "zero")))
    answer = view.get(keys(None, 0))
    assert answer.rows.column("value").to_pylist() == ["nothing", "zero"]
    assert answer.found.all()


def test_columns_limit_what_is_fetched(view: KeyedView) -> None:
    view.put(rows((1, "a")))
    assert view.get(keys(1, 2), columns=["value"]).rows.to_pylist() == [
        {"value": "a"},
        {"value": None},
    ]
    nothing = view.get(keys(1, 2), columns=[])
    assert nothing.found.tolist() == [True, False]


def test_an_unknown_column_is_refused(view: KeyedView) -> None:
    with pytest.raises(SchemaError, match="no columns other"):
        view.get(keys(1), columns=["other"])


def test_probes_may_carry_other_columns(view: KeyedView) -> None:
    view.put(rows((1, "a")))
    probe = pa.record_batch({"other": ["x"], "key": [1], "value": ["ignored"]})
    assert view.get(probe).rows.to_pylist() == [{"key": 1, "value": "a"}]
    view.delete(probe)
    assert not view.get(probe).found.any()


def test_rows_must_have_exactly_the_declared_columns(view: KeyedView) -> None:
    with pytest.raises(SchemaError, match=r"missing \['value'\], unknown \['extra'\]"):
        view.put(pa.record_batch({"key": [1], "extra": [2]}))
    with pytest.raises(SchemaError, match="no single column 'key'"):
        view.get(pa.record_batch({"value": ["a"]}))


def test_a_column_of_another_type_is_refused(view: KeyedView) -> None:
    with pytest.raises(SchemaError, match="declared as int64 but the batch has string"):
        view.put(pa.record_batch({"key": ["1"], "value": ["a"]}))


def test_other_layouts_of_the_same_values_are_accepted(view: KeyedView) -> None:
    for value in (
        pa.array(["a"], pa.large_string()),
        pa.array(["a"], pa.string_view()),
        pa.array(["a"]).dictionary_encode(),
    ):
        batch = pa.RecordBatch.from_arrays([value, pa.array([1])], ["value", "key"])
        view.put(batch)
        assert view.get(keys(1)).rows.to_pylist() == [{"key": 1, "value": "a"}]


def test_nulls_in_a_column_without_nulls_are_refused(tmp_path: Path) -> None:
    schema = a_schema(
        {
            "key": pa.field("key", pa.int64(), nullable=False),
            "value": pa.field("value", pa.string(), nullable=False),
        },
        "key",
    )
    view = KeyedHarness(tmp_path, schema).views[0]
    with pytest.raises(SchemaError, match=r"'value' .* declared without nulls but 1 of 2"):
        view.put(pa.record_batch({"key": [1, 2], "value": ["a", None]}))
    view.put(pa.record_batch({"key": [1, 2], "value": ["a", "b"]}))
    view.delete(keys(1))
    assert view.get(keys(1, 2)).rows.column("value").to_pylist() == [None, "b"]
    (batch,) = view.scan()
    assert batch.schema.equals(schema.declared)


def test_a_key_of_another_subtask_is_refused_with_its_name(tmp_path: Path) -> None:
    environment = an_environment(tmp_path, subtask=Subtask(0, 2))
    view = KeyedTable.from_config(SIMPLE.to_config(), environment, (), 0).view()
    hashes = hash_keys([pa.array(range(100))])
    own = [key for key in range(100) if hashes[key] < 1 << 63]
    foreign = next(key for key in range(100) if hashes[key] >= 1 << 63)
    view.put(rows(*((key, "own") for key in own)))
    for action in (
        lambda: view.put(rows((own[0], "a"), (foreign, "b"))),
        lambda: view.get(keys(foreign)),
        lambda: view.delete(keys(foreign)),
    ):
        with pytest.raises(
            StateError, match=rf"key {{'key': {foreign}}} .* subtask 0 of 2"
        ):
            action()
    with pytest.raises(StateError) as raised:
        view.get(keys(foreign))
    assert raised.value.code is ErrorCode.KEY_OUT_OF_RANGE
    assert values_of(view, own[0]) == ["own"]


def test_scan_yields_each_live_key_once_in_order_of_hash(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    for start in range(0, 300, 100):
        harness.put(rows(*((key, f"{start}") for key in range(start, start + 150))))
        harness.checkpoint()
    harness.delete(keys(*range(50)))
    harness.put(rows((449, "new")))
    found = harness.scan()
    assert {row["key"] for row in found} == {*range(50, 350), 449}
    assert len(found) == 301
    hashes = hash_keys([pa.array([row["key"] for row in found])])
    assert (hashes[1:] >= hashes[:-1]).all()
    assert next(row for row in found if row["key"] == 120)["value"] == "100"


def test_a_scan_sees_only_what_was_written_before_it_started(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path, memory_budget_bytes=4_000)
    harness.put(rows(*((key, "x" * 50) for key in range(200))))
    scan = harness.views[0].scan()
    first = next(scan)
    harness.put(rows(*((key, "y" * 50) for key in range(300))))
    harness.checkpoint()
    found = [row for batch in (first, *scan) for row in batch.to_pylist()]
    assert len(found) == 200
    assert {row["value"] for row in found} == {"x" * 50}


def test_two_columns_form_one_key(tmp_path: Path) -> None:
    schema = a_schema({"a": pa.string(), "b": pa.int64(), "n": pa.int64()}, "b", "a")
    view = KeyedHarness(tmp_path, schema).views[0]
    view.put(pa.record_batch({"a": ["x", "x", "y"], "b": [1, 2, 1], "n": [10, 20, 30]}))
    probe = pa.record_batch({"b": [1, 1, 2, 2], "a": ["x", "y", "x", "y"]})
    assert view.get(probe).rows.column("n").to_pylist() == [10, 30, 20, None]


def test_a_table_without_key_columns_has_one_row(tmp_path: Path) -> None:
    view = KeyedHarness(tmp_path, a_schema({"n": pa.int64()})).views[0]
    view.put(pa.record_batch({"n": [1, 2]}))
    view.put(pa.record_batch({"n": [3]}))
    assert rows_of(view) == [{"n": 3}]
    assert view.get(pa.record_batch({"any": ["x", "y"]})).rows.to_pylist() == [
        {"n": 3},
        {"n": 3},
    ]


def test_keys_of_equal_hash_are_told_apart(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    # Made for the run of the suite with 8 bits of hash, where every hash has 20 keys.
    everyone = list(range(5_000))
    for part in np.array_split(np.random.default_rng(1).permutation(everyone), 7):
        harness.put(rows(*((int(key), f"v{key}") for key in part)))
        harness.checkpoint()
    assert [row and row["value"] for row in harness.get(keys(*everyone))] == [
        f"v{key}" for key in everyone
    ]
    assert harness.get(keys(-1, 5_000)) == [None, None]


def test_a_released_view_refuses_to_be_used(view: KeyedView) -> None:
    view.put(rows((1, "a")))
    view.release()
    for action in (
        lambda: view.get(keys(1)),
        lambda: view.put(rows((1, "a"))),
        lambda: view.delete(keys(1)),
        view.scan,
    ):
        with pytest.raises(InternalError, match="after it was released"):
            action()


def test_catching_up_over_own_writes_is_a_bug(view: KeyedView) -> None:
    view.put(rows((1, "a")))
    with pytest.raises(InternalError, match="catch up"):
        view.catch_up((), ())


def test_a_lagging_view_catches_up_with_deltas_and_swaps(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    for epoch in range(4):
        harness.put(rows((epoch, f"e{epoch}"), (100, f"e{epoch}")))
        harness.checkpoint()
    harness.catch_up()
    assert harness.get_lagging(keys(0, 100)) == harness.get(keys(0, 100))
    assert harness.compact() == 1
    harness.delete(keys(0))
    harness.checkpoint()
    harness.catch_up()
    assert harness.lagging[0].files == harness.files()
    assert harness.get_lagging(keys(0, 3, 100)) == [
        None,
        {"key": 3, "value": "e3"},
        {"key": 100, "value": "e3"},
    ]
