"""A source forgets its splits as it goes, dies anywhere, and reads every row once."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from typing_extensions import override

from penstock.api.pipeline import Pipeline
from penstock.catalog import default_registry
from penstock.connectors.memory import list_sink
from penstock.core.clock import new_token
from penstock.core.schema import StreamSchema
from penstock.graph.logical import OperatorSpec
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.operator import SourceOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState
from penstock.runtime.in_process import Chaos
from penstock.testing import Fault, FaultMode, LocalJob

SPLITS, ROWS = 7, 3
FORGETS_AFTER = 2
NUMBERS = pa.schema([("n", pa.int64())])


class ForgetfulConfig(OperatorConfig):
    """The config of kind "forgetful"."""

    kind: ClassVar[str] = "forgetful"


class Forgetful(Configured[ForgetfulConfig], SourceOperator):
    """Reads a split per epoch, and forgets those before the last two."""

    most_known: ClassVar[int] = 0
    """The most splits that were ever known, over all instances."""

    @override
    def name(self) -> str:
        return "forgetful"

    @override
    def output_schema(self) -> StreamSchema:
        return StreamSchema(NUMBERS)

    @override
    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        Forgetful.most_known = max(Forgetful.most_known, len(known))
        last = max(map(int, known), default=-1)
        if last + 1 == SPLITS:
            return SourcePlan((), is_complete=True)
        split = SplitPlan(str(last + 1), 0, ROWS)
        old = tuple(name for name in known if int(name) <= last - FORGETS_AFTER)
        return SourcePlan((split,), is_complete=False, has_more=True, forgotten=old)

    @override
    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        for split in ctx.splits:
            first = int(split.name) * ROWS
            rows = pa.table({"n": list(range(first, first + ROWS))}, schema=NUMBERS)
            collector.collect(rows, split=split.name)
            ctx.advance(split.name, ROWS)
            ctx.end_split(split.name)


def a_job() -> tuple[LocalJob, Any]:
    registry = default_registry(load_plugins=False)
    registry.add("forgetful", ForgetfulConfig, Forgetful)
    pipeline = Pipeline("forgetful", parallelism=2, registry=registry)
    out = list_sink(f"forgotten-splits-{new_token()}")
    stream = pipeline.read("in", OperatorSpec("forgetful", {}))
    stream.rebalance(parallelism=2).write("out", out)
    return LocalJob(pipeline, registry=registry), out


@pytest.mark.slow
def test_splits_that_were_forgotten_are_neither_read_again_nor_known_wherever_a_job_dies() -> (
    None
):
    job, out = a_job()
    job.run()
    assert sorted(row["n"] for row in out.rows()) == list(range(SPLITS * ROWS))
    calls = len(job.calls)
    assert calls > 40

    for at in range(1, calls, 5):
        Forgetful.most_known = 0
        job, out = a_job()
        job.chaos = Chaos(0.1, seed=at)
        job.run_until_done(Fault(FaultMode.CRASH_BEFORE, at=at), parallelism=1 + at % 3)

        assert sorted(row["n"] for row in out.rows()) == list(range(SPLITS * ROWS)), at
        assert Forgetful.most_known <= FORGETS_AFTER + 2, at
