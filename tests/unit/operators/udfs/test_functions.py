from collections.abc import Callable
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.catalog import default_registry
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, ExternalError, SchemaError, UserCodeError, UserError
from penstock.graph.logical import BAD, OperatorSpec, UserFunction
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Registry
from penstock.operators.udfs.specs import ResultSpec, call_udf, udf
from penstock.testing import OperatorHarness
from tests.unit.operators.udfs.by_hand import EpochOutput, OperatorByHand

SCHEMA = pa.schema({"width": pa.int64(), "height": pa.int64()})
STREAM = StreamSchema(SCHEMA)


def _columns(**columns: Any) -> pa.Schema:
    return pa.schema(columns)


def _registry() -> Registry:
    return default_registry(load_plugins=False)


def _construct(spec: ResultSpec | OperatorSpec) -> ArrowOperator:
    operator_spec = spec if isinstance(spec, OperatorSpec) else spec.to_operator_spec()
    operator = _registry().construct(operator_spec).operator
    assert isinstance(operator, ArrowOperator)
    return operator


def _rows(*rows: tuple[int | None, int | None]) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array([row[0] for row in rows]), pa.array([row[1] for row in rows])],
        schema=SCHEMA,
    )


def _run(spec: ResultSpec, *rows: tuple[int | None, int | None]) -> EpochOutput:
    by_hand = OperatorByHand(lambda: _construct(spec), STREAM)
    return by_hand.run_epoch({0: [_rows(*rows)]})[0]


def _by_row(width: int, height: int) -> int:
    return width * height


def _by_arrow(width: Any, height: Any) -> Any:
    return pc.multiply(width, height)


def _by_polars(width: pl.Series, height: pl.Series) -> pl.Series:
    assert width.name == "width"
    return width * height


area: Callable[..., Any] = partial(
    udf, returns=pa.int64(), inputs=["width", "height"], output="area"
)
MODES = [("row", _by_row), ("arrow", _by_arrow), ("polars", _by_polars)]


@pytest.mark.parametrize(("mode", "function"), MODES)
def test_a_function_adds_a_column_in_every_mode(mode: str, function: Any) -> None:
    output = _run(area(function, mode=mode), (2, 3), (4, 5))
    assert output.main == [
        {"width": 2, "height": 3, "area": 6},
        {"width": 4, "height": 5, "area": 20},
    ]
    assert not output.bad


@pytest.mark.parametrize(("mode", "function"), MODES)
def test_nulls_give_nulls_in_every_mode(mode: str, function: Any) -> None:
    output = _run(area(function, mode=mode), (2, None), (None, None), (2, 2))
    assert [row["area"] for row in output.main] == [None, None, 4]


def test_a_function_that_wants_nulls_gets_them() -> None:
    spec = area(lambda width, height: 0 if height is None else 1, nulls="pass")
    assert [row["area"] for row in _run(spec, (1, None), (1, 1)).main] == [0, 1]


def test_keys_and_event_time_are_kept() -> None:
    keyed = StreamSchema(
        _columns(at=pa.timestamp("us"), user=pa.string(), n=pa.int64()),
        time_column="at",
        key_columns=("user",),
    )
    operator = _construct(udf(str, returns=pa.string(), inputs=["n"], name="text"))
    output = operator.output_schema([keyed])
    assert output is not None
    assert (output.time_column, output.key_columns) == ("at", ("user",))
    assert output.arrow.names == ["at", "user", "n", "text"]


def test_an_operator_shows_what_it_calls() -> None:
    assert str(_construct(area(_by_row)).display()) == (
        "udf(function=_by_row, inputs=width, height, output=area: int64, on_bad=fail)"
    )


# ---- results that are not what was declared


def test_a_row_result_of_another_type_is_shown_with_its_arguments() -> None:
    spec = area(lambda width, height: "big" if width > 1 else 1)
    with pytest.raises(UserError) as caught:
        _run(spec, (1, 1), (7, 8))
    assert caught.value.code is ErrorCode.UDF_INVALID
    message = caught.value.message
    assert "'big' of type str, which is no int64, when called with (7, 8)" in message
    assert "operator 'look-up'" in message


