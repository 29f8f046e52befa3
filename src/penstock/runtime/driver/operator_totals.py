"""OperatorTotals: what each operator has done since the driver started, shown as its status.

The totals begin anew with every driver: nobody needs them to go on. It also warns of late and
bad rows that nothing reads, because they are lost.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from penstock.core.figures import show_count
from penstock.core.ids import OperatorId
from penstock.core.watermark import InputWatermark, event_time_of
from penstock.graph.logical import BAD, LATE, LogicalGraph, Node
from penstock.operators.event_time import slowest_split
from penstock.runtime.driver.decide import OperatorStatus
from penstock.runtime.driver.outcomes import EpochRan
from penstock.runtime.driver.session import JobSession
from penstock.runtime.plan.epoch_plan import known_inputs
from penstock.state.tables.table import files_of

_log = logging.getLogger(__name__)


class OperatorTotals:
    """Sums up the reports of all epochs that count.

    A restart of the job within one driver does not reset them.
    """

    def __init__(self, graph: LogicalGraph) -> None:
        self._graph = graph
        self._rows_taken: Counter[OperatorId] = Counter()
        self._rows_emitted: dict[OperatorId, Counter[str]] = defaultdict(Counter)
        self._counters: dict[OperatorId, Counter[str]] = defaultdict(Counter)
        self._warned: set[tuple[str, str]] = set()

    def note(self, ran: EpochRan) -> None:
        """Add the reports of an epoch."""
        for (operator, _), report in ran.reports.items():
            self._rows_taken[operator] += report.rows_taken
            self._rows_emitted[operator].update(report.rows_emitted)
            self._counters[operator].update(report.counters)

    def statuses(self, ran: EpochRan, session: JobSession) -> Iterator[OperatorStatus]:
        """Yield the status of every operator after an epoch."""
        graph, state = self._graph, session.state
        known = known_inputs(graph, state.manifest)
        sent: dict[OperatorId, list[InputWatermark]] = defaultdict(list)
        for target, inputs in known.items():
            for edge, each in zip(graph.edges_into(target), inputs, strict=True):
                sent[edge.source].append(each)
        for node in graph.nodes:
            lag = ran.reading.lags.get(node.operator)
            # A source has no inputs: what it has sent counts.
            inputs = known[node.operator] or tuple(sent[node.operator])
            watermark = event_time_of(inputs)
            files = {
                file.path: file.size_bytes
                for metadata in state.metadata.get(node.operator, {}).values()
                for name, table in metadata.table_checkpoint_metadata.items()
                for file in files_of(table, table=name)
            }
            yield OperatorStatus(
                str(node.operator),
                node.spec.kind,
                node.parallelism,
                self._rows_taken[node.operator],
                dict(self._rows_emitted[node.operator]),
                dict(self._counters[node.operator]),
                None if watermark is None else watermark.micros,
                bool(inputs) and all(each.idle for each in inputs),
                sum(files.values()),
                len(files),
                is_sink=not graph.edges_out_of(node.operator),
                unread=graph.unread_outputs(node.operator),
                slowest_split=_slowest_split(node, ran, session),
                lag_rows=None if lag is None else lag.rows,
                lag_micros=None if lag is None else lag.micros,
            )

    def warn_of_dropped_rows(self, job: str, operators: Iterable[OperatorStatus]) -> None:
        """Warn, once for each step, of late and bad rows that nothing reads."""
        for operator in operators:
            for output in (LATE, BAD):
                count = operator.rows_emitted.get(output, 0)
                dropped = (operator.operator, output)
                if count and output in operator.unread and dropped not in self._warned:
                    self._warned.add(dropped)
                    _log.warning(
                        "step %r of job %r has dropped %s that came %s, and nothing reads "
                        "them: read them with side_output(pen.%s) of its stream. More are "
                        "only counted",
                        operator.operator.removesuffix("-combiner"),
                        job,
                        show_count(count, "row"),
                        "late" if output == LATE else "with bad values",
                        output.upper(),
                    )


def _slowest_split(node: Node, ran: EpochRan, session: JobSession) -> str | None:
    if node.watermark is None:
        return None
    known = session.planner.sources[node.operator].known
    return slowest_split(known, node.watermark, ran.progress.processing_time_micros)
