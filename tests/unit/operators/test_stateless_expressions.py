from typing import Any

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pytest

from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.expressions import filter_spec, select_spec, with_columns_spec
from tests.builders.chain_rig import an_operator, run_stateless

BATCH = pa.RecordBatch.from_arrays(
    [
        pa.array([1, 2, None, 4]),
        pa.array(["a", "b", "c", None]),
        pa.array([1, 2, 3, 4]).cast(pa.timestamp("s")),
        pa.array([None] * 4, pa.month_day_nano_interval()),
    ],
    names=["n", "name", "ts", "odd"],
)
STREAM = StreamSchema(BATCH.schema, "ts", ("name",))
n, name, ts = pl.col("n"), pl.col("name"), pl.col("ts")


def output_of(spec: OperatorSpec) -> StreamSchema:
    output = an_operator(spec).output_schema((STREAM,))
    assert output is not None
    return output


def column_of(spec: OperatorSpec, column: str) -> list[object]:
    emitted = run_stateless(spec, STREAM, BATCH)
    return [row[column] for row in emitted.rows()]


def test_a_filter_keeps_rows_whose_predicate_is_true_and_not_null() -> None:
    assert column_of(filter_spec(n > 1), "n") == [2, 4]


def test_a_filter_passes_on_the_exact_schema_with_columns_polars_does_not_know() -> None:
    emitted = run_stateless(filter_spec(name.is_in(["a", "c"])), STREAM, BATCH)

    assert emitted.batches()[0].schema.equals(BATCH.schema)
    assert emitted.batches()[0].equals(BATCH.take(pa.array([0, 2])))
    assert output_of(filter_spec(n > 1)) == STREAM


def test_a_filter_that_keeps_nothing_emits_nothing() -> None:
    assert run_stateless(filter_spec(n > 100), STREAM, BATCH).batches() == []


@pytest.mark.parametrize(
    ("constant", "expected"), [(True, 4), (False, 0), (None, 0)], ids=str
)
def test_a_filter_by_a_constant_keeps_all_or_nothing(
    constant: bool | None, expected: int
) -> None:
    spec = filter_spec(pl.lit(constant, dtype=pl.Boolean))

    assert len(run_stateless(spec, STREAM, BATCH).rows()) == expected


def test_a_filter_may_use_selectors() -> None:
    spec = filter_spec(pl.all_horizontal(cs.numeric() > 1))

    assert column_of(spec, "n") == [2, 4]


def test_a_predicate_that_is_not_boolean_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"gives: n Int64"):
        output_of(filter_spec(n + 1))


def test_a_predicate_of_several_values_is_refused() -> None:
    with pytest.raises(SchemaError, match="all_horizontal"):
        output_of(filter_spec(pl.col("n", "ts").is_null()))


def test_select_gives_columns_in_order() -> None:
    spec = select_spec(ts, (n * 2).alias("double"), "n", pl.lit("x").alias("const"))
    emitted = run_stateless(spec, STREAM, BATCH)

    assert emitted.batches()[0].schema.names == ["ts", "double", "n", "const"]
    assert [row["double"] for row in emitted.rows()] == [2, 4, None, 8]
    assert [row["const"] for row in emitted.rows()] == ["x"] * 4


def test_the_derived_schema_is_exactly_that_of_the_emitted_batches() -> None:
    spec = select_spec(
        name.str.to_uppercase(),
        ts,
        name.cast(pl.Categorical).alias("category"),
        pl.struct("n", "name").alias("pair"),
        pl.concat_list("n", "n").alias("list"),
        name.cast(pl.Enum(["a", "b", "c"])).alias("enum"),
        pl.lit(None).alias("nothing"),
        ts.dt.date().alias("day"),
        (ts - ts).alias("span"),
        n.cast(pl.Decimal(10, 2)).alias("price"),
    )

    emitted = run_stateless(spec, STREAM, BATCH)

    assert emitted.batches()[0].schema.equals(output_of(spec).arrow)


def test_columns_that_are_only_selected_keep_their_layout() -> None:
    selected = output_of(select_spec(cs.temporal(), name, pl.col("odd"))).arrow

    assert selected == pa.schema([BATCH.schema.field(c) for c in ("ts", "name", "odd")])


def test_select_of_literals_alone_gives_as_many_rows_as_came() -> None:
    assert column_of(select_spec(pl.lit(7).alias("seven")), "seven") == [7] * 4


def test_selectors_by_position_count_the_columns_of_the_stream() -> None:
    last_first = select_spec(
        (pl.col("length") + 1).alias("x"), (cs.by_index(1) + 1).name.suffix("y")
    )
    fields: list[pa.Field[Any]] = [
        pa.field("odd", pa.month_day_nano_interval()),
        pa.field("second", pa.int64()),
        pa.field("length", pa.int64()),
    ]
    columns: list[Any] = [pa.nulls(1, fields[0].type), pa.array([10]), pa.array([20])]
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    emitted = run_stateless(last_first, StreamSchema(batch.schema), batch)

    assert emitted.rows() == [{"x": 21, "secondy": 11}]


def test_with_columns_replaces_in_place_and_appends() -> None:
    spec = with_columns_spec(n + 1, name.str.len_bytes().alias("length"))
    emitted = run_stateless(spec, STREAM, BATCH)

    assert emitted.batches()[0].schema.names == ["n", "name", "ts", "odd", "length"]
    assert [row["n"] for row in emitted.rows()] == [2, 3, None, 5]
    assert emitted.batches()[0].schema.equals(output_of(spec).arrow)


