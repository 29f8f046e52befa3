"""The first epoch of a graph on an executor, and a driver's surroundings, for contract tests."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.connectors.memory import staged_tables
from penstock.core.clock import ManualClock
from penstock.core.ids import Epoch, Generation
from penstock.core.watermark import CheckpointBarrier
from penstock.graph.logical import LogicalGraph
from penstock.operators.nodes import EpochTerms
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.driver.outcomes import Agreed, find_agreement
from penstock.runtime.plan.epoch_plan import EpochPlan, SourcePlanner
from penstock.runtime.plan.executor import Executor, TaskReport
from penstock.state.files.cache import FileCache
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from tests.builders.pipeline_graphs import (
    START_MICROS,
    Row,
)
from tests.builders.pipeline_job import REGISTRY, small_settings
from tests.contract.executors.conftest import MakeExecutor


@dataclass
class EpochRunner:
    """The first epoch of a graph on an executor, as often as wanted."""

    graph: LogicalGraph
    executor: Executor
    folder: Path
    store: ObjectStore = field(default_factory=MemoryStore)
    clock: ManualClock = field(default_factory=lambda: ManualClock(START_MICROS))
    runs: int = 0

    @property
    def environment(self) -> JobEnvironment:
        """What a driver would work with."""
        cache = FileCache(self.folder / "driver-cache", limit_bytes=1 << 30)
        return JobEnvironment(
            self.graph,
            self.store,
            cache,
            self.executor,
            REGISTRY,
            self.clock,
            small_settings(),
        )

    def run(self, *, rows: int = 1_000) -> Sequence[TaskReport]:
        """Run the epoch; nothing of it is published."""
        planner = SourcePlanner(self.graph, REGISTRY, SourceBudget(rows=rows))
        now = self.clock.now_micros()
        self.runs += 1
        plan = EpochPlan(
            self.graph.job,
            Generation(1),
            EpochTerms(CheckpointBarrier(Epoch(1), Epoch(1), now), now),
            self.runs,
            assignments=planner.plan(now, None).assignments,
        )
        return self.executor.run_epoch(self.environment.job, plan, None)

    def agreed(self, reports: Sequence[TaskReport]) -> Agreed:
        """Return what the driver makes of the reports, which must hold together."""
        agreement = find_agreement(self.environment.job, reports)
        assert isinstance(agreement, Agreed), agreement
        return agreement

    def rows_by_subtask(
        self, reports: Sequence[TaskReport], operator: str
    ) -> dict[int, list[Row]]:
        """Return what a sink that stages its rows got, in order, by subtask."""
        plan = self.environment.job
        found: dict[int, list[dict[str, Any]]] = {}
        for (level, task), report in self.agreed(reports).reports.items():
            _, subtask = plan.task(level, task)
            for part in report.operators:
                if part.operator == operator:
                    staged = part.checkpoint.metadata.commit_data
                    data = {name: {0: value} for name, value in staged.items()}
                    found[subtask.index] = [
                        row for table in staged_tables(data) for row in table.to_pylist()
                    ]
        return found


def a_runner(
    graph: LogicalGraph,
    make: MakeExecutor,
    folder: Path,
    store: ObjectStore | None = None,
) -> EpochRunner:
    clock = ManualClock(START_MICROS)
    store = make.new_store() if store is None else store
    return EpochRunner(graph, make(store, clock), folder, store, clock)
