from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pytest

from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import OperatorSpec, Plain, UserFunction
from penstock.operators.context import (
    ArrowCollector,
    OperatorContext,
    SourceCollector,
    SourceContext,
)
from penstock.operators.operator import ArrowOperator, SourceFinishType, SourceOperator
from penstock.operators.registry import (
    Configured,
    ConstructedOperator,
    OperatorConfig,
    OperatorConstructor,
    Registry,
)


@dataclass(frozen=True)
class ScaleConfig:
    column: str
    factor: int
    labels: tuple[str, ...] = ()
    payload: bytes = b""
    function: UserFunction | None = None
    options: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.factor == 0:
            raise ValueError("'factor' must not be 0")


class Scale(ArrowOperator):
    def __init__(self, config: Any) -> None:
        self.config = config

    def name(self) -> str:
        return "scale"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(batch)


class Nothing(SourceOperator):
    def name(self) -> str:
        return "nothing"

    def output_schema(self) -> StreamSchema:
        return StreamSchema(pa.schema({"n": pa.int64()}))

    def run(
        self, ctx: SourceContext, collector: SourceCollector
    ) -> SourceFinishType | None:
        return SourceFinishType.FINAL


class ScaleConstructor(OperatorConstructor[ScaleConfig]):
    config_type = ScaleConfig

    def with_config(self, config: ScaleConfig, registry: Registry) -> ConstructedOperator:
        return ConstructedOperator(Scale(config))


class StructConfig(msgspec.Struct, frozen=True):
    count: int
    rate: float = 1.0


class NothingConstructor(OperatorConstructor[StructConfig]):
    config_type = StructConfig

    def with_config(self, config: StructConfig, registry: Registry) -> ConstructedOperator:
        return ConstructedOperator(Nothing())


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    registry.add("scale", ScaleConstructor())
    registry.add("nothing", NothingConstructor())
    return registry


def _config_of(registry: Registry, config: Mapping[str, Plain]) -> ScaleConfig:
    operator = registry.construct(OperatorSpec("scale", config)).operator
    assert isinstance(operator, Scale)
    found = operator.config
    assert isinstance(found, ScaleConfig)
    return found


def test_an_operator_is_built_from_its_config(registry: Registry) -> None:
    built = registry.construct(OperatorSpec("scale", {"column": "x", "factor": 2}))
    assert isinstance(built.operator, Scale)
    assert built.name() == "scale"
    assert str(built.display()) == "scale()"


def test_a_source_is_built_from_a_struct(registry: Registry) -> None:
    built = registry.construct(OperatorSpec("nothing", {"count": 1}))
    assert isinstance(built.operator, SourceOperator)
    assert built.name() == "nothing"


def test_functions_bytes_and_tuples_pass_through(registry: Registry) -> None:
    function = UserFunction("f", b"\x00\xff")
    plain: Mapping[str, Plain] = MappingProxyType(
        {
            "column": "x",
            "factor": 2,
            "labels": ("a", "b"),
            "payload": b"\x00\xff",
            "function": function,
            "options": MappingProxyType({"one": 1}),
        }
    )
    assert _config_of(registry, plain) == ScaleConfig(
        "x", 2, ("a", "b"), b"\x00\xff", function, {"one": 1}
    )


def test_everything_wrong_with_a_config_is_reported_at_once(registry: Registry) -> None:
    spec = OperatorSpec("scale", {"factr": 2, "labels": (1,), "payload": "text"})
    with pytest.raises(UserError) as caught:
        registry.construct(spec)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert caught.value.message == (
        "the config of operator kind 'scale' is wrong:\n"
        "  'factr' is unknown; did you mean 'factor'?\n"
        "  'labels': expected `str`, got `int` - at `$[0]`\n"
        "  'payload': expected `bytes`, got `str`\n"
        "  'column' is missing: it is required, expected str\n"
        "  'factor' is missing: it is required, expected int"
    )


def test_a_struct_config_is_checked_too(registry: Registry) -> None:
    with pytest.raises(UserError, match=r"'count' is missing.*expected int") as caught:
        registry.construct(OperatorSpec("nothing", {"rate": "fast"}))
    assert "'rate': expected `float`, got `str`" in caught.value.message


