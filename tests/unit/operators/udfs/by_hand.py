"""Driving the subtasks of one operator through epochs by hand, with real tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.core.ids import JobId, OperatorId, Subtask, TaskInfo
from penstock.core.schema import StreamSchema
from penstock.core.watermark import Watermark
from penstock.graph.logical import BAD, MAIN
from penstock.operators.operator import ArrowOperator
from penstock.state.tables.table import Frontier
from penstock.state.tables.table_manager import TableManager
from tests.builders.chain_rig import ChainRig, Ran, Taken
from tests.builders.kept_epochs import an_attempt
from tests.builders.scripted import Parts

NAME = OperatorId("look-up")


@dataclass
class EpochOutput:
    """What one subtask gave in one epoch."""

    main: list[dict[str, Any]]
    bad: list[dict[str, Any]]
    watermark: Watermark | None
    wake_up_micros: int | None
    counters: Mapping[str, int]


class OperatorByHand:
    """All subtasks of an operator, each built anew in every epoch: nothing is remembered."""

    def __init__(
        self,
        build: Callable[[], ArrowOperator],
        stream: StreamSchema,
        *,
        parallelism: int = 1,
    ) -> None:
        self.parallelism = parallelism
        self.stream = stream
        self._build = build
        self._parts = Parts()
        self._rig = ChainRig(self._parts.registry, ())

    def run_epoch(
        self,
        rows: Mapping[int, Sequence[pa.RecordBatch]] | None = None,
        watermark: Watermark | None = None,
    ) -> list[EpochOutput]:
        """Run one epoch of all subtasks; `MAX_EVENT_TIME` ends the data."""
        sides = self._build().side_outputs((self.stream,))
        node = self._parts.node(NAME, self._build, self.stream, side_outputs=sides)
        self._rig.nodes = (node,)
        given = [
            [(NAME, 0, batch) for batch in (rows or {}).get(index, ())]
            for index in range(self.parallelism)
        ]
        try:
            ran = self._rig.run_subtasks(
                given, spoken={(NAME, 0): watermark}, now=1_000 * (self._rig.epoch + 1)
            )
        finally:
            self._rig.restart()
        return [_output(subtask) for subtask in ran]

    def read_table(self, table: str) -> dict[str, Any]:
        """Return what a global table holds after the last epoch."""
        task = TaskInfo(JobId("job"), NAME, Subtask(0, self.parallelism))
        tables = TableManager.load(
            an_attempt(self._rig.store, task),
            self._build().tables(),
            self._rig.metadata[NAME],
        )
        tables.begin_epoch(Frontier())
        return dict(tables.get_global_keyed_state(table).items())


def _output(ran: Ran) -> EpochOutput:
    report = ran.reports[NAME]
    return EpochOutput(
        ran.left[NAME, MAIN].rows(),
        ran.left.get((NAME, BAD), Taken()).rows(),
        ran.watermarks[NAME],
        report.wake_up_micros,
        report.counters,
    )
