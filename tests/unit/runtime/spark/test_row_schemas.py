"""Schemas between Spark and Arrow: what fits, what is refused, and that all of it is named."""

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    CalendarIntervalType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.core.schema import StreamSchema
from penstock.errors import SchemaError
from penstock.runtime.spark.row_schemas import (
    arrow_schema_of,
    find_frame_problems,
    spark_form_of,
    to_stream_schema,
)

FRAME = StructType(
    [
        StructField("item", LongType(), nullable=False),
        StructField("name", StringType()),
        StructField("at", TimestampType()),
        StructField("local", TimestampNTZType()),
    ]
)


def a_schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(columns)


def test_the_schema_of_a_frame_becomes_that_of_a_stream() -> None:
    expected = a_schema(
        item=pa.int64(),
        name=pa.string(),
        at=pa.timestamp("us", "UTC"),
        local=pa.timestamp("us"),
    )
    expected = expected.set(0, pa.field("item", pa.int64(), nullable=False))
    assert to_stream_schema(FRAME) == StreamSchema(expected)


def test_a_stream_or_arrow_schema_is_taken_as_it_is() -> None:
    schema = pa.schema([("item", pa.int64())])
    assert to_stream_schema(schema) == to_stream_schema(StreamSchema(schema))


def test_a_column_without_an_arrow_type_is_refused() -> None:
    with pytest.raises(SchemaError, match="cannot be read"):
        arrow_schema_of(StructType([StructField("span", CalendarIntervalType())]))


def test_other_columns_layouts_and_zones_are_no_problem() -> None:
    declared = a_schema(at=pa.timestamp("us"), name=pa.large_string())
    assert find_frame_problems(FRAME, declared) == []


def test_all_columns_that_do_not_fit_are_named() -> None:
    declared = a_schema(item=pa.int32(), nane=pa.string(), at=pa.timestamp("ns"))
    assert find_frame_problems(FRAME, declared) == [
        "column 'nane' is missing; did you mean 'name'?",
        "column 'item' is int64, expected int32",
        "column 'at' is timestamp[us, tz=UTC], expected timestamp[ns]",
    ]


@pytest.mark.parametrize(
    ("given", "arrow", "spark"),
    [
        (pa.uint32(), pa.int64(), "bigint"),
        (pa.large_string(), pa.string(), "string"),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), "string"),
        (pa.binary(4), pa.binary(), "binary"),
        (pa.date64(), pa.date32(), "date"),
        (pa.timestamp("ms"), pa.timestamp("us"), "timestamp_ntz"),
        (pa.timestamp("s", "Europe/Rome"), pa.timestamp("us", "UTC"), "timestamp"),
        (pa.duration("s"), pa.duration("us"), "interval day to second"),
        (pa.decimal128(20, 2), pa.decimal128(20, 2), "decimal(20,2)"),
        (pa.large_list(pa.uint8()), pa.list_(pa.int16()), "array<smallint>"),
        (
            pa.map_(pa.string(), pa.float32()),
            pa.map_(pa.string(), pa.float32()),
            "map<string,float>",
        ),
        (
            pa.struct([("a", pa.uint16())]),
            pa.struct([("a", pa.int32())]),
            "struct<a:int>",
        ),
    ],
)
def test_values_are_given_to_spark_in_a_type_that_holds_all_of_them(
    given: pa.DataType, arrow: pa.DataType, spark: str
) -> None:
    form, struct = spark_form_of(pa.schema([("column", given)]))
    assert form.field("column").type == arrow
    assert struct["column"].dataType.simpleString() == spark


def test_all_columns_that_spark_has_no_type_for_are_named() -> None:
    schema = pa.schema(
        [("big", pa.uint64()), ("fine", pa.timestamp("ns")), ("ok", pa.int64())]
    )
    with pytest.raises(SchemaError, match="cannot become a DataFrame") as raised:
        spark_form_of(schema)
    assert raised.value.context["problems"] == (
        "column 'big' is uint64: Spark has no such type; cast it or leave it out",
        "column 'fine' is timestamp[ns]: Spark counts microseconds; cast it",
    )
