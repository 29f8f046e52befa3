"""Registry: builds operators from kind and config. It is the only lookup by kind.

A graph names operators by kind and plain config. A kind is declared once, by the class of its
config and a function that builds the operator from it:

    @dataclass(frozen=True, slots=True)
    class SampleConfig(OperatorConfig):
        kind: ClassVar[str] = "sample"
        fraction: float

    registry.add(SampleConfig.kind, SampleConfig, Sample)     # Sample(config) is the operator

The config is the spec: `SampleConfig(0.1).to_operator_spec()` puts it into a graph, and the
registry turns the graph's plain values into a `SampleConfig` again. It reports every key that
is missing, unknown or of the wrong type at once. Functions and bytes pass through as they
are; lists become tuples where the class says so. A kind may also be added as an
`OperatorConstructor`. Other packages add kinds through entry points:

    [project.entry-points."penstock.operators"]
    geo = "geo_operators:register"        # def register(registry: Registry) -> None
"""

import dataclasses
import inspect
import sys
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, overload

import msgspec
from typing_extensions import override

from penstock.errors import ErrorCode, UserError, did_you_mean
from penstock.graph.logical import OperatorSpec, Plain, UserFunction
from penstock.operators.dylibs import load_dylib
from penstock.operators.operator import ArrowOperator, DisplayableOperator, SourceOperator

ConfigT = TypeVar("ConfigT")

_AS_THEY_ARE = (bytes, bytearray, memoryview)


def read_config(kind: str, config: Mapping[str, Plain], config_type: Any) -> Any:
    """Return the config as its class, or raise with every key that is wrong."""
    types, required = _fields_of(config_type)
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in config.items():
        if key not in types:
            problems.append(f"{key!r} is unknown{did_you_mean(key, types)}")
            continue
        try:
            values[key] = msgspec.convert(
                value, types[key], builtin_types=_AS_THEY_ARE, str_keys=True
            )
        except msgspec.ValidationError as error:
            problems.append(f"{key!r}: {str(error)[:1].lower()}{str(error)[1:]}")
    problems += [
        f"{name!r} is missing: it is required, expected {_show(types[name])}"
        for name in required
        if name not in config
    ]
    if not problems:
        try:
            return config_type(**values)
        except (TypeError, ValueError) as error:
            problems.append(str(error))
    raise UserError(
        f"the config of operator kind {kind!r} is wrong:\n  " + "\n  ".join(problems),
        code=ErrorCode.INVALID_CONFIG,
        kind=kind,
        problems=tuple(problems),
    )


def _find_type_problem(config_type: Any) -> str | None:
    """Return why configs cannot be read into a class."""
    name = getattr(config_type, "__qualname__", repr(config_type))
    if isinstance(config_type, type) and dataclasses.is_dataclass(config_type):
        is_frozen = config_type.__dataclass_params__.frozen  # type: ignore[attr-defined]
    elif isinstance(config_type, type) and issubclass(config_type, msgspec.Struct):
        is_frozen = config_type.__struct_config__.frozen
    else:
        return f"its config_type is {name}, not a frozen dataclass or msgspec.Struct"
    if not is_frozen:
        return f"its config_type {name} is not frozen: configs are shared"
    try:
        for value_type in _fields_of(config_type)[0].values():
            msgspec.msgpack.Decoder(value_type)
    except (TypeError, NameError) as error:
        return f"its config_type {name} has a field no config can fill: {error}"
    return None


