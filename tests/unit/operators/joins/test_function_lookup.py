"""Lookup joins with an async function: whom it asks, what it remembers, and bad answers."""

import asyncio
from typing import Any
from uuid import UUID

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.clock import new_token
from penstock.errors import ErrorCode, ExternalError, UserCodeError, UserError
from penstock.operators.joins.function_lookup import AnswerCache
from penstock.operators.joins.lookup_rows import LookupRows
from penstock.testing import OperatorHarness

ROW = pa.schema([("user", pa.int64()), ("n", pa.int64())])
ANSWER = {"id": int, "name": str}

ASKED: list[list[int]] = []
UNDER_WAY = [0, 0]
"""How many calls wait, and the most that ever did."""


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    ASKED.clear()
    UNDER_WAY[:] = [0, 0]


async def ask(keys: pl.DataFrame) -> pl.DataFrame:
    """Answer for users below 100: two names for each tenth of them."""
    ASKED.append(keys["id"].to_list())
    UNDER_WAY[0] += 1
    UNDER_WAY[1] = max(UNDER_WAY)
    await asyncio.sleep(0)
    UNDER_WAY[0] -= 1
    known = keys.filter(pl.col("id") < 100)
    twice = pl.concat([known, known.filter(pl.col("id") % 10 == 0)])
    return twice.select("id", name=pl.col("id").cast(str))


def harness_of(function: Any = ask, *, how: Any = "left", **limits: Any) -> OperatorHarness:
    p = pen.Pipeline("p")
    rows = p.read("rows", pen.list_source([], ROW))
    lookup = pen.lookup_function(function, schema=ANSWER, **limits)
    joined = rows.join("named", lookup, left_on="user", right_on="id", how=how)
    joined.write("out", pen.blackhole())
    node = next(n for n in p.graph().nodes if n.operator == "named")
    return OperatorHarness(node.spec, *node.inputs)


def see(harness: OperatorHarness, *users: int | None) -> list[Any]:
    harness.push([{"user": user, "n": 0} for user in users])
    harness.barrier()
    return sorted(((row["user"], row["name"]) for row in harness.take()), key=str)


def test_distinct_keys_are_asked_for_once_and_nulls_never() -> None:
    with harness_of() as harness:
        assert see(harness, 1, 2, 1, None, 100) == [
            (1, "1"),
            (1, "1"),
            (100, None),
            (2, "2"),
            (None, None),
        ]
        assert ASKED == [[1, 2, 100]]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.timestamp("s"), 7),
        (pa.time32("s"), 7),
        (pa.date64(), 86_400_000),
        (pa.binary(2), b"ab"),
        (pa.uuid(), UUID(int=7)),
        (pa.dictionary(pa.int8(), pa.string()), "a"),
    ],
    ids=str,
)
def test_a_function_may_give_its_keys_back_as_it_got_them(kind: Any, value: Any) -> None:
    async def name(keys: pl.DataFrame) -> pl.DataFrame:
        return keys.with_columns(name=pl.lit("known"))

    p, out = pen.Pipeline("p"), pen.list_sink(new_token())
    rows = p.read("rows", pen.list_source(pa.table({"k": pa.array([value], kind)})))
    schema = pa.schema([("k", kind), ("name", pa.string())])
    rows.join("named", pen.lookup_function(name, schema=schema), on="k").write("out", out)
    p.run_in_process("memory:")
    assert [row["name"] for row in out.rows()] == ["known"]


def test_a_key_may_have_several_rows_and_inner_joins_drop_others() -> None:
    with harness_of(how="inner") as harness:
        assert see(harness, 20, 100) == [(20, "20"), (20, "20")]


def test_answers_are_remembered_also_that_there_is_none_until_they_are_too_old() -> None:
    with harness_of(cache_ttl="1m") as harness:
        see(harness, 1, 100, 20)
        assert see(harness, 1, 100, 20, 2) == [
            (1, "1"),
            (100, None),
            (2, "2"),
            (20, "20"),
            (20, "20"),
        ]
        assert ASKED == [[1, 100, 20], [2]]
        harness.advance("30s")
        see(harness, 1, 3)
        harness.advance("30s")
        see(harness, 1, 3)
        assert ASKED[2:] == [[3], [1]]


def test_calls_have_bounded_size_and_only_so_many_wait() -> None:
    with harness_of(batch_size=3, max_concurrency=2) as harness:
        assert len(see(harness, *range(1, 9))) == 8
        assert [len(keys) for keys in ASKED] == [3, 3, 2]
        assert UNDER_WAY[1] <= 2


@pytest.mark.parametrize("rows", [0, 7])
def test_the_cache_is_bounded_and_an_epoch_that_is_larger_gets_its_answers(
    rows: int,
) -> None:
    with harness_of(cache_rows=rows) as harness:
        assert len(see(harness, *range(1, 60))) == 64
        ASKED.clear()
        assert see(harness, 57, 58, 59) == [(57, "57"), (58, "58"), (59, "59")]
        assert ([] if rows else [[57, 58, 59]]) == ASKED


def test_the_oldest_answers_make_room() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    cache = AnswerCache(schema, ["k"], 10, 100)
    for instant in range(50):
        keys = [instant * 2, instant * 2 + 1]
        asked = pa.RecordBatch.from_pydict({"k": keys})
        rows = pa.RecordBatch.from_pydict({"k": keys, "v": keys}, schema=schema)
        cache.add(asked, LookupRows(rows, ["k"]), instant)
        assert len(cache) <= 10
    assert cache.asked.rows.num_rows == 5
    assert held(cache) == [95, 96, 97, 98, 99]
    cache.expire(148)
    assert held(cache) == [98, 99]


def held(cache: AnswerCache) -> list[Any]:
    rows: list[Any] = cache.rows.rows.column("k").to_pylist()
    return sorted(rows)


async def _raise(keys: Any) -> Any:
    raise ValueError(f"no service for {keys.height} keys")


async def _hang(_: Any) -> Any:
    await asyncio.Event().wait()


async def _other_columns(keys: pl.DataFrame) -> Any:
    return keys


async def _other_keys(keys: pl.DataFrame) -> Any:
    return keys.select(pl.col("id") + 1, name=pl.lit("x"))


async def _nothing(_: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [
        (
            _raise,
            UserCodeError,
            "'_raise' of lookup 'operator' raised ValueError: no service",
        ),
        (_hang, ExternalError, "no answer within 0.01 seconds when asked for 1 keys"),
        (_other_columns, UserError, "column 'name' is missing"),
        (_other_keys, UserError, "keys that were not asked for, such as {'id': 2}"),
        (_nothing, UserError, "expected rows as"),
    ],
)
def test_bad_answers_fail_the_job_by_the_name_of_the_function(
    function: Any, kind: type[Exception], said: str
) -> None:
    with harness_of(function, timeout="10ms") as harness:
        with pytest.raises(kind) as error:
            see(harness, 1)
        assert said in str(error.value)


def test_a_call_that_fails_is_repeated() -> None:
    with harness_of(_second_time, retries=1) as harness:
        assert see(harness, 1) == [(1, "late")]


_TRIES: list[int] = []


async def _second_time(keys: pl.DataFrame) -> Any:
    _TRIES.append(1)
    if len(_TRIES) == 1:
        raise OSError("busy")
    return [{"id": keys["id"][0], "name": "late"}]


def test_a_function_that_is_not_async_is_refused() -> None:
    with pytest.raises(UserError, match="no async function") as error:
        harness_of(len)
    assert error.value.code == ErrorCode.UDF_INVALID
