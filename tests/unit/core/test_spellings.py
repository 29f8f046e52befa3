"""An old spelling is answered by an error that names the new one, wherever it is written."""

import datetime as dt
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, cast

import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.spellings import check_choice, diverts_bad
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.testing import ManualClock, SourceHarness

ROWS = [{"n": 1, "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}]


def _read(**options: Any) -> pen.Stream:
    pipeline = pen.Pipeline("p")
    stream = pipeline.read("rows", pen.list_source(ROWS), **options)
    pipeline.graph()
    return stream


def _window(**options: Any) -> None:
    pipeline = pen.Pipeline("p")
    read = pipeline.read("rows", pen.list_source(ROWS), event_time="at")
    read.window("w", pen.tumbling("1s"), **options)
    pipeline.graph()


def _run(**options: Any) -> None:
    pen.Pipeline("p").run("memory:", **options)


def _attach(**options: Any) -> None:
    checkpoints: Any = {"checkpoint": "c", "query_checkpoint": "q"}
    pen.Pipeline("p").attach({}, **checkpoints, **options)


def _udf(**options: Any) -> None:
    pen.udf(abs, returns=pa.int64(), inputs=["n"], **options)


def _async_udf(**options: Any) -> None:
    pen.async_udf(abs, returns=pa.int64(), inputs=["n"], **options)


@pytest.mark.parametrize(
    ("call", "old", "value", "new"),
    [
        (_read, "lateness", "5s", "watermark_delay"),
        (_window, "bad_times", "divert", "on_bad"),
        (_run, "shows_logs", True, "show_logs"),
        (_attach, "trigger", {"availableNow": True}, "query_trigger"),
        (_udf, "on_error", "bad", "on_bad"),
        (_async_udf, "on_error", "bad", "on_bad"),
        (_async_udf, "timeout_seconds", 1.0, "timeout"),
        (_async_udf, "retry_delay_seconds", 1.0, "retry_delay"),
        (_async_udf, "drain_seconds", 1.0, "drain"),
        (pen.StreamSchema, "schema", pa.schema([("n", pa.int64())]), "arrow"),
        (partial(SourceHarness, pen.impulse(count=1)), "lateness", "5s", "watermark_delay"),
        (ManualClock().advance, "micros", 5, "duration"),
    ],
)
def test_an_old_keyword_raises_an_error_that_names_the_new_one(
    call: Callable[..., Any], old: str, value: object, new: str
) -> None:
    with pytest.raises(UserError, match=f"no option '{old}': it is called '{new}'"):
        call(**{old: value})


@pytest.mark.parametrize("old", ["side", "bad"])
@pytest.mark.parametrize(
    "call", [lambda **options: pen.files("in/*.jsonl", **options), _udf, _window]
)
def test_an_old_way_with_bad_rows_raises_an_error_that_names_divert(
    call: Callable[..., Any], old: str
) -> None:
    with pytest.raises(UserError, match=f"'{old}', which is called 'divert'"):
        call(on_bad=old)


@pytest.mark.parametrize("wrong", [None, 1, "Fail", ["fail"]])
def test_what_is_no_choice_is_refused_with_all_choices(wrong: object) -> None:
    with pytest.raises(UserError, match="use 'fail' or 'divert'") as caught:
        diverts_bad(wrong, where="window 'w': ")
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert caught.value.message.startswith(f"window 'w': on_bad is {wrong!r}")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: pen.stdout(cast(Any, "tabel")), "form is 'tabel': use 'json' or 'table'"),
        (lambda: _udf(mode="pandas"), "mode is 'pandas': use 'row' or 'arrow' or 'polars'"),
        (lambda: _udf(nulls="keep"), "nulls is 'keep': use 'skip' or 'pass'"),
        (lambda: _async_udf(nulls="keep"), "nulls is 'keep': use 'skip' or 'pass'"),
    ],
)
def test_a_wrong_choice_is_refused_where_it_is_written(
    call: Callable[[], Any], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        call()


def test_a_choice_is_accepted_as_it_is_spelled() -> None:
    check_choice("mode", "row", ("row", "arrow"))
    assert not diverts_bad("fail")
    assert diverts_bad("divert")


def test_the_columns_of_a_stream_schema_are_called_arrow() -> None:
    stream = _read().schema
    assert stream.arrow.names == ["n", "at"]
    assert not hasattr(stream, "schema")
    with pytest.raises(AttributeError, match="has no attribute 'schema': its columns are"):
        getattr(stream, "schema")  # noqa: B009 (a checker would refuse the attribute)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("ArrowOperator", "penstock.operators"),
        ("keyed_table", "penstock.operators"),
        ("OperatorHarness", "penstock.testing"),
    ],
)
def test_a_name_that_is_elsewhere_is_answered_with_its_place(name: str, place: str) -> None:
    with pytest.raises(AttributeError, match=f"'{name}': import it from {place}"):
        getattr(pen, name)
    assert not hasattr(pen, name)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("keyed_table", "penstock.operators"),
        ("OperatorHarness", "penstock.testing"),
        ("FencedError", "penstock.errors"),
    ],
)
def test_an_import_of_a_name_that_is_elsewhere_is_answered_with_its_place(
    name: str, place: str
) -> None:
    with pytest.raises(
        ImportError, match=f"'{name}' from 'penstock': import it from {place}"
    ):
        exec(f"from penstock import {name}", {})  # noqa: S102 (names that no import statement here may have)
    assert not hasattr(pen, name)


def test_a_schema_of_another_library_is_refused_with_what_to_give() -> None:
    other: Any = {"n": int}
    with pytest.raises(SchemaError, match=r"\{'n': <class 'int'>\} is no pyarrow.Schema"):
        pen.StreamSchema(other)


def test_a_name_that_exists_nowhere_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match=r"penstock has no attribute 'nothing'$"):
        getattr(pen, "nothing")  # noqa: B009 (a checker would refuse the attribute)


@pytest.mark.parametrize("package", ["penstock", "penstock.operators", "penstock.testing"])
def test_every_public_name_can_be_imported_and_is_listed(package: str) -> None:
    module = import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert set(dir(module)) <= set(module.__all__)
