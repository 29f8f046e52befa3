"""Functions in the chain loop: hooks in their real order, amnesia, rescaling."""

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from penstock.operators.udfs.specs import async_udf, udf
from penstock.testing.harness import OperatorHarness
from tests.unit.operators.udfs.service import KEYED

_asked: set[int] = set()
"""Numbers that were asked about before: shared with the functions, which are pickled by name."""


async def silent_at_first(n: int) -> int:
    if n not in _asked:
        _asked.add(n)
        await asyncio.Event().wait()
    return 10 * n


def _rows(user: str, *numbers: int) -> dict[str, list[Any]]:
    return {"at": list(numbers), "user": [user] * len(numbers), "n": list(numbers)}


def _table(*batches: dict[str, list[Any]]) -> pa.Table:
    return pa.concat_tables(pa.table(batch, schema=KEYED.arrow) for batch in batches)


def test_functions_chain() -> None:
    chain = [
        udf(lambda n: n + 1, returns=pa.int64(), inputs=["n"], name="more"),
        udf(lambda a, b: a * b, returns=pa.int64(), inputs=["n", "more"], name="product"),
    ]
    with OperatorHarness([spec.to_operator_spec() for spec in chain], KEYED) as harness:
        harness.push(_table(_rows("ann", 2, 3)))
        harness.barrier()
        assert [row["product"] for row in harness.rows()] == [6, 12]


@pytest.mark.parametrize("amnesia", [False, True])
def test_calls_that_were_cut_off_are_answered_after_a_rescale(amnesia: bool) -> None:
    _asked.clear()
    spec = async_udf(
        silent_at_first,
        returns=pa.int64(),
        inputs=["n"],
        output="tens",
        drain="1ms",
    )
    harness = OperatorHarness(
        spec.to_operator_spec(), KEYED, parallelism=2, amnesia=amnesia
    )
    with harness:
        harness.push(_table(_rows("ann", 1, 2), _rows("bob", 3), _rows("cid", 4)))
        harness.barrier()
        assert harness.rows() == []
        kept = harness.checkpoint()
    with OperatorHarness.restore(kept, parallelism=3, amnesia=amnesia) as rescaled:
        rescaled.end()
        found = {(row["user"], row["n"]): row["tens"] for row in rescaled.rows()}
    assert found == {("ann", 1): 10, ("ann", 2): 20, ("bob", 3): 30, ("cid", 4): 40}


def test_a_stopped_job_asks_again_when_it_goes_on() -> None:
    _asked.clear()
    spec = async_udf(
        silent_at_first,
        returns=pa.int64(),
        inputs=["n"],
        output="tens",
        drain="1ms",
    )
    with OperatorHarness(spec.to_operator_spec(), KEYED) as harness:
        harness.push(_table(_rows("ann", 1)))
        harness.stop()
        assert harness.rows() == []
        kept = harness.checkpoint()
    with OperatorHarness.restore(kept) as restarted:
        restarted.end()
        assert [row["tens"] for row in restarted.rows()] == [10]
