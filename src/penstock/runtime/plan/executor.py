"""Executor: the contract of what runs the tasks of an epoch, and the reports that they send.

All implementations pass one contract suite; the in-process one is the specification.

A report is msgpack and never durable. What is durable in it, the checkpoint metadata of each
operator, travels in the form in which the driver publishes it. An error travels as data:
its class, code, context and text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec
from google.protobuf.message import DecodeError

from penstock import errors
from penstock.core.clock import new_token
from penstock.core.ids import Epoch, Generation, JobId, OperatorId, TaskInfo
from penstock.errors import ErrorCode, ExternalError, InternalError, PenstockError
from penstock.graph.logical import OperatorSpec
from penstock.operators.context import CommitPart
from penstock.operators.nodes import OperatorReport
from penstock.operators.worker_output import OutputLine
from penstock.runtime.plan.epoch_plan import EpochPlan
from penstock.runtime.plan.physical import PhysicalPlan
from penstock.state.checkpoints import Metadata
from penstock.state.files.cache import FileCache
from penstock.state.proto.state_pb2 import TableCheckpointMetadata
from penstock.state.protocol.records import CheckpointManifest
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.watched import NO_USAGE, StoreUsage
from penstock.state.tables.operator_tables import TableCompaction, run_compactions
from penstock.state.tables.table import CompactionConfig, TableEnvironment
from penstock.state.tables.table_manager import SubtaskCheckpoint

Reports: TypeAlias = Mapping[tuple[OperatorId, int], OperatorReport]
"""The reports of one run of an epoch, by operator and subtask."""


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """The attempt of a producer that a task consumed on an edge."""

    edge: int
    level: int
    task: int
    token: str


class ErrorPart(msgspec.Struct, frozen=True, array_like=True):
    """An error as data; its notes hold the sample and the traceback."""

    kind: str
    message: str
    code: str
    context: dict[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeySample:
    """About how many rows of each of the most frequent keys went through an exchange."""

    source: str
    target: str
    """The operator that reads the rows."""
    rows: int
    """How many rows went through it."""
    rows_by_key: Mapping[str, int]
    """Estimated from a sample, the most frequent key first. Keys are shown as text."""


class TaskReport(msgspec.Struct, frozen=True, array_like=True):
    """What one attempt of one task did."""

    level: int
    task: int
    token: str
    receipts: tuple[Receipt, ...] = ()
    operators: tuple[OperatorReport, ...] = ()
    error: ErrorPart | None = None
    """A failure that running the epoch again would not cure by itself."""
    torn: str | None = None
    """Why the input was not what one attempt of each producer sent; None if it was."""
    is_skipped: bool = False
    """A producer failed, so the task did nothing."""
    usage: StoreUsage = NO_USAGE
    output: tuple[OutputLine, ...] = ()
    """What user code printed and logged, where this is not the driver's process."""
    keys: tuple[KeySample, ...] = ()
    """One for each exchange by key that it sent rows to, in an epoch that samples keys."""

    @property
    def is_whole(self) -> bool:
        """Return whether the task did all of its work."""
        return self.error is None and self.torn is None and not self.is_skipped


def _to_wire(value: Any) -> Any:
    if isinstance(value, Metadata):
        return value.SerializeToString()
    if isinstance(value, str):  # a validated name
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be part of a report")


def _from_wire(kind: type[Any], value: Any) -> Any:
    return kind.FromString(value) if kind is Metadata else kind(value)


_OURS = PenstockError.__module__
_encoder = msgspec.msgpack.Encoder(enc_hook=_to_wire)
_decoder = msgspec.msgpack.Decoder(TaskReport, dec_hook=_from_wire)


def encode_report(report: TaskReport) -> bytes:
    """Encode a report, without metadata that the parent's objects still hold."""
    operators = []
    for operator in report.operators:
        done = operator.checkpoint
        if not done.changed or not done.metadata.table_configs:
            done = SubtaskCheckpoint(Metadata(), False, done.bytes_written)  # noqa: FBT003 (a record, its fields in order)
        operators.append(msgspec.structs.replace(operator, checkpoint=done))
    return _encoder.encode(msgspec.structs.replace(report, operators=tuple(operators)))