def test_expressions_of_one_with_columns_see_the_input_not_each_other() -> None:
    spec = with_columns_spec(n + 1, (n * 10).alias("tens"))

    assert column_of(spec, "tens") == [10, 20, None, 40]


def test_time_and_key_keep_their_role_while_their_columns_survive() -> None:
    kept = output_of(select_spec(ts, name))
    dropped = output_of(select_spec(n))

    assert (kept.time_column, kept.key_columns) == ("ts", ("name",))
    assert (dropped.time_column, dropped.key_columns) == (None, ())


def test_a_time_column_that_is_no_timestamp_any_more_loses_its_role() -> None:
    assert output_of(with_columns_spec(ts.cast(pl.Int64))).time_column is None
    assert output_of(with_columns_spec(ts.dt.offset_by("1h"))).time_column == "ts"


def test_a_key_that_is_computed_anew_is_no_longer_the_key() -> None:
    assert output_of(with_columns_spec(name.str.to_uppercase())).key_columns == ()
    assert output_of(with_columns_spec(n + 1)).key_columns == ("name",)


def test_an_unknown_column_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match="did you mean 'name'") as caught:
        output_of(select_spec(pl.col("nmae").str.len_bytes()))

    assert caught.value.context["columns"] == ("nmae",)
    assert "there is no column 'nmae'" in caught.value.message


def test_a_wrong_type_is_refused_with_the_reason_polars_gives() -> None:
    with pytest.raises(UserError, match="arithmetic on dtypes") as caught:
        output_of(with_columns_spec(name + n))

    assert "Resolved plan" not in caught.value.message


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="duplicate"):
        output_of(select_spec(n, (n + 1)))


@pytest.mark.parametrize(
    "expression",
    [
        n.sum(),
        n > n.mean(),
        n.shift(),
        n.rank().over("name"),
        n.cum_sum(),
        n.sort(),
        pl.len(),
        pl.concat_list("n", "n").explode(),
        n.filter(n > 1),
        n.unique(),
        pl.lit(pl.Series([1, 2, 3, 4])),
        pl.int_range(pl.len()),
    ],
    ids=str,
)
def test_what_depends_on_other_rows_is_refused(expression: pl.Expr) -> None:
    with pytest.raises(UserError, match="row by row") as caught:
        output_of(with_columns_spec(expression.alias("x")))

    assert caught.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    "expression",
    [
        n.is_in(pl.Series([1, 2])),
        pl.when(n > 1).then(name).otherwise(pl.lit("x")),
        pl.concat_list("n", "n").list.sum(),
        pl.concat_list("n", "n").list.eval(pl.element() + 1),
        pl.format("{}-{}", n, name),
        ts.dt.truncate("1h"),
        name.replace({"a": "b"}),
    ],
    ids=str,
)
def test_what_depends_on_one_row_is_allowed(expression: pl.Expr) -> None:
    spec = with_columns_spec(expression.alias("x"))

    emitted = run_stateless(spec, STREAM, BATCH)

    assert emitted.batches()[0].schema.equals(output_of(spec).arrow)


@pytest.mark.parametrize(
    "odd",
    [
        pa.decimal256(50, 2),
        pa.struct([pa.field("x", pa.decimal256(50, 2))]),
        pa.list_view(pa.int8()),
        pa.dictionary(pa.int8(), pa.decimal128(10, 2)),
        pa.run_end_encoded(pa.int32(), pa.int8()),
    ],
    ids=str,
)
def test_columns_that_polars_cannot_read_are_passed_on(odd: pa.DataType) -> None:
    fields: list[pa.Field[Any]] = [pa.field("n", pa.int64()), pa.field("odd", odd)]
    stream = StreamSchema(pa.schema(fields))

    output = an_operator(with_columns_spec(n + 1)).output_schema((stream,))

    assert output == stream


def test_python_functions_in_expressions_are_allowed() -> None:
    spec = with_columns_spec(
        n.map_elements(lambda value: sum([value] * 3), return_dtype=pl.Int64).alias(
            "triple"
        )
    )

    assert column_of(spec, "triple") == [3, 6, None, 12]


def test_a_type_that_arrow_lacks_is_refused() -> None:
    with pytest.raises(SchemaError, match="cast it"):
        output_of(with_columns_spec(n.cast(pl.Int128)))


def test_a_result_does_not_depend_on_how_rows_are_cut_into_batches() -> None:
    spec = with_columns_spec((n * 2).alias("double"), pl.lit(1).alias("one"))
    pieces = [BATCH.slice(0, 1), BATCH.slice(1, 3)]

    whole = run_stateless(spec, STREAM, BATCH).rows()

    assert run_stateless(spec, STREAM, *pieces).rows() == whole


def test_an_expression_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(UserError, match="same Polars version"):
        an_operator(OperatorSpec("filter", {"predicate": b"nonsense"}))


@pytest.mark.parametrize("kind", ["select", "with_columns"])
def test_no_expression_at_all_is_refused(kind: str) -> None:
    with pytest.raises(UserError, match="at least one"):
        an_operator(OperatorSpec(kind, {"expressions": ()}))


def test_operators_show_their_expressions() -> None:
    assert str(an_operator(filter_spec(n > 1)).display()).startswith("filter(predicate=")
    assert 'col("n")' in str(an_operator(select_spec("n")).display())


def test_a_computed_column_with_a_nul_in_its_name_is_refused_without_a_panic() -> None:
    for spec in (
        select_spec(n.alias("a\0b")),
        with_columns_spec((n + 1).alias("a\0b")),
    ):
        with pytest.raises(SchemaError, match="holds a NUL"):
            output_of(spec)