def test_a_config_class_may_refuse_values(registry: Registry) -> None:
    with pytest.raises(UserError, match="'factor' must not be 0") as caught:
        registry.construct(OperatorSpec("scale", {"column": "x", "factor": 0}))
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_an_unknown_kind_is_named_with_the_closest(registry: Registry) -> None:
    with pytest.raises(
        UserError, match="'scael' is unknown; did you mean 'scale'"
    ) as caught:
        registry.construct(OperatorSpec("scael"))
    assert caught.value.code is ErrorCode.UNKNOWN_KIND
    # What is installed while a process runs is not found by it.
    assert caught.value.message.endswith("in a new process: packages are looked for once")


def test_a_kind_cannot_be_taken_twice(registry: Registry) -> None:
    with pytest.raises(UserError, match="'scale' is taken by") as caught:
        registry.add("scale", NothingConstructor())
    assert caught.value.code is ErrorCode.NAME_TAKEN
    assert isinstance(registry.constructors["scale"], ScaleConstructor)


def test_a_constructor_may_be_added_by_the_names_of_the_arguments() -> None:
    registry = Registry()
    registry.add(kind="scale", constructor=ScaleConstructor())
    assert isinstance(registry.constructors["scale"], ScaleConstructor)


@dataclass
class Thawed:
    x: int = 1


@dataclass(frozen=True)
class Unreadable:
    value: Plain


@pytest.mark.parametrize(
    ("config_type", "problem"),
    [
        (dict, "not a frozen dataclass"),
        (None, "not a frozen dataclass"),
        (Thawed, "is not frozen"),
        (Unreadable, "a field no config can fill"),
    ],
)
def test_a_config_class_that_cannot_work_is_refused_when_added(
    config_type: Any, problem: str
) -> None:
    class Broken(ScaleConstructor):
        pass

    Broken.config_type = config_type
    with pytest.raises(UserError, match=problem) as caught:
        Registry().add("broken", Broken())
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert "'broken'" in caught.value.message


@dataclass(frozen=True)
class NamedUdf:
    name: str


def test_udfs_are_found_by_name(registry: Registry) -> None:
    registry.add_udf(NamedUdf("normalize"))
    assert registry.udf("normalize") == NamedUdf("normalize")


def test_an_unknown_udf_is_named_with_the_closest(registry: Registry) -> None:
    registry.add_udf(NamedUdf("normalize"))
    with pytest.raises(UserError, match="did you mean 'normalize'") as caught:
        registry.udf("normalise")
    assert caught.value.code is ErrorCode.UDF_INVALID


def test_a_udf_name_cannot_be_taken_twice(registry: Registry) -> None:
    registry.add_udf(NamedUdf("normalize"))
    with pytest.raises(UserError, match="already") as caught:
        registry.add_udf(NamedUdf("normalize"))
    assert caught.value.code is ErrorCode.NAME_TAKEN


@dataclass(frozen=True, slots=True)
class SampleConfig(OperatorConfig):
    kind: ClassVar[str] = "sample"

    fraction: float
    seed: int | None = None

    def shown(self) -> Mapping[str, str]:
        return {"fraction": str(self.fraction)}


class Sample(Configured[SampleConfig], ArrowOperator):
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(batch)


def test_a_config_class_and_a_function_declare_a_kind() -> None:
    registry = Registry()
    registry.add(SampleConfig.kind, SampleConfig, Sample)
    spec = SampleConfig(0.5).to_operator_spec()

    built = registry.construct(spec).operator

    assert spec == OperatorSpec("sample", {"fraction": 0.5, "seed": None})
    assert isinstance(built, Sample)
    assert built.config == SampleConfig(0.5)
    assert built.name() == "sample"
    assert str(built.display()) == "sample(fraction=0.5)"


def test_a_kind_that_is_taken_is_named_by_its_config_class() -> None:
    registry = Registry()
    registry.add("sample", SampleConfig, partial(Sample))
    with pytest.raises(UserError, match=r"taken by .*SampleConfig: .*ScaleConstructor"):
        registry.add("sample", ScaleConstructor())
