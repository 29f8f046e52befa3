"""Sweeping orphans: what no checkpoint refers to, left by failed attempts and lost epochs.

Works from a listing, which being stale can only make it delete less. Slots within the
adoption window of the newest epoch are left alone, because a driver that slept might
still publish from them; further down, any epoch that could refer to an orphan is taken.
"""

from dataclasses import dataclass
from typing import TypeAlias

from penstock.state.protocol import paths
from penstock.state.protocol.collection import NothingToCollect
from penstock.state.protocol.kept import Kept, Memory, read_kept
from penstock.state.protocol.ledger import FIRST_SEQUENCE, read_retention
from penstock.state.protocol.reading import is_fenced, read_newest_record, unless_fenced
from penstock.state.protocol.records import ClaimRecord, EpochRecord, RetentionRecord
from penstock.state.protocol.rules import ProtocolRules
from penstock.state.protocol.sequences import may_thin
from penstock.state.protocol.status import Fenced
from penstock.state.protocol.steps import Steps, delete, list_paths


@dataclass(frozen=True, slots=True)
class SweepDone:
    """What a sweep did."""

    deleted_objects: int


SweepOutcome: TypeAlias = SweepDone | NothingToCollect | Fenced


def sweep_orphans(
    claim: ClaimRecord, *, rules: ProtocolRules, memory: Memory
) -> Steps[SweepOutcome]:
    """Delete orphans and thin out old records. Safe to repeat after any error."""
    return (yield from unless_fenced(claim, _sweep(claim, rules, memory)))


def _sweep(claim: ClaimRecord, rules: ProtocolRules, memory: Memory) -> Steps[SweepOutcome]:
    state = yield from read_retention(claim.job, rules, seen=memory.sequence)
    newest = yield from read_newest_record(
        claim.job, rules, first=claim.first_epoch, seen=memory.newest
    )
    if newest is None:
        return NothingToCollect()
    kept = yield from read_kept(claim, state, newest, memory)
    horizon = newest.ref.epoch - rules.adoption_window
    doomed = []
    for path in (yield from list_paths(paths.generations_folder(claim.job))):
        slot = paths.slot_of(path)
        if slot is not None and slot.ref.epoch <= horizon and path not in kept.objects:
            doomed.append(path)
    doomed += yield from _superfluous_records(claim, state, newest, kept, rules)
    if (yield from is_fenced(claim.job, claim.generation)):
        return Fenced(claim.generation)
    for path in sorted(doomed, key=_deletion_order):
        yield from delete(path)
    return SweepDone(len(doomed))


def _deletion_order(path: str) -> tuple[int, str]:
    """Delete files, then metadata, then manifests: what names others outlives them."""
    return (2 if path.endswith("manifest.pb") else path.endswith(".metadata"), path)


def _superfluous_records(
    claim: ClaimRecord,
    state: RetentionRecord,
    newest: EpochRecord,
    kept: Kept,
    rules: ProtocolRules,
) -> Steps[list[str]]:
    """Return the epoch and retention records that finding the newest does not need."""
    needed = {paths.epoch_record_path(ref.job, ref.epoch) for ref in kept.refs}
    stride = rules.waypoint_stride
    doomed = []
    for path in (yield from list_paths(paths.epochs_folder(claim.job))):
        number = paths.number_of(path)
        if number is None or path in needed:
            continue
        if may_thin(
            number, first=claim.first_epoch, newest=newest.ref.epoch, stride=stride
        ):
            doomed.append(path)
    for path in (yield from list_paths(paths.retention_folder(claim.job))):
        number = paths.number_of(path)
        if number is not None and may_thin(
            number, first=FIRST_SEQUENCE, newest=state.sequence, stride=stride
        ):
            doomed.append(path)
    return doomed