def test_a_result_of_another_type_fails_even_where_bad_rows_are_sent_aside() -> None:
    spec = area(lambda width, height: "big", on_bad="divert")
    with pytest.raises(UserError, match="is no int64"):
        _run(spec, (1, 1))


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (lambda w, h: w.slice(1), "1 values for 2 rows"),
        (lambda w, h: pc.cast(w, pa.float64()), "the type double instead of int64"),
        (lambda w, h: [1, 2], "a list instead of an array"),
    ],
)
def test_a_column_that_differs_from_the_declaration_is_refused(
    result: Any, problem: str
) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        _run(area(result, mode="arrow"), (1, 2), (3, 4))
    assert caught.value.code is ErrorCode.UDF_INVALID
    assert "{'width': 1, 'height': 2}" in caught.value.message


def test_a_polars_result_of_another_type_is_refused() -> None:
    with pytest.raises(UserError, match="the type double instead of int64"):
        _run(area(lambda w, h: w / h, mode="polars"), (1, 2))


def test_layouts_of_results_are_converted() -> None:
    spec = udf(
        lambda w: w.cast(pl.String),
        returns=pa.string(),
        inputs=["width"],
        name="text",
        mode="polars",
    )
    assert [row["text"] for row in _run(spec, (1, 2)).main] == ["1"]


def test_chunked_results_are_joined() -> None:
    spec = area(lambda w, h: pa.chunked_array([w.slice(0, 1), w.slice(1)]), mode="arrow")
    assert [row["area"] for row in _run(spec, (1, 2), (3, 4)).main] == [1, 3]


# ---- calls that raise


def test_a_row_that_raises_fails_with_its_arguments_and_the_traceback() -> None:
    spec = udf(
        lambda w, h: w // h, returns=pa.int64(), inputs=["width", "height"], name="ratio"
    )
    with pytest.raises(UserCodeError) as caught:
        _run(spec, (1, 1), (5, 0))
    assert "UDF 'ratio' of operator 'look-up' raised ZeroDivisionError" in str(caught.value)
    assert "called with (5, 0)" in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert any("Traceback" in note for note in caught.value.__notes__)


def test_a_batch_that_raises_fails_with_a_sample() -> None:
    with pytest.raises(UserCodeError, match=r"\{'width': 1, 'height': 0\}"):
        _run(area(pc.divide, mode="arrow"), (1, 0))


