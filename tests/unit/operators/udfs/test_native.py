import hashlib
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.catalog import default_registry
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.operators.operator import ArrowOperator
from penstock.operators.udfs.specs import native_udf
from penstock.state.storage.urls import open_store
from tests.unit.operators.udfs.by_hand import OperatorByHand

BODIES = StreamSchema(pa.schema({"body": pa.string()}))


@cache
def _library() -> tuple[Path, str]:
    """A real plug-in library, built against another version of Polars than the one here."""
    package = find_spec("polars_hash")
    assert package is not None
    assert package.origin is not None
    (path,) = Path(package.origin).parent.glob("_internal*.so")
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copies of the library stay below the tests' own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("native")))
        yield


@pytest.fixture
def construct() -> Callable[..., ArrowOperator]:
    def build(**options: Any) -> ArrowOperator:
        path, sha256 = _library()
        given = {
            "url": str(path),
            "sha256": sha256,
            "function": "sha2_256",
            "returns": pa.string(),
            "inputs": ["body"],
            "output": "digest",
            **options,
        }
        registry = default_registry(load_plugins=False)
        spec = native_udf(given.pop("url"), **given)
        operator = registry.construct(spec.to_operator_spec()).operator
        assert isinstance(operator, ArrowOperator)
        return operator

    return build


def _bodies(*bodies: str | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(bodies, pa.string())], schema=BODIES.arrow)


def test_a_function_of_a_native_library_adds_a_column(
    construct: Callable[..., ArrowOperator],
) -> None:
    by_hand = OperatorByHand(construct, BODIES)
    (output,) = by_hand.run_epoch({0: [_bodies("one", None, "two")]})
    assert output.main == [
        {"body": "one", "digest": hashlib.sha256(b"one").hexdigest()},
        {"body": None, "digest": None},
        {"body": "two", "digest": hashlib.sha256(b"two").hexdigest()},
    ]


def test_keyword_arguments_reach_the_library(
    construct: Callable[..., ArrowOperator],
) -> None:
    def digest(seed: int) -> Any:
        by_hand = OperatorByHand(
            lambda: construct(
                function="xxhash64", returns=pa.uint64(), arguments={"seed": seed}
            ),
            BODIES,
        )
        return by_hand.run_epoch({0: [_bodies("one")]})[0].main[0]["digest"]

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_a_library_comes_from_a_store(construct: Callable[..., ArrowOperator]) -> None:
    path, _ = _library()
    open_store("memory:test-native").put("hash.so", path.read_bytes())
    operator = construct(url="memory:test-native/hash.so")
    assert "function=sha2_256" in str(operator.display())


def test_a_missing_function_is_named_with_those_the_library_offers(
    construct: Callable[..., ArrowOperator],
) -> None:
    with pytest.raises(UserError, match="no Polars plug-in function 'sha9'") as caught:
        construct(function="sha9")
    assert caught.value.code is ErrorCode.MISSING_SYMBOL
    offered = caught.value.message.partition("It offers: ")[2].split(", ")
    assert {"sha2_256", "wyhash", "xxhash64"} <= set(offered)
    assert not any(name.startswith("field_") for name in offered)


def test_a_library_of_another_hash_is_never_loaded(
    construct: Callable[..., ArrowOperator],
) -> None:
    with pytest.raises(UserError, match="It was not loaded") as caught:
        construct(sha256="0" * 64)
    assert caught.value.code is ErrorCode.LIBRARY_MISMATCH


def test_a_column_that_the_library_does_not_take_is_refused_before_data_flows(
    construct: Callable[..., ArrowOperator],
) -> None:
    numbers = StreamSchema(pa.schema({"body": pa.int64()}))
    with pytest.raises(SchemaError, match="does not take the columns body: int64"):
        construct().output_schema([numbers])


def test_a_result_of_another_type_is_refused_before_data_flows(
    construct: Callable[..., ArrowOperator],
) -> None:
    with pytest.raises(UserError, match="string") as caught:
        construct(returns=pa.int64()).output_schema([BODIES])
    assert caught.value.code is ErrorCode.UDF_INVALID


def test_a_column_that_the_input_lacks_is_named_first(
    construct: Callable[..., ArrowOperator],
) -> None:
    with pytest.raises(SchemaError, match="did you mean 'body'"):
        construct(inputs=["bodi"]).output_schema([BODIES])
