"""The operator kinds of user-defined functions, and what is checked when one is constructed.

Native Polars plug-in libraries: verified, their symbols checked, then called as expressions.

Everything that can be wrong with a library is found when the operator is constructed. Polars
itself would abort the process of a query that names a missing symbol.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from polars.plugins import register_plugin_function
from typing_extensions import override

from penstock.core.clock import SystemClock
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.operators.dylibs import open_dylib
from penstock.operators.registry import ConstructedOperator, OperatorConstructor, Registry
from penstock.operators.udfs.async_operator import AsyncUdfOperator
from penstock.operators.udfs.functions import (
    Evaluate,
    UdfOperator,
    arrow_call,
    conform_result,
    evaluate_columns,
    evaluate_rows,
    polars_call,
)
from penstock.operators.udfs.specs import (
    AsyncUdfSpec,
    CallUdfSpec,
    NativeUdfSpec,
    ResultSpec,
    UdfSpec,
)
from penstock.operators.user_functions import unpickle_function

_PREFIX = "_polars_plugin_"
_OFFERED = re.compile(rb"_polars_plugin_(\w+)\x00")


class NativeFunction:
    """A function of a loaded library, ready to be called. Immutable."""

    def __init__(self, spec: NativeUdfSpec, path: Path) -> None:
        check_symbols(spec, path)
        self._spec = spec
        # By position: the expression must not depend on what a stream calls its columns.
        self._expression = register_plugin_function(
            plugin_path=path,
            function_name=spec.function,
            args=[pl.col(str(index)) for index in range(len(spec.inputs))],
            kwargs=dict(spec.arguments) or None,
            is_elementwise=True,
            use_abs_path=True,
        ).alias("result")

    def call(self, batch: pa.RecordBatch) -> Any:
        """Call it with the columns of some rows."""
        return self._columns_of(batch).select(self._expression)["result"].to_arrow()

    def check_types(self, stream: StreamSchema) -> None:
        """Refuse columns that the library does not take, and a result of another type."""
        empty = stream.schema.empty_table().combine_chunks()
        rows = pa.RecordBatch.from_arrays(
            [pa.nulls(0, type=field.type) for field in empty.schema], schema=empty.schema
        )
        spec = self._spec
        try:
            found = self.call(rows)
        except pl.exceptions.PolarsError as error:
            kinds = [f"{name}: {stream.schema.field(name).type}" for name in spec.inputs]
            raise SchemaError(
                f"UDF {spec.name!r} does not take the columns {', '.join(kinds)}: {error}",
                udf=spec.name,
            ) from error
        conform_result(found, spec, "", rows)

    def _columns_of(self, batch: pa.RecordBatch) -> pl.DataFrame:
        return pl.DataFrame(
            [
                pl.Series(str(index), batch.column(name))
                for index, name in enumerate(self._spec.inputs)
            ]
        )


def check_symbols(spec: NativeUdfSpec, path: Path) -> None:
    """Refuse a library that lacks the function, and say which ones it has."""
    library = open_dylib(path)
    needed = (f"{_PREFIX}{spec.function}", f"{_PREFIX}field_{spec.function}")
    missing = [symbol for symbol in needed if not hasattr(library, symbol)]
    if not missing:
        return
    offered = find_functions(path.read_bytes())
    raise UserError(
        f"the library {spec.url} has no Polars plug-in function {spec.function!r}: it lacks "
        f"the symbol {missing[0]}. It offers: {', '.join(offered) or 'none'}",
        code=ErrorCode.MISSING_SYMBOL,
        url=spec.url,
        function=spec.function,
    )


def find_functions(library: bytes) -> list[str]:
    """Return the plug-in functions a library's bytes speak of; for messages."""
    names = {name.decode() for name in _OFFERED.findall(library)}
    return sorted(name for name in names if f"field_{name}" in names)


def register_udfs(registry: Registry) -> None:
    """Add the kinds of this package."""
    registry.add(UdfSpec.kind, UdfConstructor())
    registry.add(AsyncUdfSpec.kind, AsyncUdfConstructor())
    registry.add(NativeUdfSpec.kind, NativeUdfConstructor())
    registry.add(CallUdfSpec.kind, CallUdfConstructor())


class UdfConstructor(OperatorConstructor[UdfSpec]):
    """Builds operators that call Python functions in line."""

    config_type = UdfSpec

    @override
    def with_config(self, config: UdfSpec, registry: Registry) -> ConstructedOperator:
        function = unpickle_function(config.function)
        problems = _find_call_problems(function, config)
        if _is_async(function):
            problems.append("it is async: declare it with async_udf")
        _refuse(config, problems)
        return ConstructedOperator(UdfOperator(config, _evaluate(function, config)))


class AsyncUdfConstructor(OperatorConstructor[AsyncUdfSpec]):
    """Builds operators that call `async def` functions."""

    config_type = AsyncUdfSpec

    @override
    def with_config(self, config: AsyncUdfSpec, registry: Registry) -> ConstructedOperator:
        function = unpickle_function(config.function)
        problems = _find_call_problems(function, config)
        if not problems and not _is_async(function):
            problems.append("it is not async: declare it with udf, or make it `async def`")
        _refuse(config, problems)
        return ConstructedOperator(AsyncUdfOperator(config, function, SystemClock()))


class NativeUdfConstructor(OperatorConstructor[NativeUdfSpec]):
    """Builds operators that call native libraries."""

    config_type = NativeUdfSpec

    @override
    def with_config(self, config: NativeUdfSpec, registry: Registry) -> ConstructedOperator:
        path = registry.load_dylib(config.url, config.sha256, options=config.store_options)
        function = NativeFunction(config, path)
        evaluate = partial(evaluate_columns, function.call, config)
        return ConstructedOperator(UdfOperator(config, evaluate, function.check_types))


class CallUdfConstructor(OperatorConstructor[CallUdfSpec]):
    """Builds operators that call a function of the registry."""

    config_type = CallUdfSpec

    @override
    def with_config(self, config: CallUdfSpec, registry: Registry) -> ConstructedOperator:
        declared = registry.udf(config.udf)
        if not isinstance(declared, ResultSpec):
            raise UserError(
                f"UDF {config.udf!r} was added to the registry as {type(declared).__name__}: "
                "add what udf, async_udf or native_udf return",
                code=ErrorCode.UDF_INVALID,
                udf=config.udf,
            )
        spec = replace(
            declared,
            inputs=declared.inputs if config.inputs is None else config.inputs,
            output=config.output or declared.output,
        )
        return registry.construct(spec.to_operator_spec())


def _evaluate(function: Callable[..., Any], spec: UdfSpec) -> Evaluate:
    if spec.mode == "row":
        return partial(evaluate_rows, function, spec)
    to_call = arrow_call if spec.mode == "arrow" else polars_call
    return partial(evaluate_columns, to_call(function, spec.inputs), spec)


def _find_call_problems(function: Any, spec: ResultSpec) -> list[str]:
    if not callable(function):
        return [f"it is a {type(function).__name__}, which cannot be called"]
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # built-in functions do not all tell
        return []
    try:
        signature.bind(*spec.inputs)
    except TypeError as error:
        columns = ", ".join(spec.inputs)
        return [f"it takes {signature} and cannot be called with {columns}: {error}"]
    return []


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (it is known to be callable)
    )


def _refuse(spec: ResultSpec, problems: list[str]) -> None:
    if problems:
        raise UserError(
            f"UDF {spec.name!r} cannot be used: {'; '.join(problems)}",
            code=ErrorCode.UDF_INVALID,
            udf=spec.name,
        )
