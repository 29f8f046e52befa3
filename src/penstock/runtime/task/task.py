"""Runs one task of a superstep over records, and keeps its chain in the worker for the next.

    restore the chain → run it over the records → write its tables → barriers → report

Records are handed on as they are made, so some have left when a task fails half-way. That
does no harm: consumers count the records of an attempt only when its barrier confirms them.
Failures that a retry would repeat (user code, bad input, damaged state) are reported as values:
the task sends aborted barriers, later levels skip their work, and the driver gets all of them
at once. Failures of storage are raised, so that the engine may try the task again; the next
attempt has another token.

A task takes its chain out of the worker before the first change. It puts it back only after
its checkpoint, with a label: the number of the run and the metadata it wrote. So a chain that
is found there is whole, and the label shows whether the driver accepted it:

| label | tables | operators |
|---|---|---|
| of the accepted run, same files | go on | go on |
| of an older run | read what is new | are built again |
| anything else | are folded again | are built again |
"""

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import pyarrow as pa
from msgspec.structs import replace

from penstock.core.clock import Clock, SystemClock, new_token
from penstock.core.ids import JobId, OperatorId, Subtask, TaskInfo, Token
from penstock.errors import PenstockError, StorageError, UnknownOutcomeError
from penstock.operators.chain import AssembledChain, ChainSetting, chain_processing
from penstock.operators.nodes import OperatorReport
from penstock.operators.registry import Registry
from penstock.operators.worker_output import OutputLine
from penstock.runtime.plan.epoch_plan import EpochPlan, known_inputs
from penstock.runtime.plan.executor import (
    KeySample,
    Receipt,
    TaskReport,
    encode_report,
    to_error_part,
)
from penstock.runtime.plan.physical import Chain, PhysicalPlan
from penstock.runtime.task.commits import Committers
from penstock.runtime.task.exchange import (
    AbortedInputError,
    Attempt,
    ExchangeInput,
    Mailbox,
    Outlets,
    TornInputError,
    outlets_of,
)
from penstock.runtime.task.wire import Record
from penstock.state.checkpoints import JobCheckpoints, Metadata, ParquetBackend
from penstock.state.files.cache import FileCache, Recent
from penstock.state.files.state_file import derive_missing
from penstock.state.protocol.records import CheckpointManifest, CheckpointRef, ObjectRef
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.watched import StoreUsage, WatchedStore
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import TableEnvironment, files_of
from penstock.state.tables.table_manager import TableManager


@dataclass(frozen=True, slots=True)
class ChainKey:
    """A chain of a subtask of a job; another generation or graph has chains of its own."""

    job: JobId
    generation: int
    fingerprint: str
    chain: int
    subtask: int


@dataclass(slots=True)
class KeptChain:
    """A chain between two epochs, with its label: the run, and the metadata it wrote."""

    chain: AssembledChain
    run: int
    written: Mapping[OperatorId, Metadata]


