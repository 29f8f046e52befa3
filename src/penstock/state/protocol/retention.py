"""Which epochs are kept: pins, and what may be collected. Decisions only; pure.

All decisions are transitions of one value, the newest `RetentionRecord`. Whoever wants a
change reads it, decides, and creates the next number; losing that race means deciding
anew. So a pin and a collection of the same epoch can never both succeed, whichever
process asks and however stale its listing is.

An epoch is kept iff it is acknowledged and its number is at least `collected_before`, or
it is pinned. Epochs abandoned by a restore keep their numbers and go with their
neighbours: a restore can be undone for as long as any other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from penstock.core.ids import Epoch, SavepointName
from penstock.state.protocol.records import CheckpointRef, Pin, RetentionRecord

MAX_COLLECTED_AT_ONCE = 256
"""How many epochs one collection gives up: bounds its work after a long pause."""


@dataclass(frozen=True, slots=True)
class Change:
    """The next retention record says this; number, writer and time are the appender's."""

    pins: tuple[Pin, ...]
    collected_before: Epoch
    collecting: tuple[CheckpointRef, ...]


@dataclass(frozen=True, slots=True)
class Unchanged:
    """What was asked for is already so."""


@dataclass(frozen=True, slots=True)
class NameTaken:
    """The name pins another epoch, or this one for another reason."""

    pin: Pin


@dataclass(frozen=True, slots=True)
class Collected:
    """The epoch is given up: being collected, or gone."""


PinDecision: TypeAlias = Change | Unchanged | NameTaken | Collected


def is_kept(state: RetentionRecord, ref: CheckpointRef) -> bool:
    """Tell whether an acknowledged checkpoint is kept."""
    return ref.epoch >= state.collected_before or is_pinned(state, ref)


def is_pinned(state: RetentionRecord, ref: CheckpointRef) -> bool:
    """Tell whether any pin holds a checkpoint."""
    return any(pin.ref == ref for pin in state.pins)


def decide_pin(state: RetentionRecord, pin: Pin) -> PinDecision:
    """Say whether an acknowledged epoch can be pinned under a name."""
    held = find_pin(state, pin.name)
    if held is not None:
        same = (held.ref, held.kind) == (pin.ref, pin.kind)
        return Unchanged() if same else NameTaken(held)
    if not is_kept(state, pin.ref):
        return Collected()
    return Change((*state.pins, pin), state.collected_before, state.collecting)


def decide_unpin(state: RetentionRecord, name: SavepointName) -> Change | Unchanged:
    """Say what removing a pin means: an epoch only it kept is given up with it."""
    held = find_pin(state, name)
    if held is None:
        return Unchanged()
    rest = tuple(pin for pin in state.pins if pin.name != name)
    released = replace(state, pins=rest)
    collecting = state.collecting
    if not is_kept(released, held.ref) and held.ref not in collecting:
        collecting = (*collecting, held.ref)
    return Change(rest, state.collected_before, collecting)


def find_pin(state: RetentionRecord, name: SavepointName) -> Pin | None:
    """Return the pin of that name."""
    return next((pin for pin in state.pins if pin.name == name), None)


def decide_floor(
    state: RetentionRecord, canonical: Sequence[CheckpointRef], keep_epochs: int
) -> Epoch:
    """Return the lowest epoch number to keep.

    `canonical` is the chain from the newest epoch through its parents, newest first, as
    far as it was read. The floor rises to the oldest of the last `keep_epochs` of them,
    never falls, and stays while fewer are known. Parents below the floor count for
    nothing: they are pinned, or given up.
    """
    chain = [ref.epoch for ref in canonical if ref.epoch >= state.collected_before]
    if len(chain) < keep_epochs:
        return state.collected_before
    floor = chain[keep_epochs - 1]
    return Epoch(min(floor, state.collected_before + MAX_COLLECTED_AT_ONCE))


def decide_collection(
    state: RetentionRecord,
    *,
    floor: Epoch,
    below_floor: Iterable[CheckpointRef],
    deleted: frozenset[CheckpointRef],
) -> Change | Unchanged:
    """Say what a collection gives up.

    `below_floor` are the acknowledged checkpoints from the old floor up to the new one;
    `deleted` those of `state.collecting` this driver has itself deleted in full. Others
    stay listed, because whoever gave them up may have died before deleting.
    """
    going = tuple(
        ref
        for ref in below_floor
        if not is_pinned(state, ref) and ref not in state.collecting
    )
    rest = tuple(ref for ref in state.collecting if ref not in deleted)
    change = Change(state.pins, floor, (*rest, *going))
    same = (state.pins, state.collected_before, state.collecting)
    return (
        Unchanged()
        if (change.pins, change.collected_before, change.collecting) == same
        else change
    )
