"""Declarations of user-defined functions: the function, the columns it reads, and its result.

    area = udf(lambda w, h: w * h, returns=pa.int64(), inputs=["width", "height"])
    place = async_udf(look_up, returns=pa.string(), inputs=["ip"], max_concurrency=50)
    digest = native_udf("s3://libs/hash.so", sha256="…", function="sha2_256",
                        returns=pa.string(), inputs=["body"])

Declarations are frozen values; one that cannot work is refused. Each is also the config of its
operator kind, so `to_operator_spec` puts it into a graph. `call_udf` calls a function of the
registry by name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import pyarrow as pa
from typing_extensions import override

from penstock.core.clock import DurationLike, to_micros
from penstock.core.spellings import OnBad, check_choice, diverts_bad, renamed
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import OperatorSpec, UserFunction
from penstock.operators.frames import column_names
from penstock.operators.registry import OperatorConfig
from penstock.operators.secret_options import plain_options
from penstock.operators.user_functions import pickle_function

Mode: TypeAlias = Literal["row", "arrow", "polars"]
Nulls: TypeAlias = Literal["skip", "pass"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSpec(OperatorConfig):
    """What all declarations share: the columns that are read, and the one that is added."""

    name: str
    """The name of the function in messages, and for `call_udf`."""
    inputs: tuple[str, ...]
    """The columns passed to the function, in order."""
    output: str
    """The column that is added."""
    returns: bytes
    """The type of that column, as an Arrow schema of one field."""
    on_bad: OnBad = "fail"
    """Whether a call that raises fails the epoch, or sends its row to the `BAD` output."""
    replaces: bool = False
    """Whether a column of the name `output` is replaced: only if the user named it."""

    def __post_init__(self) -> None:
        problems = self.find_problems()
        if problems:
            raise UserError(
                f"UDF {self.name!r} cannot be used:\n  " + "\n  ".join(problems),
                code=ErrorCode.UDF_INVALID,
                udf=self.name,
            )

    def find_problems(self) -> list[str]:
        """Return everything that is wrong with the declaration by itself."""
        problems = []
        if not self.name:
            problems.append("it has no name: give it one")
        if not self.inputs:
            problems.append("it has no inputs: name at least one column")
        if not self.output:
            problems.append("its output column has no name: give it one")
        try:
            diverts_bad(self.on_bad)
        except UserError as error:
            problems.append(error.message)
        for option, choices in (("mode", get_args(Mode)), ("nulls", get_args(Nulls))):
            try:
                check_choice(option, getattr(self, option, choices[0]), choices)
            except UserError as error:
                problems.append(error.message)
        return problems

    @property
    def return_type(self) -> Any:
        """The type of the column that is added."""
        return pa.ipc.read_schema(pa.py_buffer(self.returns)).field(0).type

    @override
    def shown(self) -> Mapping[str, str]:
        return {
            "function": self.name,
            "inputs": ", ".join(self.inputs),
            "output": f"{self.output}: {self.return_type}",
            "on_bad": self.on_bad,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class UdfSpec(ResultSpec):
    """A Python function that is called within `process_batch`."""

    kind: ClassVar[str] = "udf"

    function: UserFunction
    mode: Mode = "row"
    """Called with one row's values, with Arrow arrays, or with Polars series."""
    nulls: Nulls = "skip"
    """In mode "row": whether a null among the arguments gives null without a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncUdfSpec(ResultSpec):
    """An `async def` function, many calls of which wait at the same time."""

    kind: ClassVar[str] = "async_udf"

    function: UserFunction
    nulls: Nulls = "skip"
    is_ordered: bool = True
    """Whether rows leave in the order they came, also across epochs."""
    max_concurrency: int = 100
    """How many calls a subtask has under way at a time."""
    timeout_micros: int = 30_000_000
    """How long one attempt may take."""
    retries: int = 0
    """How many further attempts follow one that raised or timed out."""
    retry_delay_micros: int = 100_000
    """The pause before the first of them; it doubles every time, up to ten seconds."""
    drain_micros: int = 1_000_000
    """How long the end of an epoch waits for answers. Calls without one are made again in the
    next epoch, which waits twice as long each time, up to the timeout of a call."""

    @override
    def find_problems(self) -> list[str]:
        problems = ResultSpec.find_problems(self)
        if self.max_concurrency < 1:
            problems.append(f"max_concurrency is {self.max_concurrency}: need at least 1")
        if self.timeout_micros < 1:
            problems.append("timeout is 0: need more than 0")
        if self.retries < 0:
            problems.append(f"retries is {self.retries}: it must not be negative")
        if self.drain_micros < 1:
            problems.append("drain is 0: need more than 0")
        return problems

    @override
    def shown(self) -> Mapping[str, str]:
        return {
            **ResultSpec.shown(self),
            "order": "as it came" if self.is_ordered else "any",
            "max_concurrency": str(self.max_concurrency),
            "timeout": f"{self.timeout_micros / 1_000_000:g} s",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeUdfSpec(ResultSpec):
    """A function of a native Polars plug-in library. It must work element by element."""

    kind: ClassVar[str] = "native_udf"

    url: str
    """The library: a path, or an object in a store."""
    sha256: str
    function: str
    """The name of the function in the library."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for the function, the same for all rows."""
    store_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options of the store that holds the library; never credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallUdfSpec(OperatorConfig):
    """A function of the registry, called on columns of this stream."""

    kind: ClassVar[str] = "call_udf"

    udf: str
    inputs: tuple[str, ...] | None = None
    """Replaces the declared columns; None keeps them."""
    output: str | None = None
    """Replaces the declared column; None keeps it."""


