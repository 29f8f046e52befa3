"""Other memory layouts of the same values: accepted for each other, stored in plain ones."""

from typing import Any

import pyarrow as pa
import pytest

from penstock.core.arrow_types import have_same_values, relay, stored_type

CODES: Any = pa.dictionary(pa.int8(), pa.string())
CODED: Any = pa.struct([("code", CODES), ("n", pa.int64())])
SAME: list[tuple[Any, Any]] = [
    (pa.string(), pa.large_string()),
    (pa.string_view(), pa.large_string()),
    (pa.binary_view(), pa.large_binary()),
    (CODES, pa.string()),
    (pa.list_(CODES), pa.list_(pa.string())),
    (pa.run_end_encoded(pa.int32(), pa.string()), pa.string()),
    (CODED, pa.struct([("code", pa.string()), ("n", pa.int64())])),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=str)
def test_layouts_of_the_same_values_stand_for_each_other(one: Any, other: Any) -> None:
    assert have_same_values(one, other)
    assert have_same_values(stored_type(one), one)


def test_other_values_are_other_types() -> None:
    assert not have_same_values(pa.int64(), pa.int32())
    assert not have_same_values(pa.string(), pa.binary())
    assert not have_same_values(CODED, pa.struct([("code", CODES)]))
    assert not have_same_values(pa.list_(pa.int8()), pa.list_(pa.int16()))


HIDDEN: list[tuple[Any, list[Any]]] = [
    (CODED, [None]),
    (CODED, [None, {"code": None, "n": 1}, None]),
    (pa.struct([("inner", CODED)]), [{"inner": None}, None]),
    (pa.list_(CODED), [[None], None, []]),
    (pa.large_list(CODED), [[None, None], [None]]),
    (pa.list_(CODED, 2), [[None, None], None]),
    (pa.map_(pa.string(), CODED), [[("a", None)], []]),
]


@pytest.mark.parametrize(("data_type", "values"), HIDDEN, ids=str)
def test_nothing_below_a_null_is_looked_at(data_type: Any, values: list[Any]) -> None:
    """Where all structs are null Arrow builds a dictionary without the value they point to."""
    array = pa.array(values, data_type)
    for given in (array, array.slice(0, 1), array.slice(len(values) - 1)):
        stored = relay(given, stored_type(data_type))
        stored.validate(full=True)
        assert stored.to_pylist() == given.to_pylist()
        back = relay(stored, data_type)
        assert back.type.equals(data_type)
        assert back.to_pylist() == given.to_pylist()
