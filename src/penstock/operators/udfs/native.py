"""UDFs that are looked up while a graph is built: in native libraries, and in the registry.

A native Polars plug-in library is verified and its symbols are checked when the operator is
constructed, because a missing symbol would make Polars abort the process of the query.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from polars.plugins import register_plugin_function
from typing_extensions import override

from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.operators.dylibs import open_dylib
from penstock.operators.operator import ArrowOperator, SourceOperator
from penstock.operators.registry import Registry
from penstock.operators.secret_options import usable_options
from penstock.operators.udfs.functions import BatchUdf, conform_result
from penstock.operators.udfs.specs import CallUdfSpec, NativeUdfSpec, ResultSpec

_PREFIX = "_polars_plugin_"
_OFFERED = re.compile(rb"_polars_plugin_(\w+)\x00")


class NativeUdf(BatchUdf[NativeUdfSpec]):
    """Calls a function of a library, which it loads."""

    def __init__(self, registry: Registry, spec: NativeUdfSpec) -> None:
        super().__init__(spec)
        options = usable_options(spec.store_options)
        path = registry.load_dylib(spec.url, spec.sha256, options=options)
        check_symbols(spec, path)
        # Arguments go by position, so that the expression does not depend on column names.
        self._expression = register_plugin_function(
            plugin_path=path,
            function_name=spec.function,
            args=[pl.col(str(index)) for index in range(len(spec.inputs))],
            kwargs=dict(spec.arguments) or None,
            is_elementwise=True,
            use_abs_path=True,
        ).alias("result")

    @override
    def call(self, batch: pa.RecordBatch) -> Any:
        columns = [
            pl.Series(str(index), batch.column(name))
            for index, name in enumerate(self.config.inputs)
        ]
        return pl.DataFrame(columns).select(self._expression)["result"].to_arrow()

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Also refuse columns that the library does not take, and a result of another type."""
        output = super().output_schema(inputs)
        spec, schema = self.config, inputs[0].arrow
        nothing = [pa.nulls(0, type=field.type) for field in schema]
        rows = pa.RecordBatch.from_arrays(nothing, schema=schema)
        try:
            found = self.call(rows)
        except pl.exceptions.PolarsError as error:
            kinds = [f"{name}: {schema.field(name).type}" for name in spec.inputs]
            raise SchemaError(
                f"UDF {spec.name!r} does not take the columns {', '.join(kinds)}: {error}",
                udf=spec.name,
            ) from error
        conform_result(found, spec, "", rows)
        return output


def check_symbols(spec: NativeUdfSpec, path: Path) -> None:
    """Refuse a library that lacks the function, and name those that it has."""
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
    """Return the plug-in functions that a library's bytes name, for messages."""
    names = {name.decode() for name in _OFFERED.findall(library)}
    return sorted(name for name in names if f"field_{name}" in names)


def build_call_udf(
    registry: Registry, config: CallUdfSpec
) -> ArrowOperator | SourceOperator:
    """Return the operator that calls a function of the registry."""
    declared = registry.udf(config.udf)
    if not isinstance(declared, ResultSpec):
        raise UserError(
            f"UDF {config.udf!r} was added to the registry as {type(declared).__name__}: "
            "add what udf, async_udf or native_udf return",
            code=ErrorCode.UDF_INVALID,
            udf=config.udf,
        )
    inputs = declared.inputs if config.inputs is None else config.inputs
    output = config.output or declared.output
    replaces = declared.replaces or config.output is not None
    spec = replace(declared, inputs=inputs, output=output, replaces=replaces)
    return registry.construct(spec.to_operator_spec()).operator