@pytest.mark.parametrize(
    ("mode", "function"),
    [("row", lambda w, h: w // h), ("arrow", pc.divide), ("polars", None)],
)
def test_rows_that_raise_are_sent_aside_with_the_reason(mode: str, function: Any) -> None:
    def by_polars(width: pl.Series, height: pl.Series) -> pl.Series:
        if (height == 0).any():
            raise ZeroDivisionError("divide by zero")
        return width // height

    spec = area(function or by_polars, mode=mode, on_bad="divert")
    output = _run(spec, (8, 2), (5, 0), (9, 3), (6, 0))
    assert [row["area"] for row in output.main] == [4, 3]
    assert [(row["width"], row["height"]) for row in output.bad] == [(5, 0), (6, 0)]
    assert all("zero" in row["error"] for row in output.bad)
    assert output.counters == {"bad_rows": 2}


def test_a_bad_row_whose_values_python_cannot_hold_is_sent_aside() -> None:
    def of_this_age(at: Any) -> Any:
        if at.cast(pa.int64()).to_numpy().any():
            raise ValueError("too late")
        return at.cast(pa.int64())

    year_10000 = 253_402_300_800_000_000
    schema = _columns(at=pa.timestamp("us"))
    times = pa.array([0, year_10000]).cast(pa.timestamp("us"))
    spec = udf(
        of_this_age, returns=pa.int64(), inputs=["at"], mode="arrow", on_bad="divert"
    )
    with OperatorHarness(spec.to_operator_spec(), StreamSchema(schema)) as operator:
        operator.push(pa.record_batch([times], schema=schema))
        operator.barrier()
        assert [row["of_this_age"] for row in operator.rows()] == [0]
        assert operator.table(BAD).column("error").to_pylist() == ["ValueError: too late"]


def test_a_batch_of_bad_rows_only_emits_nothing_else() -> None:
    output = _run(area(lambda w, h: w // h, on_bad="divert"), (1, 0))
    assert output.main == []
    assert output.bad == [
        {"width": 1, "height": 0, "error": output.bad[0]["error"]},
    ]


def test_an_external_error_fails_the_epoch_even_where_bad_rows_are_sent_aside() -> None:
    def call(width: int, height: int) -> int:
        raise ExternalError("the service is down")

    with pytest.raises(ExternalError, match="the service is down") as caught:
        _run(area(call, on_bad="divert"), (1, 2))
    assert "called with (1, 2)" in caught.value.__notes__[0]


@given(heights=st.lists(st.integers(0, 3), min_size=1, max_size=40))
@settings(deadline=None, max_examples=30)
def test_whole_columns_find_the_same_bad_rows_as_single_rows(heights: list[int]) -> None:
    rows = [(index, height) for index, height in enumerate(heights)]
    by_row = _run(area(lambda w, h: w // h, on_bad="divert"), *rows)
    by_column = _run(area(pc.divide, mode="arrow", on_bad="divert"), *rows)
    assert by_row.main == by_column.main
    assert [row["width"] for row in by_row.bad] == [row["width"] for row in by_column.bad]


# ---- refused before any data flows


def test_all_problems_with_the_input_are_reported_at_once() -> None:
    stream = StreamSchema(_columns(widht=pa.int64(), error=pa.string()))
    spec = udf(
        _by_row,
        returns=pa.int64(),
        inputs=["width", "height"],
        name="error",
        on_bad="divert",
    )
    with pytest.raises(SchemaError) as caught:
        _construct(spec).output_schema([stream])
    message = caught.value.message
    assert (
        "reads the column 'width', which its input lacks; did you mean 'widht'?" in message
    )
    assert "reads the column 'height'" in message
    assert "has a column 'error' already: name another output" in message
    assert "which the 'bad' output adds" in message


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"inputs": []}, "it has no inputs"),
        ({"returns": "int64"}, "give a pyarrow type"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(
    arguments: dict[str, Any], problem: str
) -> None:
    given = {"returns": pa.int64(), "inputs": ["width"], **arguments}
    with pytest.raises(UserError, match=problem) as caught:
        udf(_by_row, **given)
    assert caught.value.code is ErrorCode.UDF_INVALID


async def _async(width: int, height: int) -> int:
    return width * height


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda width: 1, r"takes \(width\) and cannot be called with width, height"),
        (_async, "it is async: declare it with async_udf"),
        (partial(_async, 1), "cannot be called"),
    ],
)
def test_a_function_that_cannot_be_called_so_is_refused(
    function: Any, problem: str
) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        _construct(area(function, name="area"))
    assert caught.value.code is ErrorCode.UDF_INVALID


def test_something_that_is_no_function_is_refused() -> None:
    not_callable: Any = 7
    with pytest.raises(UserError, match="it is a int, which cannot be called"):
        _construct(area(not_callable, name="area"))


def test_a_function_of_c_that_hides_its_signature_is_accepted() -> None:
    spec = udf(max, returns=pa.int64(), inputs=["width", "height"])
    assert [row["max"] for row in _run(spec, (1, 2)).main] == [2]


def test_an_unknown_mode_is_refused() -> None:
    spec = area(_by_row).to_operator_spec()
    with pytest.raises(UserError, match="'mode'") as caught:
        _construct(OperatorSpec(spec.kind, {**spec.config, "mode": "rows"}))
    assert caught.value.code is ErrorCode.INVALID_CONFIG


# ---- functions of the registry


def test_a_registered_function_is_called_by_name_on_other_columns() -> None:
    registry = _registry()
    registry.add_udf(udf(_by_row, returns=pa.int64(), inputs=["a", "b"], name="times"))

    def build() -> ArrowOperator:
        spec = call_udf("times", inputs=["width", "width"], output="square")
        operator = registry.construct(spec).operator
        assert isinstance(operator, ArrowOperator)
        return operator

    output = OperatorByHand(build, STREAM).run_epoch({0: [_rows((3, 1))]})[0]
    assert output.main == [{"width": 3, "height": 1, "square": 9}]


def test_a_registered_function_keeps_what_is_not_said_otherwise() -> None:
    registry = _registry()
    declared = udf(_by_row, returns=pa.int64(), inputs=["width", "height"], name="times")
    registry.add_udf(declared)
    shown = str(registry.construct(call_udf("times")).display())
    assert "inputs=width, height, output=times: int64" in shown


def test_an_unknown_function_is_named_with_the_closest() -> None:
    registry = _registry()
    registry.add_udf(udf(_by_row, returns=pa.int64(), inputs=["a", "b"], name="times"))
    with pytest.raises(UserError, match="did you mean 'times'"):
        registry.construct(call_udf("tims"))


def test_a_foreign_object_in_the_registry_is_refused() -> None:
    registry = _registry()
    registry.add_udf(UserFunction("raw", b""))
    with pytest.raises(UserError, match="added to the registry as UserFunction"):
        registry.construct(call_udf("raw"))
