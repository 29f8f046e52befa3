"""`checkpoints`: a job's epochs, for people to look at, keep, branch, read and tidy up.

Looking claims nothing and disturbs nobody. What is pinned, branched and collected goes through the
ledger of the protocol, so it is safe beside a driver that runs. Only `restore` claims the job.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from penstock.api.epoch_list import (
    Collected,
    EpochList,
    Restored,
    Savepoint,
    StoredEpoch,
)
from penstock.api.stored_state import StoredState, read_parts, read_rows
from penstock.core.ids import (
    Epoch,
    JobId,
    OperatorId,
    SavepointName,
)
from penstock.core.settings import current
from penstock.errors import CorruptStateError, ErrorCode, StateError, did_you_mean
from penstock.runtime.driver.policies import Retention, RetentionLike, to_retention
from penstock.state.checkpoints import (
    EpochStatus,
    JobCheckpoints,
    Metadata,
)
from penstock.state.protocol.collection import CollectionDone, SweepDone
from penstock.state.protocol.records import (
    CheckpointRef,
    Fenced,
    Pin,
    PinKind,
    Ready,
)
from penstock.state.protocol.retention import Epochs, is_kept
from penstock.state.storage.urls import StorePlace, to_store
from penstock.state.tables.specs import TableSpec

_FIRST = datetime(1970, 1, 1, tzinfo=UTC)


def checkpoints(url: StorePlace, job: str, **store_options: Any) -> "Checkpoints":
    """Return the checkpoints of a job, to look at, pin, branch, read and collect.

    `url` is what `run` was given. Nothing is read yet.

    >>> import penstock as pen
    >>> p = pen.Pipeline("shop")
    >>> sales = p.read("sales", pen.list_source([{"user": "ada", "paid": 7}]))
    >>> sales.key_by("user").aggregate("spent", sum=pen.sum("paid")).write(
    ...     "out", pen.blackhole()
    ... )
    >>> status = p.run_in_process("memory:doctest-of-checkpoints")
    >>> shop = pen.checkpoints("memory:doctest-of-checkpoints", "shop")
    >>> [(epoch.epoch, epoch.steps) for epoch in shop.list()][-1]
    (1, ('sales', 'spent'))
    >>> shop.pin("before-upgrade").epoch == shop.list()[0].epoch
    True
    """
    return Checkpoints(JobCheckpoints(to_store(url, **store_options), JobId(job)))


class Checkpoints:
    """The epochs of one job. It keeps no claim: every method reads what is there at that moment.

    An `epoch` argument is a number, the name of a savepoint, or None for the newest.
    """

    def __init__(self, job: JobCheckpoints) -> None:
        self._job = job

    def __repr__(self) -> str:
        return f"<checkpoints of job {str(self._job.job)!r} in {self._job.store.url}>"

    def list(self) -> EpochList:
        """Return every epoch that is kept, newest first."""
        self._job.require_claim()
        pins = self._job.pins()
        cache: dict[str, Metadata] = {}
        found: list[tuple[EpochStatus, StoredState]] = []
        for status in self._job.epochs():
            stored = self._read_stored(status.record.ref, cache)
            if stored is not None:
                found.append((status, stored))
        older = [*(stored.files for _, stored in found[1:]), {}][: len(found)]
        return EpochList(
            str(self._job.job),
            [
                _to_epoch(status, stored, before, pins)
                for (status, stored), before in zip(found, older, strict=True)
            ],
        )

    def savepoints(self) -> tuple[Savepoint, ...]:
        """Return every name under which an epoch is kept, with those of branches and restores."""
        self._job.require_claim()
        return tuple(map(_to_savepoint, self._job.pins()))

    def pin(self, name: str, epoch: int | str | None = None) -> Savepoint:
        """Make a savepoint: keep an epoch under a name until it is unpinned.

        The newest epoch is the newest whose output is committed. Pinning the same epoch under
        the same name again is fine.
        """
        return _to_savepoint(self._job.pin(SavepointName(name), self._named(epoch)))

    def unpin(self, name: str, *, force: bool = False) -> None:
        """Remove a savepoint. The next collection deletes what only it kept.

        What a branch or a restore under way needs is refused, unless `force` says that there is
        no such job any more.
        """
        self._job.require_claim()
        pins = {str(pin.name): pin for pin in self._job.pins()}
        held = pins.get(name)
        if held is None:
            raise StateError(
                f"job {self._job.job!r} has no savepoint {name!r}"
                f"{did_you_mean(name, sorted(pins))}",
                code=ErrorCode.NOT_RESTORABLE,
                job=str(self._job.job),
            )
        if held.kind is not PinKind.SAVEPOINT and not force:
            who = (
                f"the branch {str(held.holder)!r}" if held.holder else "a restore under way"
            )
            raise StateError(
                f"{name!r} keeps epoch {held.ref.epoch} of job {self._job.job!r} for {who}, "
                "which could not go on without it. Nothing was changed; pass force=True if it "
                "does not exist any more",
                code=ErrorCode.NOT_RESTORABLE,
                job=str(self._job.job),
            )
        self._job.unpin(held.name)

    def branch(self, job: str, epoch: int | str | None = None) -> "Checkpoints":
        """Make another job that begins with an epoch of this one, and copies nothing.

        Run it as a pipeline of that name with the same checkpoint URL. Give its sinks folders of
        their own.
        """
        branch = JobId(job)
        self._job.branch(branch, self._named(epoch))
        return Checkpoints(JobCheckpoints(self._job.store, branch, self._job.clock))

    def restore(self, epoch: int | str, *, force: bool = False) -> Restored:
        """Have the next start of the job go on from an epoch, whatever was restored before.

        That start may still name the epoch which it restored before: this one counts.

        This claims the job: a driver that runs would stop. So it is refused if one may run,
        unless `force` is given. `restore=` of `run` does the same, but once.
        """
        plan = self._job.plan_restore(self._named(epoch))
        running = self._job.running()
        if running is not None and not force:
            raise StateError(
                f"a driver of job {self._job.job!r} (generation {running.generation}) has not "
                "said that it ended: it has died, or it still runs, and a restore would stop "
                "it. Nothing was changed; stop it first, or pass force=True",
                code=ErrorCode.NOT_RESTORABLE,
                job=str(self._job.job),
            )
        taken = self._job.take_over(restore=plan.ref, is_by_hand=True)
        if isinstance(taken, Fenced):
            raise StateError(
                f"a driver has claimed job {self._job.job!r} while epoch {plan.ref.epoch} was "
                "being restored, and may have gone on without it: stop it and try again",
                code=ErrorCode.NOT_RESTORABLE,
                job=str(self._job.job),
            )
        self._job.leave(taken.claim)
        return Restored(
            int(plan.ref.epoch), tuple(int(ref.epoch) for ref in plan.abandoned)
        )

    def collect(self, keep: RetentionLike | None = None) -> Collected:
        """Give up all epochs but those to keep, and delete what only they needed.

        `keep` is a number of epochs, an age such as "7d", or `pen.retention(…)`; without it the
        setting `keep_epochs` counts. Savepoints stay. A driver does this by itself while it
        runs; it is safe beside one.
        """
        rule = Retention() if keep is None else to_retention(keep)
        while True:
            claim = self._job.require_claim()
            done = self._job.collect(
                claim,
                keep_epochs=rule.epochs or current().keep_epochs,
                keep_micros=rule.age_micros,
            )
            if isinstance(done, CollectionDone) and not done.needs_origin:
                self._job.release_origin(claim)
            swept = done if isinstance(done, Fenced) else self._job.sweep(claim)
            if isinstance(swept, Fenced):
                continue  # a driver has claimed the job meanwhile
            deleted = swept.deleted_objects if isinstance(swept, SweepDone) else 0
            if not isinstance(done, CollectionDone):
                return Collected((), deleted)
            epochs = tuple(int(ref.epoch) for ref in done.given_up)
            return Collected(epochs, done.deleted_objects + deleted)

    def list_collectable(self, keep: RetentionLike | None = None) -> tuple[int, ...]:
        """Return the epochs that `collect` would give up now, oldest first. Changes nothing."""
        rule = Retention() if keep is None else to_retention(keep)
        going = self._job.plan_collection(
            self._job.require_claim(),
            keep_epochs=rule.epochs or current().keep_epochs,
            keep_micros=rule.age_micros,
        )
        return tuple(sorted(int(ref.epoch) for ref in going))

    def read(
        self,
        step: str,
        table: str,
        epoch: int | str | None = None,
        *,
        spec: TableSpec | None = None,
    ) -> pa.Table:
        """Return the rows of a step's table as an epoch has them: each key once, none expired.

        A table by key and value has the columns `key` and `value`. `spec` is the table's
        declaration; it is needed only if its state has versions, to migrate older files.
        """
        ref = self._find(epoch)
        while True:
            try:
                manifest = self._job.manifest(ref)
                return read_rows(self._job.store, manifest, OperatorId(step), table, spec)
            except CorruptStateError:
                # A driver that runs may have given the epoch up meanwhile.
                before, ref = ref, self._find(epoch)
                if ref == before:
                    raise

    def _read_stored(
        self, ref: CheckpointRef, cache: dict[str, Metadata]
    ) -> StoredState | None:
        """Return what an epoch holds; None if it was given up meanwhile."""
        try:
            parts = read_parts(self._job.store, self._job.manifest(ref), cache)
        except CorruptStateError:
            if is_kept(self._job.read_retention(), ref):
                raise
            return None
        return StoredState.of(parts)

    def _find(self, epoch: int | str | None) -> CheckpointRef:
        """Return the checkpoint to read; the newest may be one whose sinks still commit."""
        if epoch is not None:
            return self._job.plan_restore(self._named(epoch)).ref
        self._job.require_claim()
        newest = self._job.newest()
        if newest is None:
            raise self._no_epoch()
        return newest.ref

    def _named(self, epoch: int | str | None) -> Epochs:
        """Return the epoch that a user names; for None the newest that is committed."""
        self._job.require_claim()
        if isinstance(epoch, str):
            return Epochs(savepoint=SavepointName(epoch))
        if epoch is not None:
            return Epochs(Epoch(epoch))
        for status in self._job.epochs():
            if isinstance(status.status, Ready):
                return Epochs(status.record.ref.epoch)
        raise self._no_epoch()

    def _no_epoch(self) -> StateError:
        return StateError(
            f"job {self._job.job!r} has no epoch yet whose output is committed",
            code=ErrorCode.NOT_RESTORABLE,
            job=str(self._job.job),
        )


def _to_epoch(
    status: EpochStatus,
    stored: StoredState,
    before: Mapping[str, int],
    pins: tuple[Pin, ...],
) -> StoredEpoch:
    record = status.record
    new = (size for path, size in stored.files.items() if path not in before)
    return StoredEpoch(
        int(record.ref.epoch),
        _to_time(record.created_at_micros),
        isinstance(status.status, Ready),
        status.canonical is False,
        tuple(_to_savepoint(pin) for pin in pins if pin.ref == record.ref),
        stored.tables,
        sum(new),
    )


def _to_savepoint(pin: Pin) -> Savepoint:
    holder = None if pin.holder is None else str(pin.holder)
    made_at = _to_time(pin.created_at_micros)
    return Savepoint(str(pin.name), int(pin.ref.epoch), pin.kind.value, made_at, holder)


def _to_time(micros: int) -> datetime:
    return _FIRST + timedelta(microseconds=micros)