@renamed(on_error="on_bad")
def udf(
    function: Callable[..., Any],
    *,
    returns: Any,
    inputs: Sequence[str],
    name: str | None = None,
    output: str | None = None,
    mode: Mode = "row",
    nulls: Nulls = "skip",
    on_bad: OnBad = "fail",
) -> UdfSpec:
    """Declare a Python function that makes one column, for `Stream.udf`.

    It is called with the columns `inputs`, row by row; `returns` is a `pyarrow` type. The
    column is called `output`, by default as the function, or `name`. A null among the values
    of a row gives null without a call, or with `nulls="pass"` is passed as None.

    In the modes "arrow" and "polars" the function gets whole columns and must give one of
    the same length; the cuts between batches have no meaning. With `on_bad="divert"` it is
    called again on halves of a batch that failed, to find the rows that cause it.

    >>> import penstock as pen
    >>> gross = pen.udf(
    ...     lambda net: net * 1.19, returns=pa.float64(), inputs="net", name="gross"
    ... )
    >>> sales = pen.Pipeline("p").read("sales", pen.list_source([{"net": 1.0}]))
    >>> sales.udf("gross", gross).schema.arrow.names
    ['net', 'gross']
    """
    packed = pickle_function(function, name)
    column = _column(packed.name, inputs, output, returns)
    return UdfSpec(**column, function=packed, mode=mode, nulls=nulls, on_bad=on_bad)


@renamed(
    on_error="on_bad",
    timeout_seconds="timeout",
    retry_delay_seconds="retry_delay",
    drain_seconds="drain",
)
def async_udf(
    function: Callable[..., Any],
    *,
    returns: Any,
    inputs: Sequence[str],
    name: str | None = None,
    output: str | None = None,
    nulls: Nulls = "skip",
    on_bad: OnBad = "fail",
    ordered: bool = True,
    max_concurrency: int = 100,
    timeout: DurationLike = "30s",
    retries: int = 0,
    retry_delay: DurationLike = "100ms",
    drain: DurationLike = "1s",
) -> AsyncUdfSpec:
    """Declare an `async def` function, called row by row, up to `max_concurrency` at a time.

    Everything is as for `udf`; rows leave in the order they came unless `ordered` is False.
    One attempt may take `timeout`; `retries` further ones follow after `retry_delay`, which
    doubles every time. The end of an epoch waits up to `drain` for answers under way.
    Its results count once, but a call may be made more than once: after a failure, and when
    the epoch ended before its answer came.
    """
    packed = pickle_function(function, name)
    return AsyncUdfSpec(
        **_column(packed.name, inputs, output, returns),
        function=packed,
        nulls=nulls,
        on_bad=on_bad,
        is_ordered=ordered,
        max_concurrency=max_concurrency,
        timeout_micros=to_micros(timeout, "timeout"),
        retries=retries,
        retry_delay_micros=to_micros(retry_delay, "retry_delay"),
        drain_micros=to_micros(drain, "drain"),
    )


@renamed(on_error="on_bad")
def native_udf(
    url: str,
    *,
    sha256: str,
    function: str,
    returns: Any,
    inputs: Sequence[str],
    name: str | None = None,
    output: str | None = None,
    on_bad: OnBad = "fail",
    arguments: Mapping[str, Any] | None = None,
    store_options: Mapping[str, Any] | None = None,
) -> NativeUdfSpec:
    """Declare a function of a native library, built as Polars' plug-ins are.

    `url` is where the library is, `sha256` what it must be; it is fetched when the job runs.
    `arguments` are the function's keyword arguments. Everything else is as for `udf`.
    """
    return NativeUdfSpec(
        **_column(name or function, inputs, output, returns),
        url=url,
        sha256=sha256,
        function=function,
        on_bad=on_bad,
        arguments=dict(arguments or {}),
        store_options=plain_options(store_options or {}),
    )


def call_udf(
    name: str, *, inputs: Sequence[str] | None = None, output: str | None = None
) -> OperatorSpec:
    """Return a step that calls the function `name` of the pipeline's registry, for `process`.

    `inputs` and `output` are columns in place of those that were declared with it.
    """
    columns = None if inputs is None else _names(inputs)
    return CallUdfSpec(udf=name, inputs=columns, output=output).to_operator_spec()


def _column(
    name: str, inputs: Sequence[str], output: str | None, returns: Any
) -> dict[str, Any]:
    """Return the fields that all declarations share, as `ResultSpec` names them."""
    if not isinstance(returns, pa.DataType):
        raise UserError(
            f"returns={returns!r} is not a type: give a pyarrow type such as pa.int64()",
            code=ErrorCode.UDF_INVALID,
        )
    return {
        "name": name,
        "inputs": _names(inputs),
        "output": output or name,
        "replaces": output is not None,
        "returns": pa.schema([pa.field("result", returns)]).serialize().to_pybytes(),
    }


def _names(inputs: Any) -> tuple[str, ...]:
    """Return the names of columns, which may be given as `pl.col(…)` as well."""
    names = column_names(inputs)
    if names is None:
        raise UserError(
            f"inputs={inputs!r:.80} are no columns: name them, such as inputs=['width']",
            code=ErrorCode.UDF_INVALID,
        )
    return names
