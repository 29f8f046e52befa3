"""Converts schemas between Spark and Arrow, in both directions.

| Spark | here |
|---|---|
| TIMESTAMP | an instant: a timestamp in UTC; one without a zone may be declared instead |
| TIMESTAMP_NTZ | a timestamp without a zone |
| the rest | as Spark itself maps it to Arrow |
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.core.batch import find_differences
from penstock.core.schema import StreamSchema
from penstock.errors import SchemaError, did_you_mean
from penstock.operators.frames import to_arrow_schema as arrow_schema_given

SchemaLike: TypeAlias = StreamSchema | pa.Schema | Mapping[str, Any] | StructType
"""What users give: the schema of a stream, of Arrow, of Polars, types by name, or a DataFrame's."""

_PLAIN = (
    *(pa.bool_(), pa.string(), pa.binary(), pa.date32()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
)
_SPARK_TYPES: dict[pa.DataType, pa.DataType] = {
    **{kind: kind for kind in _PLAIN},
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


def to_stream_schema(schema: SchemaLike) -> StreamSchema:
    """Return what users gave as the schema of a stream."""
    if isinstance(schema, StructType):
        schema = arrow_schema_of(schema)
    if isinstance(schema, StreamSchema):
        return schema
    return StreamSchema(arrow_schema_given(schema))


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which the rows of a DataFrame arrive."""
    try:
        found = to_arrow_schema(schema, timezone="UTC")
    except PySparkException as error:
        raise SchemaError(
            f"a DataFrame of {schema.simpleString()} cannot be read: {error}. Drop or cast the "
            "column that has no Arrow type"
        ) from error
    return pa.schema([pa.field(f.name, f.type, f.nullable) for f in found])


def find_frame_problems(frame: StructType, declared: pa.Schema) -> list[str]:
    """Return why the declared columns of a DataFrame cannot be read; others do not count.

    Nulls are checked row by row, because Spark declares nearly all columns as nullable.
    """
    names, asked = set(frame.names), set(declared.names)
    missing = [
        f"column {field.name!r} is missing{did_you_mean(field.name, names)}"
        for field in declared
        if field.name not in names
    ]
    wanted = [field for field in frame.fields if field.name in asked]
    given = pa.schema([field for field in declared if field.name in names])
    return missing + find_differences(arrow_schema_of(StructType(wanted)), given)


def spark_form_of(schema: pa.Schema) -> tuple[pa.Schema, StructType]:
    """Return the schema in which rows are given to Spark: Arrow's, and Spark's own."""
    problems: list[str] = []
    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, _spark_type(field.type), field.nullable))
        except TypeError as error:
            problems.append(f"column {field.name!r} is {field.type}: {error}")
    if problems:
        raise SchemaError(
            "the rows cannot become a DataFrame:\n  " + "\n  ".join(problems),
            problems=tuple(problems),
        )
    arrow = pa.schema(fields)
    return arrow, from_arrow_schema(arrow)


def _spark_type(kind: Any) -> pa.DataType:
    """Return the type of Spark's that holds the same values; raise TypeError if none does."""
    types = pa.types
    if kind in _SPARK_TYPES:
        return _SPARK_TYPES[kind]
    if types.is_timestamp(kind) or types.is_duration(kind):
        if kind.unit == "ns":
            raise TypeError("Spark counts microseconds; cast it")
        if types.is_duration(kind):
            return pa.duration("us")
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_decimal(kind) and kind.precision <= pa.decimal128(38).precision:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_dictionary(kind):
        return _spark_type(kind.value_type)
    return pa.binary() if types.is_fixed_size_binary(kind) else _spark_container(kind)


def _spark_container(kind: Any) -> pa.DataType:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = kind.value_field
        return pa.list_(pa.field(item.name, _spark_type(item.type), item.nullable))
    if types.is_struct(kind):
        return pa.struct(
            [pa.field(part.name, _spark_type(part.type), part.nullable) for part in kind]
        )
    if types.is_map(kind):
        return pa.map_(_spark_type(kind.key_type), _spark_type(kind.item_type))
    raise TypeError("Spark has no such type; cast it or leave it out")
