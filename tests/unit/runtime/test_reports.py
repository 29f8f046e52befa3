import pytest

from penstock import errors
from penstock.core.ids import OperatorId
from penstock.core.watermark import InputWatermark
from penstock.errors import ErrorCode, ExternalError, InternalError, PenstockError
from penstock.operators.nodes import OperatorReport
from penstock.operators.operator import SourceFinishType
from penstock.operators.splits import SplitState
from penstock.runtime.plan.executor import (
    Receipt,
    TaskReport,
    decode_report,
    encode_report,
    from_error_part,
    to_error_part,
)
from penstock.state.proto.state_pb2 import OperatorCheckpointMetadata
from penstock.state.tables.table_manager import SubtaskCheckpoint


def a_report(*, changed: bool) -> OperatorReport:
    metadata = OperatorCheckpointMetadata()
    if changed:
        metadata.table_configs["counts"].SetInParent()
    return OperatorReport(
        OperatorId("op"),
        SubtaskCheckpoint(metadata, changed, 17),
        inputs=(InputWatermark(5), InputWatermark(None, idle=True)),
        rows_emitted={"main": 3},
        rows_taken=4,
        counters={"late": 1},
        wake_up_micros=99,
        has_fired=True,
        splits={"a": SplitState(offset={"file": 3}, ended=True)},
        finish=SourceFinishType.FINAL,
        bytes_read=8,
        has_more=True,
    )


@pytest.mark.parametrize("changed", [True, False])
def test_an_operators_report_survives_the_way_to_the_driver(changed: bool) -> None:
    report = a_report(changed=changed)
    task = TaskReport(1, 2, "token", (Receipt(0, 0, 1, "other"),), (report,))
    arrived = decode_report(encode_report(task))
    assert arrived == task
    assert arrived.is_whole
    assert arrived.operators[0] == report


def test_metadata_that_did_not_change_does_not_travel() -> None:
    known = OperatorCheckpointMetadata()
    known.table_configs["counts"].SetInParent()
    report = OperatorReport(OperatorId("op"), SubtaskCheckpoint(known, False, 17))
    arrived = decode_report(encode_report(TaskReport(1, 2, "token", (), (report,))))
    unchanged = SubtaskCheckpoint(OperatorCheckpointMetadata(), False, 17)
    assert arrived.operators[0].checkpoint == unchanged


KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, PenstockError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_keeps_class_code_context_and_notes(kind: type[PenstockError]) -> None:
    error = kind("what, where, what to do", code=ErrorCode.TORN_EPOCH, epoch=3)
    error.add_note("a sample")
    again = from_error_part(to_error_part(error))
    assert type(again) is kind
    assert (again.message, again.code) == (error.message, error.code)
    assert again.context == {"epoch": "3"}
    assert again.__notes__ == ["a sample"]


class RateLimitedError(ExternalError):
    """What a user's connector may well define."""


def test_a_users_own_class_of_error_arrives_as_the_one_it_is_a_kind_of() -> None:
    again = from_error_part(to_error_part(RateLimitedError("slow down")))
    assert type(again) is ExternalError
    assert again.message == "slow down"


def test_a_report_that_failed_was_torn_or_skipped_is_not_whole() -> None:
    part = to_error_part(InternalError("x"))
    assert not TaskReport(0, 0, "t", error=part).is_whole
    assert not TaskReport(0, 0, "t", torn="why").is_whole
    assert not TaskReport(0, 0, "t", is_skipped=True).is_whole


@pytest.mark.parametrize("data", [b"", b"\x00", b"nonsense", b"\x93\x01\x02\x03"])
def test_a_report_that_cannot_be_read_blames_the_versions(data: bytes) -> None:
    with pytest.raises(InternalError, match="the same version of Penstock"):
        decode_report(data)