@cache
def _fields_of(config_type: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the types of a config's fields by name, and the names of the required ones."""
    parameters = inspect.signature(config_type).parameters
    hints = typing.get_type_hints(config_type, include_extras=True)
    types = {name: hints.get(name, Any) for name in parameters}
    required = (name for name, each in parameters.items() if each.default is each.empty)
    return types, tuple(required)


def _show(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


ENTRY_POINT_GROUP = "penstock.operators"


@dataclass(frozen=True, slots=True)
class ConstructedOperator:
    """An operator or a source, built from its config."""

    operator: ArrowOperator | SourceOperator

    def name(self) -> str:
        """Return the kind of operator, for people to read."""
        return self.operator.name()

    def display(self) -> DisplayableOperator:
        """Return how it shows itself."""
        return self.operator.display()


class OperatorConstructor(ABC, Generic[ConfigT]):
    """Builds the operators of one kind. Stateless: one instance serves all of them.

    It runs on the driver when the graph is checked and again in every subtask, so it must be
    cheap. It refuses what cannot work, because no data has flowed yet.
    """

    config_type: type[ConfigT]
    """A frozen dataclass or `msgspec.Struct`; a field without a default is required."""

    @abstractmethod
    def with_config(self, config: ConfigT, registry: "Registry") -> ConstructedOperator:
        """Build the operator; `registry` is for looking up UDFs."""


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """The config of an operator of one kind, which also makes its spec. Plain data."""

    kind: ClassVar[str]

    def to_operator_spec(self) -> OperatorSpec:
        """Return the spec that a graph holds."""
        return OperatorSpec(
            self.kind,
            {field.name: _to_plain(getattr(self, field.name)) for field in fields(self)},
        )

    def shown(self) -> Mapping[str, str]:
        """Return the facts that `explain` prints about the operator; credentials are hidden."""
        return {}

    def __repr__(self) -> str:
        # For configs whose own class has `repr=False`, because they may hold credentials.
        return repr(self.to_operator_spec())


def _to_plain(value: Any) -> Plain:
    """Return a part of a config as plain values; functions are not changed."""
    if isinstance(value, tuple):
        return tuple(map(_to_plain, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, UserFunction):
        return {
            field.name: _to_plain(getattr(value, field.name)) for field in fields(value)
        }
    plain: Plain = value
    return plain


OperatorConfigT = TypeVar("OperatorConfigT", bound=OperatorConfig)


class Configured(Generic[OperatorConfigT]):
    """Gives an operator or source the name and display of its config."""

    def __init__(self, config: OperatorConfigT) -> None:
        super().__init__()
        self.config = config

    def name(self) -> str:
        """Return the kind."""
        return self.config.kind

    def display(self) -> DisplayableOperator:
        """Return the kind and what the config shows of itself."""
        return DisplayableOperator(self.config.kind, self.config.shown())


@dataclass
class _Kind(OperatorConstructor[ConfigT]):
    """A kind that was added as a config class and a function."""

    config_type: type[ConfigT]
    build: Callable[[ConfigT], ArrowOperator | SourceOperator]

    @override
    def with_config(self, config: ConfigT, registry: "Registry") -> ConstructedOperator:
        return ConstructedOperator(self.build(config))


class Udf(Protocol):
    """A user-defined function in the registry, which graphs call by name."""

    @property
    def name(self) -> str:
        """The name it is looked up by."""
        ...


class Registry:
    """Kinds of operators and named UDFs. Filled once per process, then only read."""

    def __init__(self) -> None:
        self._constructors: dict[str, OperatorConstructor[Any]] = {}
        self.udfs: dict[str, Udf] = {}

    @property
    def constructors(self) -> Mapping[str, OperatorConstructor[Any]]:
        """The constructors by kind; only `add` changes them."""
        return self._constructors

    @overload
    def add(self, kind: str, constructor: OperatorConstructor[Any]) -> None: ...

    @overload
    def add(
        self,
        kind: str,
        constructor: type[ConfigT],
        build: Callable[[ConfigT], ArrowOperator | SourceOperator],
    ) -> None: ...

    def add(self, kind: str, constructor: Any, build: Any = None) -> None:
        """Add a kind: a constructor, or a config class and a function that builds from it.

        A kind that is taken is refused, so that plug-ins cannot replace each other's.
        """
        if build is not None:
            constructor = _Kind(constructor, build)
        if kind in self.constructors:
            raise UserError(
                f"operator kind {kind!r} is taken by "
                f"{_declaring_class(self.constructors[kind])}: "
                f"{_declaring_class(constructor)} needs another name",
                code=ErrorCode.NAME_TAKEN,
                kind=kind,
            )
        problem = _find_type_problem(getattr(constructor, "config_type", None))
        if problem is not None:
            raise UserError(
                f"the constructor of operator kind {kind!r} cannot be used: {problem}",
                code=ErrorCode.INVALID_CONFIG,
                kind=kind,
            )
        self._constructors[kind] = constructor

    def construct(self, spec: OperatorSpec) -> ConstructedOperator:
        """Build an operator from its spec; the errors name the kind and the config's keys."""
        constructor = self.constructors.get(spec.kind)
        if constructor is None:
            raise UserError(
                f"operator kind {spec.kind!r} is unknown"
                f"{did_you_mean(spec.kind, self.constructors)}. If a package provides it, "
                "install it here and on every worker, and start the job in a new process: "
                "packages are looked for once",
                code=ErrorCode.UNKNOWN_KIND,
                kind=spec.kind,
            )
        config = read_config(spec.kind, spec.config, constructor.config_type)
        return constructor.with_config(config, self)

    def add_udf(self, udf: Udf) -> None:
        """Add a function that graphs call by name; a name that is taken is refused."""
        if udf.name in self.udfs:
            raise UserError(
                f"there is a UDF named {udf.name!r} already: give the other one another name",
                code=ErrorCode.NAME_TAKEN,
                udf=udf.name,
            )
        self.udfs[udf.name] = udf

    def udf(self, name: str) -> Any:
        """Return a UDF by name."""
        if name not in self.udfs:
            raise UserError(
                f"UDF {name!r} is unknown{did_you_mean(name, self.udfs)}. Add it with "
                "Registry.add_udf, here and on every worker",
                code=ErrorCode.UDF_INVALID,
                udf=name,
            )
        return self.udfs[name]

    def load_dylib(
        self, url: str, sha256: str, *, options: Mapping[str, Any] | None = None
    ) -> Path:
        """Return a local, verified copy of a shared library; see `dylibs.load_dylib`."""
        return load_dylib(url, sha256, options=options)

    def load_entry_points(self, group: str = ENTRY_POINT_GROUP) -> None:
        """Let every installed package that names an entry point in `group` add its kinds."""
        for entry_point in _installed(group, tuple(sys.path)):
            try:
                entry_point.load()(self)
            except Exception as error:  # code of other packages may raise anything
                owner = entry_point.dist
                package = "a package" if owner is None else f"{owner.name} {owner.version}"
                raise UserError(
                    f"the operators of {package} cannot be loaded: its entry point "
                    f"{entry_point.name!r} ({entry_point.value}) failed with "
                    f"{type(error).__name__}: {error}. Update or uninstall that package",
                    code=ErrorCode.PLUGIN_FAILED,
                    package=None if owner is None else owner.name,
                    entry_point=entry_point.name,
                ) from error


@cache
def _installed(group: str, path: tuple[str, ...]) -> Sequence[EntryPoint]:
    """Return the entry points of the packages on a path.

    Looking for them takes milliseconds, so a package that is installed later needs a new process.
    """
    del path  # sys.path, which decides what is found
    found = entry_points(group=group)
    return sorted(found, key=lambda entry: (entry.name, entry.value))


def _declaring_class(constructor: OperatorConstructor[Any]) -> str:
    declared = (
        constructor.config_type if isinstance(constructor, _Kind) else type(constructor)
    )
    return f"{declared.__module__}.{declared.__qualname__}"
