"""Arrow layouts: which types hold the same values in another memory layout.

Pure. Libraries hand over text as string, large_string, string_view or dictionary as they
please; state accepts each for the other. Stored are only layouts that can be gathered row
by row and joined without limits: views as their large sibling, dictionaries as values.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

_Type: TypeAlias = Any
_Field: TypeAlias = Any


def stored_type(data_type: _Type) -> _Type:
    """Return the type that values of `data_type` are stored as: the same, in a plain layout."""
    if _is_encoded(data_type):
        return stored_type(data_type.value_type)
    if pa.types.is_string_view(data_type):
        return pa.large_string()
    if pa.types.is_binary_view(data_type):
        return pa.large_binary()
    return _rebuild(data_type, lambda part: part.with_type(stored_type(part.type)))


def relay(array: Any, data_type: _Type) -> Any:
    """Return the values of `array` in the layout of `data_type`, which must hold the same values."""
    if array.type.equals(data_type):
        return array
    if pa.types.is_run_end_encoded(array.type):
        return relay(pc.call_function("run_end_decode", [array]), data_type)
    if pa.types.is_dictionary(array.type):
        values = relay(array.dictionary, stored_type(array.type.value_type))
        plain = pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
        return relay(plain, data_type)
    if not pa.types.is_dictionary(data_type):
        return _cast(array, data_type)
    encoded = array.dictionary_encode()
    return pa.DictionaryArray.from_arrays(
        encoded.indices.cast(data_type.index_type),
        encoded.dictionary.cast(data_type.value_type),
        ordered=data_type.ordered,
    )


def _cast(array: Any, data_type: _Type) -> Any:
    try:
        return array.cast(data_type)
    except IndexError:
        # Below a null struct a dictionary may lack the value that its hidden slot points to.
        return _with_nulls_below(array).cast(data_type)


def _with_nulls_below(array: Any) -> Any:
    """Return the same values, with everything below a null struct null as well."""
    data_type = array.type
    if pa.types.is_struct(data_type):
        children = [_with_nulls_below(child) for child in array.flatten()]
        return pa.StructArray.from_arrays(
            children, fields=list(data_type), mask=array.is_null()
        )
    is_fixed = pa.types.is_fixed_size_list(data_type)
    if is_fixed or pa.types.is_nested(data_type):
        own_buffers = array.buffers()[: 1 if is_fixed else 2]
        return pa.Array.from_buffers(
            data_type,
            len(array),
            own_buffers,
            offset=array.offset,
            children=[_with_nulls_below(array.values)],
        )
    return array


def have_same_values(one: _Type, other: _Type) -> bool:
    """Tell whether both types hold the same values, so that a cast cannot change any."""
    return bool(_value_type(one).equals(_value_type(other)))


def _value_type(data_type: _Type) -> _Type:
    """Return one type for all layouts of the same values; names inside lists do not count."""
    if _is_encoded(data_type):
        return _value_type(data_type.value_type)
    if pa.types.is_string(data_type) or pa.types.is_string_view(data_type):
        return pa.large_string()
    if pa.types.is_binary(data_type) or pa.types.is_binary_view(data_type):
        return pa.large_binary()
    if pa.types.is_list(data_type):
        return _value_type(pa.large_list(data_type.value_field))
    is_struct = pa.types.is_struct(data_type)
    return _rebuild(
        data_type,
        lambda part: pa.field(part.name if is_struct else "item", _value_type(part.type)),
    )


def _is_encoded(data_type: _Type) -> bool:
    return pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type)


def _rebuild(data_type: _Type, change: Callable[[_Field], _Field]) -> _Type:
    """Return a nested type with each part changed, list views as lists; others as they are."""
    if pa.types.is_struct(data_type):
        return pa.struct([change(part) for part in data_type])
    if pa.types.is_map(data_type):
        key, item = change(data_type.key_field), change(data_type.item_field)
        return pa.map_(key.type, item, data_type.keys_sorted)
    if pa.types.is_list(data_type):
        return pa.list_(change(data_type.value_field))
    if pa.types.is_fixed_size_list(data_type):
        return pa.list_(change(data_type.value_field), data_type.list_size)
    if (
        pa.types.is_large_list(data_type)
        or pa.types.is_list_view(data_type)
        or pa.types.is_large_list_view(data_type)
    ):
        return pa.large_list(change(data_type.value_field))
    return data_type
