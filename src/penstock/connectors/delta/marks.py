"""What versions of a Delta table say about the epochs of a sink, and which of them are its own. Pure.

A sink that was restored undoes the versions of abandoned epochs that are its own, under whatever
name they were written. Its beginning tells most of them: the first epoch of its state, and the name
that it had then. A restore to before that epoch makes the sink begin anew. So it has several lives,
which share no state:

    epoch    3    4    5         6       7       restore of 2    8       restore of 7    9
    step     out  out  renamed   table   table                   out                     table
    began    out@3 …                                             out@8                   out@3

A life that began in an abandoned epoch is one of the sink's if it shares a name with a life that
is known to be one, or if one of the two has undone versions of the other, as its mark tells. What
lives of another step are taken for its own by a name was written in abandoned epochs, too: it goes
in any case, and it makes no difference whether one of the two steps takes it out or both do.
"""

from collections.abc import Iterable, Sequence

import msgspec

from penstock.connectors.files.committed import EpochRange


class Began(msgspec.Struct, frozen=True):
    """The first epoch of a sink, and the app that it had then: a step may get another name."""

    app: str
    epoch: int

    @property
    def record(self) -> str:
        """The app under which the table records the sink's epochs, whatever its name is."""
        return f"{self.app}@{self.epoch}"


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a version says about the epoch that it holds: stored in its `commitInfo`."""

    app: str
    epoch: int
    """The epoch that the version records as committed."""
    undoes_for: int | None = None
    """The epoch before whose merge the version undoes abandoned ones; None if it undoes none, or
    merges or appends rows, too. Versions of older programs that only undo do not have it."""
    began: Began | None = None
    """What the sink keeps when its step is renamed. Versions of older programs do not have it."""
    undoes: tuple[Began, ...] = ()
    """The other lives of the sink of which it undoes versions. Versions of older programs do not
    tell them."""

    @property
    def belongs_to(self) -> int:
        """The epoch with which the version is undone, if that one is abandoned."""
        return self.epoch if self.undoes_for is None else self.undoes_for

    @property
    def names(self) -> set[str]:
        """The apps that the sink is known to have had."""
        return {self.app} if self.began is None else {self.app, self.began.app}

    def is_undone_after(self, epochs: EpochRange) -> bool:
        """Return whether the first epoch after a restore, which abandoned these, undoes it.

        That epoch is the end of the range. If it has undone abandoned epochs already, and died
        before its merge, that is undone, too: both cancel out, and there is nothing left to do.
        """
        start, end = epochs
        is_own = self.undoes_for == end
        return start <= self.belongs_to < end or is_own


class Lives:
    """All lives of one sink, as far as marks have told them. Used for one undoing."""

    def __init__(
        self, app: str, began: Began | None, abandoned: Sequence[EpochRange]
    ) -> None:
        """Begin with what the sink knows itself.

        `abandoned` are the epochs that restores have abandoned, as the sink's state knows them.
        """
        self._app, self._began, self._abandoned = app, began, abandoned
        self._names = {app} if began is None else {app, began.app}
        self._lives = set() if began is None else {began}

    def learn(self, marks: Iterable[Mark]) -> None:
        """Find more lives by marks, until nothing is added."""
        rest = {(mark.app, mark.began, mark.undoes): mark for mark in marks}
        while found := [key for key, mark in rest.items() if self._is_told_by(mark)]:
            for mark in map(rest.pop, found):
                self._names |= mark.names
                others = {mark.began, *mark.undoes}
                self._lives |= {b for b in others if b and self.is_abandoned(b.epoch)}

    def have(self, mark: Mark) -> bool:
        """Return whether the sink undoes a version, if its epoch is abandoned."""
        if mark.began is None or self._began is None:
            return mark.app == self._app
        return mark.began in self._lives

    def is_abandoned(self, epoch: int) -> bool:
        """Return whether a restore has abandoned an epoch, and none has brought it back."""
        return any(start <= epoch < end for start, end in self._abandoned)

    def come_after(self, mark: Mark, epochs: EpochRange) -> bool:
        """Return whether no version before this one can be of these epochs and of the sink.

        Of a sink that began anew after them any version of its job tells it: a job commits
        its epochs in their order.
        """
        is_anew = self._began is not None and self._began.epoch == epochs[1]
        is_told = self.have(mark) or mark.app == self._app
        is_told |= is_anew and _job_of(mark.app) == _job_of(self._app)
        return is_told and mark.belongs_to < epochs[0]

    def _is_told_by(self, mark: Mark) -> bool:
        if self._began is None or mark.began is None:
            return False
        if mark.began in self._lives:
            return True
        is_tied = not self._names.isdisjoint(mark.names)
        is_tied |= not self._lives.isdisjoint(mark.undoes)
        return is_tied and self.is_abandoned(mark.began.epoch)


def _job_of(app: str) -> tuple[str, ...]:
    """Return the part of an app's name that all steps of a job share, with its identity.

    >>> _job_of("penstock:shop:out:7f") == _job_of("penstock:shop:table:7f")
    True
    """
    return (*app.split(":")[:2], app.rpartition(":")[2])
