"""Dictionary columns on their way between tasks: each batch takes along only the values it uses.

A slice keeps the dictionary of the whole, so ten pieces of a batch would carry it ten times.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def has_dictionaries(schema: pa.Schema) -> bool:
    """Tell whether any column, at any depth, is dictionary-encoded."""
    return any(_holds_dictionary(field.type) for field in schema)


def trim_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch without the values that its rows do not use, where that is worth it.

    Not inside of lists and structs: values there have no rows of the batch to go by.
    """
    if not any(pa.types.is_dictionary(field.type) for field in batch.schema):
        return batch
    columns = [_trimmed(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _trimmed(column: Any) -> Any:
    if not pa.types.is_dictionary(column.type):
        return column
    if column.dictionary.nbytes <= column.indices.nbytes:
        return column
    # Sorted: the order of an ordered dictionary's values is what they mean.
    used = pc.unique(column.indices).drop_null().sort()
    if len(used) == len(column.dictionary):
        return column
    indices = pc.index_in(column.indices, value_set=used).cast(column.type.index_type)
    values = column.dictionary.take(used)
    return pa.DictionaryArray.from_arrays(indices, values, ordered=column.type.ordered)


def _holds_dictionary(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(
        _holds_dictionary(kind.field(index).type) for index in range(kind.num_fields)
    )
