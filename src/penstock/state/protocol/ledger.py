"""The retention ledger: reading its newest record and appending the next."""

from penstock.core.ids import JobId, Token
from penstock.state.protocol import codec, paths
from penstock.state.protocol.reading import misplaced
from penstock.state.protocol.records import RetentionRecord
from penstock.state.protocol.retention import Change
from penstock.state.protocol.rules import ProtocolRules
from penstock.state.protocol.sequences import find_newest, waypoint_after
from penstock.state.protocol.steps import Steps, create_once, exists, read

FIRST_SEQUENCE = 1
_NOBODY = Token("0" * 32)


def read_retention(
    job: JobId, rules: ProtocolRules, *, seen: int | None = None
) -> Steps[RetentionRecord]:
    """Read the newest retention record; sequence 0 stands for a job that has none."""
    number = yield from find_newest(
        lambda sequence: paths.retention_path(job, sequence),
        first=FIRST_SEQUENCE,
        stride=rules.waypoint_stride,
        seen=seen or None,
    )
    if number is None:
        return RetentionRecord(job, 0, _NOBODY, 0)
    path = paths.retention_path(job, number)
    data = yield from read(path)
    if data is None:
        # Others appended a whole stride of records between the search and the read.
        return (yield from read_retention(job, rules, seen=number))
    record = codec.decode_retention(data, path)
    if (record.job, record.sequence) != (job, number):
        raise misplaced(path, f"retention record {record.sequence} of {record.job}")
    return record


def next_retention(
    state: RetentionRecord, change: Change, *, writer: Token, now_micros: int
) -> RetentionRecord:
    """Return the record that would make a change decided from `state`."""
    return RetentionRecord(
        job=state.job,
        sequence=state.sequence + 1,
        writer=writer,
        created_at_micros=now_micros,
        pins=change.pins,
        collected_before=change.collected_before,
        collecting=change.collecting,
    )


def append_retention(record: RetentionRecord, rules: ProtocolRules) -> Steps[bool]:
    """Append a record; False if somebody else may have been first.

    False means: read the ledger again and decide anew, which finds a change that was made
    after all. That a number could be created proves that it is the next one only while no
    later waypoint exists: below one, a sleeper may have filled a hole left by thinning.
    """
    path = paths.retention_path(record.job, record.sequence)
    existing = yield from create_once(path, codec.encode_retention(record))
    if existing is not None:
        return False
    later = waypoint_after(
        record.sequence, first=FIRST_SEQUENCE, stride=rules.waypoint_stride
    )
    return not (yield from exists(paths.retention_path(record.job, later)))