def decode_report(data: Any) -> TaskReport:
    """Decode a report; an error means that driver and worker have different versions."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, DecodeError) as error:
        raise InternalError(
            f"a task sent a report that cannot be read ({error}): driver and workers must run "
            "the same version of Penstock"
        ) from error


def to_error_part(error: PenstockError) -> ErrorPart:
    """Return an error as data; a user's subclass travels as its nearest class of Penstock."""
    known = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == _OURS)
    return ErrorPart(
        next(known),
        error.message,
        error.code.value,
        {name: str(value) for name, value in error.context.items()},
        tuple(getattr(error, "__notes__", ())),
    )


def from_error_part(part: ErrorPart) -> PenstockError:
    """Return the error again, of its own class."""
    kind: type[PenstockError] = getattr(errors, part.kind)
    context: dict[str, Any] = dict(part.context)
    error = kind(part.message, code=ErrorCode(part.code), **context)
    for note in part.notes:
        error.add_note(note)
    return error


def cancelled_error(job: JobId, what: str = "an epoch") -> ExternalError:
    """Return the error of what was given up on request."""
    left = "nothing of it was published"
    if what != "an epoch":
        left = "its epoch is acknowledged, and is committed again at the next start"
    return ExternalError(
        f"{what} of job {job!r} was cancelled: {left}",
        code=ErrorCode.ENGINE_FAILED,
        job=str(job),
    )


@dataclass(frozen=True, slots=True)
class CompactionOrder:
    """The merges of one subtask, planned by the driver and run while epochs go on."""

    task: TaskInfo
    generation: Generation
    config: CompactionConfig
    tables: tuple[TableCompaction, ...]

    @property
    def due_bytes(self) -> int:
        """The total size of the files to merge."""
        return sum(table.plan.size_bytes for table in self.tables)

    def run(self, store: ObjectStore, cache: FileCache) -> "CompactionResult":
        """Merge as planned, as a new attempt."""
        environment = TableEnvironment(
            self.task, self.generation, new_token(), store, cache
        )
        done = run_compactions(self.tables, environment, self.config)
        return CompactionResult(self.task.operator, done)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """New files by table, which a later epoch swaps in."""

    operator: OperatorId
    tables: dict[str, TableCheckpointMetadata]


@dataclass(frozen=True, slots=True)
class CommitOrder:
    """One part of the commit of an acknowledged epoch; any process may run it, also again."""

    task: TaskInfo
    """The operator; its subtask is the number of the part among those of the operator."""
    spec: OperatorSpec
    generation: Generation
    epoch: Epoch
    identity: str
    """That of the job, as in `CommitContext`."""
    part: CommitPart


class PartReport(msgspec.Struct, frozen=True, array_like=True):
    """What became of one part of a commit."""

    error: ErrorPart | None = None
    output: tuple[OutputLine, ...] = ()
    """What user code printed and logged, where this is not the driver's process."""


class Executor(Protocol):
    """Runs tasks. It raises failures of storage or engine; the driver decides what follows."""

    def run_epoch(
        self, job: PhysicalPlan, epoch: EpochPlan, parent: CheckpointManifest | None
    ) -> Sequence[TaskReport]:
        """Run all supersteps once and return every report that came back.

        The reports may not belong together: the driver checks them. `parent` is the manifest
        that the plan names, for executors that can save workers the read. An executor that
        can cancel tasks does so when the plan's deadline has passed, and raises the error of
        sources that overran.
        """
        ...

    def commit(self, orders: Sequence[CommitOrder]) -> Sequence[PartReport]:
        """Run all parts of a commit and return a report of each, in their order.

        A part may run more than once, also at the same time. Errors of parts are in their
        reports; what is raised is a failure of the engine, or that `cancel` was called.
        """
        ...

    def compact(self, orders: Sequence[CompactionOrder]) -> None:
        """Start compactions; never waits for them."""
        ...

    @property
    def is_compacting(self) -> bool:
        """Return whether a compaction is under way, or done and not taken yet.

        Meanwhile nothing is ordered, because the same merges would be ordered again.
        """
        ...

    def compacted(self, *, wait: bool = False) -> Sequence[CompactionResult]:
        """Return each result once, as soon as it is done; `wait` for all that are started."""
        ...

    def forget_compactions(self) -> None:
        """Drop what is started or done, because the job goes on from another checkpoint."""
        ...

    def cancel(self) -> None:
        """Give up the epoch or commit under way, soon: its call raises. For any thread.

        No epoch is run afterwards, and no part of a commit is begun.
        """
        ...

    def recover(self) -> None:
        """Prepare for epochs after a failure: an engine that has ended is started again."""
        ...

    def close(self) -> None:
        """Stop for good, within seconds; chains are released."""
        ...
