"""Users' own code: pickled into a graph, run as an operator or source, and its exceptions.

This is the only module that pickles. Functions and operator objects of users travel inside the
graph to the workers; state is never pickled: it is Parquet. A function that a worker can import
is pickled by its name; anything else, such as a lambda or what a notebook defines, by value.

The kinds "process" and "source" are operators and sources that users have written. An exception
of user code becomes an error that names the place where it was raised, and shows the rows.
"""

import inspect
import io
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from types import ModuleType
from typing import Any, ClassVar, TypeVar

import cloudpickle
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.batch import describe_sample
from penstock.errors import ErrorCode, PenstockError, UserCodeError, UserError
from penstock.graph.logical import OperatorSpec, UserFunction
from penstock.operators.context import OperatorContext
from penstock.operators.operator import ArrowOperator, SourceOperator
from penstock.operators.registry import OperatorConfig

AnswerT = TypeVar("AnswerT")

USER_ERRORS = (Exception, SystemExit, pl.exceptions.PanicException)
"""What user code raises when it fails: a program that ends itself, or Polars, is no exception."""
_MSGSPEC_CACHE = "__msgspec_cache__"
_SEARCH_DEPTH = 4
"""How deep the search goes for the part of an object that cannot be pickled."""


def pickle_function(obj: Any, name: str | None = None) -> UserFunction:
    """Return a function or an object in the form that goes into a graph.

    What it refers to is copied by this call: a later change of a captured list has no effect.
    """
    shown = name or name_of(obj)
    try:
        return UserFunction(shown, _dumps(obj))
    except Exception as error:  # __reduce__ and __getstate__ of users may raise anything
        raise UserError(
            f"{shown!r} cannot be sent to workers: {_culprit_of(obj) or 'it'} cannot be "
            f"pickled ({_first_line(error)}). Create it inside the function, or in on_start of "
            "an operator, instead of capturing it",
            code=ErrorCode.NOT_PICKLABLE,
            function=shown,
        ) from error


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # it has no types
    """Pickles classes without what msgspec keeps in them, which it derives again."""

    @override
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and _MSGSPEC_CACHE in vars(obj):
            delattr(obj, _MSGSPEC_CACHE)
        return super().reducer_override(obj)


def _dumps(obj: Any) -> bytes:
    written = io.BytesIO()
    _Pickler(written).dump(obj)
    return written.getvalue()


def send_by_value(module: ModuleType) -> None:
    """Have everything that a module defines sent to workers, which need not have the module."""
    cloudpickle.register_pickle_by_value(module)


def unpickle_function(function: UserFunction) -> Any:
    """Return a new copy of what was pickled. Runs code of the graph's author."""
    try:
        return pickle.loads(function.pickled)
    except Exception as error:
        code = ErrorCode.NOT_UNPICKLABLE
        if isinstance(error, ModuleNotFoundError):
            code = ErrorCode.MISSING_PACKAGE
            advice = (
                f"this process has no module {error.name!r}. Install it on every worker, or "
                "send it along (cloudpickle.register_pickle_by_value)"
            )
        elif isinstance(error, ImportError | AttributeError):
            advice = (
                f"{_first_line(error)}. This process has another version of the module than "
                "the one the function was pickled with: install the same everywhere"
            )
        else:
            advice = (
                f"{_first_line(error)}. Pickle it again with the Python and package versions "
                "that load it"
            )
        raise UserError(
            f"{function.name!r} cannot be loaded here: {advice}",
            code=code,
            function=function.name,
        ) from error


def name_of(obj: Any) -> str:
    """Return the name of a function or an object: its own, else that of its class."""
    named = getattr(obj, "func", obj)  # functools.partial
    name = getattr(named, "__qualname__", None) or type(named).__qualname__
    return str(name).rpartition("<locals>.")[2]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _culprit_of(obj: Any) -> str | None:
    """Return which part of an object cannot be pickled, as deep as the search goes."""
    path: list[str] = []
    part = obj
    for _ in range(_SEARCH_DEPTH):
        found = next((found for found in _parts_of(part) if not _pickles(found[1])), None)
        if found is None:
            break
        where, part = found
        path.append(where)
    if not path:
        return None
    return f"{' → '.join(path)} of type {type(part).__qualname__}"


