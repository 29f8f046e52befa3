"""StatusKeeper: counts what happens to a job, and publishes immutable values of its status."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.core.ids import OperatorId
from penstock.core.watermark import event_time_of
from penstock.runtime.driver.decide import JobPhase, JobStatus, OperatorStatus
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.driver.outcomes import EpochRan
from penstock.runtime.driver.session import JobSession
from penstock.runtime.plan.epoch_plan import known_inputs
from penstock.state.tables.table import files_of


class StatusKeeper:
    """Owned by the driver; other threads see only the values that it publishes."""

    def __init__(
        self,
        environment: JobEnvironment,
        on_status: Callable[[JobStatus], None] | None = None,
    ) -> None:
        self._environment = environment
        self._on_status = on_status
        self._rows_taken: Counter[OperatorId] = Counter()
        self._rows_emitted: dict[OperatorId, Counter[str]] = {}
        self._counters: dict[OperatorId, Counter[str]] = {}
        self.status = JobStatus(str(environment.graph.job), JobPhase.STARTING)

    def update(self, **changes: Any) -> None:
        """Change some fields of the status and publish it."""
        self.status = replace(self.status, **changes)
        if self._on_status is not None:
            self._on_status(self.status)

    def note_phase(
        self,
        phase: JobPhase,
        *,
        error: Exception | None = None,
        wake_up_micros: int | None = None,
    ) -> None:
        """Note the phase of the driver; an earlier error stays until an epoch counts."""
        text = self.status.error if error is None else str(error)
        self.update(phase=phase, error=text, next_wake_up_micros=wake_up_micros)

    def note_session(self, session: JobSession) -> None:
        """Note that the job was claimed."""
        manifest = session.state.manifest
        epoch = None if manifest is None else int(manifest.ref.epoch)
        self.update(generation=int(session.claim.generation), epoch=epoch)

    def note_epoch(self, ran: EpochRan, session: JobSession) -> None:
        """Note an epoch that counts."""
        for (operator, _), report in ran.reports.items():
            self._rows_taken[operator] += report.rows_taken
            self._rows_emitted.setdefault(operator, Counter()).update(report.rows_emitted)
            self._counters.setdefault(operator, Counter()).update(report.counters)
        manifest, status = session.state.manifest, self.status
        self.update(
            epoch=None if manifest is None else int(manifest.ref.epoch),
            epochs_run=status.epochs_run + 1,
            epochs_published=status.epochs_published + ran.progress.is_published,
            rows_read=status.rows_read + ran.progress.rows_read,
            last=ran.progress,
            operators=self._operators(session),
            error=None,
        )

    def _operators(self, session: JobSession) -> tuple[OperatorStatus, ...]:
        manifest = session.state.manifest
        known = known_inputs(self._environment.graph, manifest)
        found = []
        for node in self._environment.graph.nodes:
            inputs = known[node.operator]
            watermark = event_time_of(inputs)
            files = {
                file.path: file.size_bytes
                for metadata in session.state.metadata.get(node.operator, {}).values()
                for name, table in metadata.table_checkpoint_metadata.items()
                for file in files_of(table, table=name)
            }
            found.append(
                OperatorStatus(
                    str(node.operator),
                    node.spec.kind,
                    node.parallelism,
                    self._rows_taken[node.operator],
                    dict(self._rows_emitted.get(node.operator, {})),
                    dict(self._counters.get(node.operator, {})),
                    None if watermark is None else watermark.micros,
                    bool(inputs) and all(known.idle for known in inputs),
                    sum(files.values()),
                    len(files),
                    is_sink=not self._environment.graph.edges_out_of(node.operator),
                )
            )
        return tuple(found)
