from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.context import (
    ArrowCollector,
    OperatorContext,
    SourceCollector,
    SourceContext,
)
from penstock.operators.operator import ArrowOperator, SourceOperator
from penstock.operators.user_functions import pickle_function, process_spec, source_spec
from tests.builders.chain_rig import a_source, an_operator

STREAM = StreamSchema(pa.schema({"n": pa.int64()}))


class Counting(ArrowOperator):
    def __init__(self, start: int) -> None:
        self.seen = start

    def name(self) -> str:
        return "counting"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        self.seen += batch.num_rows


class Silent(SourceOperator):
    def name(self) -> str:
        return "silent"

    def output_schema(self) -> StreamSchema:
        return STREAM

    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        pass


def test_every_construction_gives_a_fresh_copy_of_the_operator() -> None:
    mine = Counting(5)
    spec = process_spec(mine)
    mine.seen = 99

    first, second = an_operator(spec), an_operator(spec)

    assert isinstance(first, Counting)
    assert isinstance(second, Counting)
    first.seen += 1
    assert (first.seen, second.seen) == (6, 5)


def test_a_source_is_built_too() -> None:
    assert isinstance(a_source(source_spec(Silent())), Silent)


def test_a_class_instead_of_an_instance_is_refused_with_the_fix() -> None:
    with pytest.raises(UserError, match=r"write Counting\(…\)") as caught:
        process_spec(Counting)  # type: ignore[arg-type]

    assert caught.value.code is ErrorCode.UDF_INVALID


def test_a_source_is_no_operator_and_an_operator_no_source() -> None:
    with pytest.raises(UserError, match="takes ArrowOperators, and Silent is none"):
        process_spec(Silent())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="takes SourceOperators, and Counting is none"):
        source_spec(Counting(0))  # type: ignore[arg-type]


def test_what_was_pickled_by_hand_is_checked_when_it_is_built() -> None:
    with pytest.raises(UserError, match="takes ArrowOperators, and int is none"):
        an_operator(OperatorSpec("process", {"operator": pickle_function(7)}))


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("rows.csv", r"pen.files\(…\) names files"),
        (Path("rows.csv"), r"pen.files\(…\) names files"),
        (pen.impulse, r"call impulse\(…\) if it makes one"),
        ([{"n": 1}], r"pen.list_source\(…\) reads rows in memory"),
        (pa.table({"n": [1]}), r"pen.list_source\(…\) reads rows in memory"),
    ],
)
def test_what_is_no_source_is_answered_with_what_makes_one(given: Any, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        source_spec(given)


def test_what_is_no_sink_is_answered_with_what_makes_one() -> None:
    for given, hint in (("out", r"pen.files\(…\)"), (pen.stdout, r"call stdout\(…\)")):
        pipeline = pen.Pipeline("p")
        rows = pipeline.read("rows", pen.list_source([{"n": 1}]))
        rows.write("out", given)  # type: ignore[arg-type] # a mistake of a user
        with pytest.raises(UserError, match=hint):
            pipeline.graph()
