"""User operators and sources in a graph: the kinds "process" and "source"."""

from dataclasses import dataclass

from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import OperatorSpec, UserFunction
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import ConstructedOperator, OperatorConstructor, Registry
from penstock.operators.source import SourceOperator
from penstock.operators.user_functions import pickle_function, unpickle_function


def process_spec(operator: ArrowOperator) -> OperatorSpec:
    """Put a user's operator into a graph, as it is now."""
    _checked_operator(operator)
    return OperatorSpec("process", {"operator": pickle_function(operator)})


def source_spec(source: SourceOperator) -> OperatorSpec:
    """Put a user's source into a graph, as it is now."""
    _checked_source(source)
    return OperatorSpec("source", {"source": pickle_function(source)})


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    """The config of kind "process"."""

    operator: UserFunction
    """A pickled `ArrowOperator`."""


class ProcessConstructor(OperatorConstructor[ProcessConfig]):
    """Builds user operators: another copy each time."""

    config_type = ProcessConfig

    def with_config(self, config: ProcessConfig, registry: Registry) -> ConstructedOperator:
        """Load a new copy of the operator as it was when the graph was built."""
        del registry
        operator = unpickle_function(config.operator)
        return ConstructedOperator(_checked_operator(operator))


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """The config of kind "source"."""

    source: UserFunction
    """A pickled `SourceOperator`."""


class SourceConstructor(OperatorConstructor[SourceConfig]):
    """Builds user sources: another copy each time."""

    config_type = SourceConfig

    def with_config(self, config: SourceConfig, registry: Registry) -> ConstructedOperator:
        """Load a new copy of the source as it was when the graph was built."""
        del registry
        source = unpickle_function(config.source)
        return ConstructedOperator(_checked_source(source))


def _checked_operator(obj: object) -> ArrowOperator:
    if isinstance(obj, ArrowOperator):
        return obj
    raise _refusal(obj, ArrowOperator, "process")


def _checked_source(obj: object) -> SourceOperator:
    if isinstance(obj, SourceOperator):
        return obj
    raise _refusal(obj, SourceOperator, "source")


def _refusal(obj: object, kind: type, what: str) -> UserError:
    hint = ""
    if isinstance(obj, type) and issubclass(obj, kind):
        hint = f": write {obj.__name__}(…), an instance, instead of the class"
    shown = obj.__name__ if isinstance(obj, type) else type(obj).__name__
    return UserError(
        f"{what} takes {kind.__name__}s, and {shown} is none{hint}",
        code=ErrorCode.UDF_INVALID,
    )
