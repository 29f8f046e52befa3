"""Reports: the control record in which a task says what it did.

A report is msgpack and never durable. What is durable in it, the checkpoint metadata of each
operator, travels in the form in which the driver publishes it. An error travels as data:
its class, code, context and text.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
from google.protobuf.message import DecodeError

from penstock import errors
from penstock.core.ids import OperatorId
from penstock.errors import ErrorCode, InternalError, PenstockError
from penstock.operators.nodes import OperatorReport
from penstock.state.checkpoints import Metadata
from penstock.state.storage.watched import NO_USAGE, StoreUsage
from penstock.state.tables.table_manager import SubtaskCheckpoint

Reports: TypeAlias = Mapping[tuple[OperatorId, int], OperatorReport]
"""What all subtasks of all operators did in one run of an epoch, by operator and subtask."""


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
    operators: tuple[OperatorReport, ...] = ()
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
    operators = tuple(_without_known(operator) for operator in report.operators)
    return _encoder.encode(msgspec.structs.replace(report, operators=operators))


def _without_known(report: OperatorReport) -> OperatorReport:
    done = report.checkpoint
    if done.changed and done.metadata.table_configs:
        return report
    unchanged = SubtaskCheckpoint(Metadata(), False, done.bytes_written)  # noqa: FBT003
    return msgspec.structs.replace(report, checkpoint=unchanged)


def decode_report(data: Any) -> TaskReport:
    """Decode a report; one that cannot be decoded means that driver and worker differ."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, DecodeError) as error:
        raise InternalError(
            f"a task sent a report that cannot be read ({error}): driver and workers must run "
            "the same version of Penstock"
        ) from error


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
