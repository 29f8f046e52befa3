"""Chaos: how an exchange misbehaves on purpose, as engines do after failures. By seed.

| mischief | what an engine does |
|---|---|
| repeat | a task ran twice (speculation) and both outputs were kept |
| retry | a task ran twice and only the second output was kept |
| lose | some records of a task's output are gone |
| duplicate | some records arrive twice |
| recompute | consumers of one task read two different attempts of it |
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from penstock.runtime.wire import Record

RunTask: TypeAlias = Callable[[int], list[Record]]


class Mischief(StrEnum):
    """What goes wrong with one task."""

    REPEAT = "repeat"
    RETRY = "retry"
    LOSE = "lose"
    DUPLICATE = "duplicate"
    RECOMPUTE = "recompute"


@dataclass
class Chaos:
    """Decides by seed which tasks go wrong and how; harmless with a rate of 0."""

    rate: float = 0.0
    seed: int = 0
    kinds: tuple[Mischief, ...] = tuple(Mischief)
    done: list[tuple[int, int, Mischief]] = field(default_factory=list)
    """What was done so far: level, task, mischief."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 (an order, not a secret)

    def run_level(
        self, level: int, tasks: Iterable[int], run: RunTask
    ) -> Iterator[list[Record]]:
        """Run the tasks of a level and return the outputs that the exchange keeps."""
        for task in tasks:
            if self.rate == 0 or self._random.random() >= self.rate:
                yield run(task)
                continue
            mischief = self._random.choice(self.kinds)
            self.done.append((level, task, mischief))
            yield from self._misbehave(mischief, task, run)

    def _misbehave(
        self, mischief: Mischief, task: int, run: RunTask
    ) -> Iterator[list[Record]]:
        first = run(task)
        match mischief:
            case Mischief.REPEAT:
                yield first
                yield run(task)
            case Mischief.RETRY:
                yield run(task)
            case Mischief.LOSE:
                yield [record for record in first if self._random.random() < 0.7]
            case Mischief.DUPLICATE:
                yield [
                    record
                    for record in first
                    for _ in range(1 + (self._random.random() < 0.3))
                ]
            case Mischief.RECOMPUTE:
                yield from self._recompute(first, run(task))

    def _recompute(
        self, first: list[Record], second: list[Record]
    ) -> Iterator[list[Record]]:
        """Let each consumer read one of the two attempts."""
        routes = sorted({record.route for record in (*first, *second)})
        reads_second = {route for route in routes if self._random.random() < 0.5}
        yield [record for record in first if record.route not in reads_second]
        yield [record for record in second if record.route in reads_second]


NO_CHAOS = Chaos()
