"""Reports: the control record by which a task tells the driver what it did.

msgpack, never durable. What is durable in it, the checkpoint metadata of each operator, is
already in the form in which the driver publishes it. An error is data: class, code, text.
"""

from typing import Any

import msgspec

from penstock import errors
from penstock.core.ids import OperatorId
from penstock.core.watermark import InputWatermark
from penstock.errors import ErrorCode, InternalError, PenstockError
from penstock.operators.nodes import OperatorReport
from penstock.operators.source import SourceFinishType
from penstock.operators.splits import SplitState
from penstock.state.proto.state_pb2 import OperatorCheckpointMetadata
from penstock.state.storage.watched import NO_USAGE, StoreUsage
from penstock.state.tables.table_manager import SubtaskCheckpoint


class WatermarkPart(msgspec.Struct, frozen=True, array_like=True):
    """An `InputWatermark` on the wire."""

    event_time_micros: int | None
    idle: bool


class OperatorPart(msgspec.Struct, frozen=True, array_like=True):
    """One operator of the task's chain."""

    operator: str
    metadata: bytes
    """Empty if the parent's metadata object still holds."""
    bytes_written: int
    watermarks: tuple[WatermarkPart, ...]
    rows_emitted: dict[str, int]
    rows_taken: int
    counters: dict[str, int]
    wake_up_micros: int | None
    has_fired: bool
    splits: dict[str, SplitState]
    finish: str | None
    bytes_read: int
    has_more: bool


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """Which attempt of a producer was consumed on an edge."""

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


class TaskReport(msgspec.Struct, frozen=True, array_like=True):
    """What one attempt of one task did."""

    level: int
    task: int
    token: str
    receipts: tuple[Receipt, ...] = ()
    operators: tuple[OperatorPart, ...] = ()
    error: ErrorPart | None = None
    """A failure that running the epoch again would not cure by itself."""
    torn: str | None = None
    """Why the input was not what one attempt of each producer sent."""
    is_skipped: bool = False
    """A producer failed, so nothing was done."""
    usage: StoreUsage = NO_USAGE

    @property
    def is_whole(self) -> bool:
        """Tell whether the task did all of its work."""
        return self.error is None and self.torn is None and not self.is_skipped


_OURS = PenstockError.__module__
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TaskReport)


def encode_report(report: TaskReport) -> bytes:
    """Encode a report."""
    return _encoder.encode(report)


def decode_report(data: Any) -> TaskReport:
    """Decode a report; one that cannot be decoded means that driver and worker differ."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise InternalError(
            f"a task sent a report that cannot be read ({error}): driver and workers must run "
            "the same version of Penstock"
        ) from error


def to_part(report: OperatorReport) -> OperatorPart:
    """Return an operator's report in wire form."""
    done = report.checkpoint
    has_tables = bool(done.metadata.table_configs)
    return OperatorPart(
        str(report.operator),
        done.metadata.SerializeToString() if done.changed and has_tables else b"",
        done.bytes_written,
        tuple(
            WatermarkPart(known.event_time_micros, known.idle) for known in report.inputs
        ),
        dict(report.rows_emitted),
        report.rows_taken,
        dict(report.counters),
        report.wake_up_micros,
        report.has_fired,
        dict(report.splits),
        None if report.finish is None else report.finish.value,
        report.bytes_read,
        report.has_more,
    )


def from_part(part: OperatorPart) -> OperatorReport:
    """Return what a task reported about one operator."""
    metadata = OperatorCheckpointMetadata.FromString(part.metadata)
    return OperatorReport(
        OperatorId(part.operator),
        SubtaskCheckpoint(metadata, bool(part.metadata), part.bytes_written),
        inputs=tuple(InputWatermark(w.event_time_micros, w.idle) for w in part.watermarks),
        rows_emitted=part.rows_emitted,
        rows_taken=part.rows_taken,
        counters=part.counters,
        wake_up_micros=part.wake_up_micros,
        has_fired=part.has_fired,
        splits=part.splits,
        finish=None if part.finish is None else SourceFinishType(part.finish),
        bytes_read=part.bytes_read,
        has_more=part.has_more,
    )


def to_error_part(error: PenstockError) -> ErrorPart:
    """Return an error as data; a class of the user's own travels as ours that it is a kind of."""
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