def _parts_of(obj: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts that are pickled with an object, with a name for each."""
    if inspect.ismethod(obj):
        yield from _parts_of(obj.__func__)
        yield "its object", obj.__self__
        return
    parts: dict[str, Mapping[Any, Any]]
    if inspect.isfunction(obj):
        captured = inspect.getclosurevars(obj)
        parts = {
            "closure variable": captured.nonlocals,
            "global variable": captured.globals,
            "default value": dict(enumerate(obj.__defaults__ or ())),
            "default value of": obj.__kwdefaults__ or {},
        }
    elif isinstance(obj, Mapping):
        parts = {"item": obj}
    elif isinstance(obj, list | tuple | set | frozenset):
        parts = {"item": dict(enumerate(obj))}
    else:
        slots = [name for kind in type(obj).__mro__ for name in _slots_of(kind)]
        in_slots = {name: getattr(obj, name) for name in slots if hasattr(obj, name)}
        parts = {"attribute": {**getattr(obj, "__dict__", {}), **in_slots}}
    for what, values in parts.items():
        for name, value in values.items():
            yield f"{what} {name!r}", value


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _pickles(value: Any) -> bool:
    try:
        _dumps(value)
    except Exception:  # noqa: BLE001 (whatever it raises, it does not pickle)
        return False
    return True


@dataclass(frozen=True, slots=True)
class ProcessConfig(OperatorConfig):
    """The config of operators that users have written."""

    kind: ClassVar[str] = "process"

    operator: UserFunction
    """A pickled `ArrowOperator`."""


@dataclass(frozen=True, slots=True)
class SourceConfig(OperatorConfig):
    """The config of sources that users have written."""

    kind: ClassVar[str] = "source"

    source: UserFunction
    """A pickled `SourceOperator`."""


def process_spec(operator: ArrowOperator) -> OperatorSpec:
    """Return the spec of a user's operator, with a copy of its current attributes."""
    _check_instance(operator, ArrowOperator, ProcessConfig.kind)
    return ProcessConfig(pickle_function(operator)).to_operator_spec()


def source_spec(source: SourceOperator) -> OperatorSpec:
    """Return the spec of a user's source, with a copy of its current attributes."""
    _check_instance(source, SourceOperator, SourceConfig.kind)
    return SourceConfig(pickle_function(source)).to_operator_spec()


def build_process(config: ProcessConfig) -> ArrowOperator:
    """Return a new copy of a user's operator."""
    operator: ArrowOperator = unpickle_function(config.operator)
    _check_instance(operator, ArrowOperator, config.kind)
    return operator


def build_source(config: SourceConfig) -> SourceOperator:
    """Return a new copy of a user's source."""
    source: SourceOperator = unpickle_function(config.source)
    _check_instance(source, SourceOperator, config.kind)
    return source


def _check_instance(obj: Any, wanted: type, kind: str) -> None:
    if isinstance(obj, wanted):
        return
    hint = ""
    if isinstance(obj, type) and issubclass(obj, wanted):
        hint = f": write {obj.__name__}(…), an instance, instead of the class"
    elif isinstance(obj, str | PathLike):
        hint = ": pen.files(…) names files to read or to write"
    elif inspect.isroutine(obj):
        hint = (
            f": call {name_of(obj)}(…) if it makes one; functions of rows go to map_batches"
        )
    elif wanted is SourceOperator:
        hint = ": pen.list_source(…) reads rows in memory, such as lists and frames"
    shown = obj.__name__ if isinstance(obj, type) else type(obj).__name__
    raise UserError(
        f"{kind} takes {wanted.__name__}s, and {shown} is none{hint}",
        code=ErrorCode.UDF_INVALID,
    )


_TRACEBACK_FRAMES = 12


def to_failure(
    error: BaseException,
    message: str,
    *,
    note: str | None = None,
    batch: pa.RecordBatch | None = None,
    **facts: Any,
) -> PenstockError:
    """Return the error to raise for an exception of user code: a `UserCodeError`.

    An error of Penstock's own keeps its class and gets the facts. If the error travels to the
    driver, `note` says where it was raised; the traceback and sample rows go into notes too,
    because causes do not survive pickling. Raise it `from` its own cause.
    """
    notes = []
    failure = error if isinstance(error, PenstockError) else UserCodeError(message, **facts)
    if failure is error:
        for name, value in facts.items():
            failure.context.setdefault(name, value)
        notes.append(note)
    else:
        failure.__cause__ = error
    if batch is not None:
        notes.append(f"The batch it was given begins with:\n{describe_sample(batch)}")
    if note is not None and failure is not error:
        frames = traceback.format_exception(error, limit=-_TRACEBACK_FRAMES)
        notes.append("".join(frames).rstrip())
    for text in notes:
        # The same error object may be raised again: it gets each note only once.
        if text is not None and text not in getattr(failure, "__notes__", ()):
            failure.add_note(text)
    return failure


def ask(operator: str, hook: str, call: Callable[[], AnswerT]) -> AnswerT:
    """Return what a hook says outside of epochs; an exception gets the operator's name."""
    try:
        return call()
    except USER_ERRORS as error:
        message = f"operator {operator!r} raised {type(error).__name__} in {hook}: {error}"
        failure = to_failure(error, message, operator=str(operator), hook=hook)
        raise failure from failure.__cause__


def describe_failure(
    error: BaseException,
    context: OperatorContext,
    hook: str,
    batch: pa.RecordBatch | None = None,
) -> PenstockError:
    """Return the error to report for an exception that a hook raised."""
    operator, subtask = str(context.task.operator), context.task.subtask
    where = f"in {hook} (subtask {subtask.index} of {subtask.parallelism}, epoch {context.epoch})"
    return to_failure(
        error,
        f"operator {operator!r} raised {type(error).__name__} {where}: {error}",
        note=f"Raised by operator {operator!r} {where}",
        batch=batch,
        operator=operator,
        subtask=subtask.index,
        epoch=int(context.epoch),
        hook=hook,
    )