@dataclass(slots=True)
class Worker:
    """One process that runs tasks. Opened after the process was forked."""

    store: ObjectStore
    cache: FileCache
    registry: Registry
    clock: Clock = field(default_factory=SystemClock)
    memory_budget_bytes: int = 256 << 20
    on_failure: Callable[[PenstockError], None] = field(default=lambda _: None)
    """Called with the error of a task before it is reported: a report drops its cause."""
    take_output: Callable[[], tuple[OutputLine, ...]] = field(default=lambda: ())
    """Returns what user code wrote since the last call, if that is captured."""
    chains: dict[ChainKey, KeptChain] = field(default_factory=dict)
    manifests: Recent[CheckpointRef, CheckpointManifest] = field(
        default_factory=lambda: Recent(8)
    )
    metadata: Recent[ObjectRef, Metadata] = field(default_factory=lambda: Recent(4096))
    watched: WatchedStore = field(init=False)
    """The store as tasks see it."""
    committers: Committers = field(init=False)

    def __post_init__(self) -> None:
        self.watched = WatchedStore(self.store)
        self.committers = Committers(self.store, self.registry)

    @property
    def usage(self) -> StoreUsage:
        """The storage requests and cache lookups since the worker was made."""
        cached = self.cache.statistics()
        return StoreUsage(self.watched.requests, cached.hits, cached.misses)

    def keep_chain(self, key: ChainKey, kept: KeptChain) -> None:
        """Put a chain back after its checkpoint; drop chains of earlier generations."""
        current = (key.generation, key.fingerprint)
        for other in list(self.chains):
            if other.job == key.job and (other.generation, other.fingerprint) != current:
                self.chains.pop(other).chain.close()
        self.chains[key] = kept

    def manifest(self, ref: CheckpointRef) -> CheckpointManifest:
        """Return a manifest; it is read once and cached while it is in use."""
        found = self.manifests.get(ref)
        if found is None:
            found = JobCheckpoints(self.watched, ref.job, self.clock).manifest(ref)
            self.manifests.put(ref, found)
        return found

    def operator_metadata(
        self, manifest: CheckpointManifest | None, operator: OperatorId
    ) -> dict[int, Metadata]:
        """Return the metadata of all subtasks of an operator, cached while it is in use."""
        backend = ParquetBackend(self.watched)
        entries = () if manifest is None else manifest.operators
        refs = next((entry.subtasks for entry in entries if entry.operator == operator), ())
        restored: dict[int, Metadata] = {}
        for index, ref in enumerate(refs):
            found = self.metadata.get(ref)
            if found is None:
                found = backend.read_operator_checkpoint_metadata(ref)
                self.metadata.put(ref, found)
            restored[index] = found
        return restored

    def forget(self) -> None:
        """Drop every chain and committer, as if the process had been replaced."""
        for kept in self.chains.values():
            kept.chain.close()
        self.chains.clear()
        self.committers.release()


def run_task(
    job: PhysicalPlan,
    epoch: EpochPlan,
    records: Iterable[Record],
    worker: Worker,
    *,
    level: int,
    task: int,
    fed: Iterable[pa.RecordBatch] | None = None,
) -> Iterator[Record]:
    """Run one task; its records go to the next level, or from the last one to the driver.

    `fed` are rows for the task's source, if the plan says that the executor brings them.
    """
    chain, subtask = job.task(level, task)
    attempt = Attempt(level, task, new_token())
    mailbox = Mailbox(job, attempt)
    inlet = ExchangeInput(job, chain, subtask, records, mailbox)
    outlets = outlets_of(
        job,
        chain,
        mailbox,
        subtask=subtask.index,
        epoch=epoch.terms.barrier.epoch,
        samples_keys=epoch.samples_keys,
    )
    work = _TaskWork(job, epoch, chain, subtask, attempt.token, worker)
    report = TaskReport(level, task, str(attempt.token))
    before = worker.usage
    try:
        reports = yield from work.run(inlet, outlets, mailbox, fed)
    except TornInputError as torn:
        report = replace(report, torn=str(torn))
    except AbortedInputError:
        report = replace(report, is_skipped=True)
    except (StorageError, UnknownOutcomeError):
        raise
    except PenstockError as error:
        worker.on_failure(error)
        report = replace(report, error=to_error_part(error))
    else:
        report = replace(
            report,
            receipts=tuple(
                Receipt(*sender, str(token)) for sender, token in inlet.receipts()
            ),
            operators=tuple(reports),
            usage=worker.usage - before,
            keys=tuple(_sampled_keys(outlets)),
        )
    if not report.is_whole:
        for _ in inlet.relay_rest():
            yield from mailbox.drain()
        for outputs in outlets.values():
            for outlet in itertools.chain(*outputs.values()):
                outlet.abort()
    mailbox.report(encode_report(replace(report, output=worker.take_output())))
    yield from mailbox.drain()


def _sampled_keys(outlets: Outlets) -> Iterator[KeySample]:
    for outputs in outlets.values():
        for outlet in itertools.chain(*outputs.values()):
            sample = outlet.sample_keys()
            if sample is not None:
                yield sample


