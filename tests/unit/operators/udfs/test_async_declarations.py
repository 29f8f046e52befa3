from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from penstock.catalog import default_registry
from penstock.core.schema import StreamSchema
from penstock.core.watermark import EventTime
from penstock.errors import ErrorCode, UserError
from penstock.operators.udfs.async_calls import (
    CALLS_TABLE,
    RowCall,
    StoredCall,
    patience_of,
)
from penstock.operators.udfs.async_operator import AsyncUdfOperator
from penstock.operators.udfs.specs import async_udf
from tests.unit.operators.udfs.by_hand import OperatorByHand
from tests.unit.operators.udfs.service import KEYED, Service, rows


@pytest.fixture
def service() -> Service:
    return Service()


def _by_hand(
    service: Service, stream: StreamSchema = KEYED, *, parallelism: int = 1, **options: Any
) -> OperatorByHand:
    return OperatorByHand(lambda: service.build(**options), stream, parallelism=parallelism)


async def look_up(n: int) -> int:
    return n


def _construct(**options: Any) -> AsyncUdfOperator:
    registry = default_registry(load_plugins=False)
    given = {"function": look_up, "returns": pa.int64(), "inputs": ["n"], **options}
    function = given.pop("function")
    built = registry.construct(async_udf(function, **given).to_operator_spec())
    assert isinstance(built.operator, AsyncUdfOperator)
    return built.operator


def test_the_kind_is_registered_and_shows_itself() -> None:
    operator = _construct(max_concurrency=5, ordered=False)
    assert operator.name() == "async_udf"
    assert "order=any, max_concurrency=5, timeout=30 s" in str(operator.display())
    operator.release()


def test_a_registered_operator_calls_the_function() -> None:
    by_hand = OperatorByHand(partial(_construct, output="same"), KEYED)
    (output,) = by_hand.run_epoch({0: [rows(4)]}, EventTime(1))
    assert output.main[0]["same"] == 4


def test_a_function_that_is_not_async_is_refused() -> None:
    with pytest.raises(UserError, match="it is not async") as caught:
        _construct(function=abs)
    assert caught.value.code is ErrorCode.UDF_INVALID


def test_an_object_with_an_async_call_is_accepted() -> None:
    class Client:
        async def __call__(self, n: int) -> int:
            return n + 1

    by_hand = OperatorByHand(lambda: _construct(function=Client(), name="next"), KEYED)
    assert by_hand.run_epoch({0: [rows(4)]})[0].main[0]["next"] == 5


def test_all_limits_that_cannot_work_are_reported_at_once() -> None:
    with pytest.raises(UserError) as caught:
        async_udf(
            look_up,
            returns=pa.int64(),
            inputs=[],
            max_concurrency=0,
            timeout="10s",
            retries=-1,
            drain=0,
        )
    for problem in (
        "it has no inputs",
        "max_concurrency is 0",
        "retries is -1: it must not be negative",
        "drain is 0: need more than 0",
    ):
        assert problem in caught.value.message


def test_a_timeout_must_be_positive() -> None:
    with pytest.raises(UserError, match="timeout is 0: need more than 0"):
        async_udf(look_up, returns=pa.int64(), inputs=["n"], timeout=0)


def _call_cut_off(times: int) -> RowCall:
    stored = StoredCall(epoch=1, number=0, position=0, row=b"", cut_offs=times)
    return RowCall(
        order=0, arguments=(1,), batch=rows(1), index=0, stored=("1-0-0", stored)
    )


@pytest.mark.parametrize(
    ("cut_offs", "seconds"), [(0, 2.0), (1, 4.0), (2, 8.0), (3, 10.0), (5_000, 10.0)]
)
def test_a_call_gets_twice_as_long_every_time_until_it_has_its_timeout(
    cut_offs: int, seconds: float
) -> None:
    spec = async_udf(look_up, returns=pa.int64(), inputs=["n"], drain="2s", timeout="10s")
    assert patience_of([_call_cut_off(0), _call_cut_off(cut_offs)], spec) == seconds


def test_an_epoch_waits_as_long_as_it_is_told_even_beyond_the_timeout() -> None:
    spec = async_udf(look_up, returns=pa.int64(), inputs=["n"], drain="20s", timeout="10s")
    assert patience_of([], spec) == 20
    assert patience_of([_call_cut_off(1)], spec) == 20


def test_cut_offs_are_counted_across_epochs(service: Service) -> None:
    service.silent = {1}
    by_hand = _by_hand(service)
    seen: list[int] = []
    for _ in range(3):
        by_hand.run_epoch({0: [rows(1)]} if not seen else {})
        seen.append(by_hand.read_table(CALLS_TABLE)["1-0-0"].cut_offs)
    assert seen == [1, 2, 3]
