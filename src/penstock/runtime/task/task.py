"""One task of a superstep: records in, records out. The same on every executor.

    restore the chain → run it over the records → write its tables → barriers → report

Failures that would come again (user code, bad input, damaged state) are reported as values:
the task sends aborted barriers, later levels skip their work, and the driver learns all of
them at once. Failures of storage are raised, so that the engine may try the task again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from penstock.core.clock import new_token
from penstock.core.ids import OperatorId, Subtask, TaskInfo
from penstock.errors import PenstockError, StorageError, UnknownOutcomeError
from penstock.operators.chain import AssembledChain, ChainSetting, chain_processing
from penstock.runtime.plan.epoch_plan import EpochPlan, known_inputs
from penstock.runtime.plan.physical import Chain, CompiledJob
from penstock.runtime.plan.reports import (
    Receipt,
    TaskReport,
    encode_report,
    to_error_part,
)
from penstock.runtime.task.exchange import (
    AbortedInputError,
    Attempt,
    ExchangeInput,
    Mailbox,
    Outlet,
    TornInputError,
    outlets_of,
)
from penstock.runtime.task.wire import Record
from penstock.runtime.task.worker import ChainKey, KeptChain, Worker
from penstock.state.checkpoints import Metadata
from penstock.state.files.state_file import derive_missing
from penstock.state.protocol.records import CheckpointManifest
from penstock.state.tables.erased import ErasedKind
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import TableEnvironment
from penstock.state.tables.table_manager import TableManager


def run_task(
    job: CompiledJob,
    epoch: EpochPlan,
    records: Iterable[Record],
    worker: Worker,
    *,
    level: int,
    task: int,
    fed: Iterable[pa.RecordBatch] | None = None,
) -> Iterator[Record]:
    """Run one task; what it yields goes to the next level, or from the last to the driver.

    `fed` are rows for the task's source, where the plan says that the executor brings them.
    """
    chain, subtask = job.plan.task(level, task)
    attempt = Attempt(level, task, new_token())
    mailbox = Mailbox(job.plan, attempt)
    inlet = ExchangeInput(job.plan, chain, subtask, records, mailbox)
    work = _TaskWork(job, epoch, chain, subtask, attempt, worker, fed)
    outlets = outlets_of(
        job.plan, chain, mailbox, subtask=subtask.index, epoch=epoch.terms.barrier.epoch
    )
    report = work.run(inlet, outlets)
    if not report.is_whole:
        inlet.relay_rest()
        for outlet in work.every(outlets):
            outlet.abort()
    mailbox.report(encode_report(report))
    yield from mailbox.drain()


@dataclass(slots=True)
class _TaskWork:
    """The steps of one attempt, with what they share."""

    job: CompiledJob
    epoch: EpochPlan
    chain: Chain
    subtask: Subtask
    attempt: Attempt
    worker: Worker
    fed: Iterable[pa.RecordBatch] | None = None

    def run(
        self, inlet: ExchangeInput, outlets: dict[OperatorId, dict[str, list[Outlet]]]
    ) -> TaskReport:
        """Run the chain; return what to tell the driver."""
        level, task, token = self.attempt.level, self.attempt.task, str(self.attempt.token)
        assembled: AssembledChain | None = None
        self.worker.watched.failure = None
        before = self.worker.usage
        try:
            assembled = self._open()
            report = self._process(assembled, inlet, outlets)
            assembled = None
        except TornInputError as torn:
            return TaskReport(level, task, token, torn=str(torn))
        except AbortedInputError:
            return TaskReport(level, task, token, is_skipped=True)
        except (StorageError, UnknownOutcomeError):
            raise
        except PenstockError as error:
            return TaskReport(level, task, token, error=to_error_part(error))
        finally:
            # Half-way through an epoch it is of no use to anybody.
            if assembled is not None:
                assembled.close()
        return msgspec.structs.replace(report, usage=self.worker.usage - before)

    def every(self, outlets: dict[OperatorId, dict[str, list[Outlet]]]) -> Iterator[Outlet]:
        """Return all outlets of the chain."""
        for outputs in outlets.values():
            for edges in outputs.values():
                yield from edges

    def _process(
        self,
        assembled: AssembledChain,
        inlet: ExchangeInput,
        outlets: dict[OperatorId, dict[str, list[Outlet]]],
    ) -> TaskReport:
        assembled.begin(
            self.epoch.terms,
            watermarks=known_inputs(self.job.graph, self._manifest()),
            assignments={
                operator: parts[self.subtask.index]
                for operator, parts in self.epoch.assignments.items()
                if operator in self.chain.operators
            },
            outlets=outlets,
            fed=self.fed,
        )
        reports, passed_on = chain_processing(
            assembled.nodes, assembled.links, inlet, self.epoch.terms
        )
        self.worker.watched.raise_failure()
        for operator, outputs in outlets.items():
            for edges in outputs.values():
                for outlet in edges:
                    outlet.finish(passed_on[operator])
        written = {report.operator: report.checkpoint.metadata for report in reports}
        self._keep(assembled, written)
        return TaskReport(
            self.attempt.level,
            self.attempt.task,
            str(self.attempt.token),
            tuple(
                Receipt(sender.edge, sender.level, sender.task, str(token))
                for sender, token in inlet.receipts()
            ),
            tuple(reports),
        )

    def _open(self) -> AssembledChain:
        """Return the chain on the epoch's parent: remembered, caught up, or built."""
        kept = self.worker.take_chain(self._key())
        if kept is None:
            return self._assemble()
        try:
            self._catch_up(kept)
        except BaseException:
            kept.chain.close()
            raise
        return kept.chain

    def _catch_up(self, kept: KeptChain) -> None:
        """Bring a remembered chain to the epoch's parent; forget operators that fell behind."""
        manifest = self._manifest()
        for node in kept.chain.nodes:
            operator = node.task.operator
            restored = self.worker.operator_metadata(manifest, operator)
            node.tables.catch_up(self._environment(node.task), restored)
            mine = restored.get(self.subtask.index)
            is_current = kept.run == self.epoch.accepted_run and _same_files(
                kept.written.get(operator), mine
            )
            if not is_current:
                node.forget()

    def _assemble(self) -> AssembledChain:
        graph = self.job.graph
        nodes = [graph.node(operator) for operator in self.chain.operators]
        setting = ChainSetting(
            self.epoch.job,
            self.subtask,
            self.worker.registry,
            self.worker.clock,
            self._load_tables,
        )
        return AssembledChain(nodes, self.chain.links, setting)

    def _load_tables(self, task: TaskInfo, specs: tuple[TableSpec, ...]) -> TableManager:
        restored = self.worker.operator_metadata(self._manifest(), task.operator)
        return TableManager.load(
            self._environment(task),
            specs,
            restored,
            allow_dropped=self.epoch.allow_dropped_state,
        )

    def _environment(self, task: TaskInfo) -> TableEnvironment:
        worker = self.worker
        return TableEnvironment(
            task,
            self.epoch.generation,
            self.attempt.token,
            worker.watched,
            worker.cache,
            worker.memory_budget_bytes,
        )

    def _manifest(self) -> CheckpointManifest | None:
        parent = self.epoch.parent
        return None if parent is None else self.worker.manifest(parent)

    def _keep(self, assembled: AssembledChain, written: dict[OperatorId, Metadata]) -> None:
        if self.epoch.terms.barrier.then_stop or self.epoch.terms.is_stop:
            assembled.close()
            return
        kept = KeptChain(assembled, self.epoch.run, written)
        self.worker.keep_chain(self._key(), kept)

    def _key(self) -> ChainKey:
        return ChainKey(
            self.epoch.job,
            self.epoch.generation,
            self.job.fingerprint,
            self.chain.number,
            self.subtask.index,
        )


def _same_files(written: Metadata | None, published: Metadata | None) -> bool:
    """Tell whether what was written is what was published, compactions aside."""
    if written is None:
        return published is None
    names = {*written.table_checkpoint_metadata}
    if published is not None:
        names |= {*published.table_checkpoint_metadata}
    return all(_same_table(name, written, published) for name in names)


def _same_table(name: str, written: Metadata, published: Metadata | None) -> bool:
    if published is None or name not in published.table_checkpoint_metadata:
        return False
    if name not in written.table_checkpoint_metadata:
        return False
    mine = written.table_checkpoint_metadata[name]
    theirs = published.table_checkpoint_metadata[name]
    if mine == theirs:
        return True
    kind = ErasedKind(name, published.table_configs[name])
    return derive_missing(kind.files_in(mine), kind.files_in(theirs)) == ()
