"""The operator kinds of user-defined functions, and what is checked when one is constructed."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.core.clock import SystemClock
from penstock.errors import ErrorCode, UserError
from penstock.operators.registry import ConstructedOperator, OperatorConstructor, Registry
from penstock.operators.udfs.async_operator import AsyncUdfOperator
from penstock.operators.udfs.evaluation import (
    arrow_call,
    evaluate_columns,
    evaluate_rows,
    polars_call,
)
from penstock.operators.udfs.native import NativeFunction
from penstock.operators.udfs.operator import Evaluate, UdfOperator
from penstock.operators.udfs.specs import (
    AsyncUdfSpec,
    CallUdfSpec,
    NativeUdfSpec,
    ResultSpec,
    UdfSpec,
)
from penstock.operators.user_functions import unpickle_function


def register_udfs(registry: Registry) -> None:
    """Add the kinds of this package."""
    registry.add(UdfSpec.kind, UdfConstructor())
    registry.add(AsyncUdfSpec.kind, AsyncUdfConstructor())
    registry.add(NativeUdfSpec.kind, NativeUdfConstructor())
    registry.add(CallUdfSpec.kind, CallUdfConstructor())


class UdfConstructor(OperatorConstructor[UdfSpec]):
    """Builds operators that call Python functions in line."""

    config_type = UdfSpec

    def with_config(self, config: UdfSpec, registry: Registry) -> ConstructedOperator:
        """Unpickle the function and check that it can be called so."""
        del registry
        function = unpickle_function(config.function)
        problems = _find_call_problems(function, config)
        if _is_async(function):
            problems.append("it is async: declare it with async_udf")
        _refuse(config, problems)
        return ConstructedOperator(UdfOperator(config, _evaluate(function, config)))


class AsyncUdfConstructor(OperatorConstructor[AsyncUdfSpec]):
    """Builds operators that call `async def` functions."""

    config_type = AsyncUdfSpec

    def with_config(self, config: AsyncUdfSpec, registry: Registry) -> ConstructedOperator:
        """Unpickle the function and check that it can be called so."""
        del registry
        function = unpickle_function(config.function)
        problems = _find_call_problems(function, config)
        if not problems and not _is_async(function):
            problems.append("it is not async: declare it with udf, or make it `async def`")
        _refuse(config, problems)
        return ConstructedOperator(AsyncUdfOperator(config, function, SystemClock()))


class NativeUdfConstructor(OperatorConstructor[NativeUdfSpec]):
    """Builds operators that call native libraries."""

    config_type = NativeUdfSpec

    def with_config(self, config: NativeUdfSpec, registry: Registry) -> ConstructedOperator:
        """Fetch and verify the library, and check that it has the function."""
        path = registry.load_dylib(config.url, config.sha256, options=config.store_options)
        function = NativeFunction(config, path)
        evaluate = partial(evaluate_columns, function.call, config)
        return ConstructedOperator(UdfOperator(config, evaluate, function.check_types))


class CallUdfConstructor(OperatorConstructor[CallUdfSpec]):
    """Builds operators that call a function of the registry."""

    config_type = CallUdfSpec

    def with_config(self, config: CallUdfSpec, registry: Registry) -> ConstructedOperator:
        """Look the function up and build it for these columns."""
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