@dataclass(slots=True)
class _TaskWork:
    """One attempt of a task: open its chain, run it, keep it for the next epoch."""

    job: PhysicalPlan
    epoch: EpochPlan
    chain: Chain
    subtask: Subtask
    token: Token
    worker: Worker
    manifest: CheckpointManifest | None = None
    """The manifest of the epoch's parent."""

    def run(
        self,
        inlet: ExchangeInput,
        outlets: Outlets,
        mailbox: Mailbox,
        fed: Iterable[pa.RecordBatch] | None,
    ) -> Generator[Record, None, list[OperatorReport]]:
        """Run the chain and hand on its records; return the reports of its operators."""
        worker, epoch, terms = self.worker, self.epoch, self.epoch.terms
        worker.watched.failure = None
        if epoch.parent is not None:
            self.manifest = worker.manifest(epoch.parent)
        index, fingerprint = self.subtask.index, self.job.fingerprint
        key = ChainKey(epoch.job, epoch.generation, fingerprint, self.chain.number, index)
        # The chain is taken out, so that no other task finds it while it changes.
        kept = worker.chains.pop(key, None)
        assembled = self._assemble() if kept is None else kept.chain
        with ExitStack() as undoing:
            # A chain that stopped half-way through an epoch cannot be used again.
            undoing.callback(assembled.close)
            if kept is not None:
                self._catch_up(kept)
            assembled.begin(
                terms,
                watermarks=known_inputs(self.job.graph, self.manifest),
                assignments={
                    operator: parts[index]
                    for operator, parts in epoch.assignments.items()
                    if operator in self.chain.operators
                },
                outlets=outlets,
                fed=fed,
            )
            reports, passed_on = yield from chain_processing(
                assembled.nodes, assembled.links, inlet, terms, mailbox.drain
            )
            worker.watched.raise_failure()
            for operator, outputs in outlets.items():
                for outlet in itertools.chain(*outputs.values()):
                    outlet.finish(passed_on[operator])
            if not (terms.barrier.then_stop or terms.is_stop):
                written = {part.operator: part.checkpoint.metadata for part in reports}
                worker.keep_chain(key, KeptChain(assembled, epoch.run, written))
                undoing.pop_all()
        return reports

    def _assemble(self) -> AssembledChain:
        """Build the chain on the epoch's parent."""
        graph, worker = self.job.graph, self.worker
        setting = ChainSetting(
            self.epoch.job, self.subtask, worker.registry, worker.clock, self._load_tables
        )
        nodes = [graph.node(operator) for operator in self.chain.operators]
        return AssembledChain(nodes, self.chain.links, setting)

    def _catch_up(self, kept: KeptChain) -> None:
        """Bring a kept chain to the epoch's parent."""
        for node in kept.chain.nodes:
            operator = node.task.operator
            restored = self.worker.operator_metadata(self.manifest, operator)
            node.tables.catch_up(self._environment(node.task), restored)
            is_current = kept.run == self.epoch.accepted_run and _same_files(
                kept.written.get(operator), restored.get(self.subtask.index)
            )
            if not is_current:
                # The operator is older than the epoch's parent.
                node.skip_epochs()

    def _load_tables(self, task: TaskInfo, specs: tuple[TableSpec, ...]) -> TableManager:
        return TableManager.load(
            self._environment(task),
            specs,
            self.worker.operator_metadata(self.manifest, task.operator),
            allow_dropped=self.epoch.allow_dropped_state,
        )

    def _environment(self, task: TaskInfo) -> TableEnvironment:
        worker = self.worker
        return TableEnvironment(
            task,
            self.epoch.generation,
            self.token,
            worker.watched,
            worker.cache,
            worker.memory_budget_bytes,
        )


def _same_files(written: Metadata | None, published: Metadata | None) -> bool:
    """Return whether what was written is what was published, apart from compactions."""
    if written is None:
        return published is None
    mine = dict(written.table_checkpoint_metadata)
    theirs = {} if published is None else dict(published.table_checkpoint_metadata)
    if mine.keys() != theirs.keys():
        return False
    lists = ((name, held, theirs[name]) for name, held in mine.items())
    return all(
        held == wanted
        or derive_missing(files_of(held, table=name), files_of(wanted, table=name)) == ()
        for name, held, wanted in lists
    )
