"""Running histories: which actor steps next and which call fails is a list of choices.

A history is replayed from its choices alone, so a failing one can be run again by itself.
`exhaust` walks the tree of choices within a budget of switches and faults; `sample` draws
long histories by seed. At the end of each, a fresh driver without faults takes over,
publishes, collects, and everything is checked.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache

from penstock.errors import StorageError, UnknownOutcomeError
from penstock.state.protocol.steps import Create, Delete, ListPaths
from tests.explorer.actors import Driver, Program, tolerating
from tests.explorer.world import CommitSinks, World, WorldRequest


class Fault(Enum):
    NONE = "none"
    FAIL_BEFORE = "fail before"
    FAIL_AFTER = "fail after"
    LATE = "lands later"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    STALE = "stale list"


@dataclass(frozen=True, slots=True)
class Budget:
    switches: int
    faults: int


Scenario = Callable[[World], dict[str, Program]]
Choose = Callable[[list[tuple[str, Fault]]], int]


def _faults_for(request: WorldRequest) -> list[Fault]:
    match request:
        case Create():
            return [
                Fault.FAIL_BEFORE,
                Fault.FAIL_AFTER,
                Fault.LATE,
                Fault.CRASH_BEFORE,
                Fault.CRASH_AFTER,
            ]
        case Delete() | CommitSinks():
            return [Fault.FAIL_BEFORE, Fault.CRASH_BEFORE, Fault.CRASH_AFTER]
        case ListPaths():
            return [Fault.FAIL_BEFORE, Fault.CRASH_BEFORE, Fault.STALE]
        case _:
            return [Fault.FAIL_BEFORE, Fault.CRASH_BEFORE]


class History:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, choose: Choose, budget: Budget) -> None:
        self.world = _past().copy()
        self.programs = {
            name: tolerating(run) for name, run in scenario(self.world).items()
        }
        self.choose = choose
        self.switches = budget.switches
        self.faults = budget.faults
        self.waiting: dict[str, WorldRequest] = {}
        self.trace: list[tuple[str, Fault, WorldRequest]] = []

    def run(self) -> None:
        """Step until nobody is left, then let a healthy driver take over and check."""
        for name in list(self.programs):
            self._advance(name, next)
        current = next(iter(self.waiting), None)
        while current is not None:
            options = self._options(current)
            name, fault = options[self.choose(options)]
            self.switches -= name != current
            self.faults -= fault is not Fault.NONE
            self._step(name, fault)
            current = name if name in self.waiting else next(iter(self.waiting), None)
        self.world.land_late()
        self.world.check_whole()
        self._finish()

    def _options(self, current: str) -> list[tuple[str, Fault]]:
        options = [(current, Fault.NONE)]
        if self.faults > 0:
            options += [(current, fault) for fault in _faults_for(self.waiting[current])]
        if self.switches > 0:
            options += [(name, Fault.NONE) for name in self.waiting if name != current]
        return options

    def _step(self, name: str, fault: Fault) -> None:
        request = self.waiting.pop(name)
        self.trace.append((name, fault, request))
        if fault is Fault.CRASH_BEFORE:
            return
        if fault is Fault.FAIL_BEFORE:
            self._advance(name, lambda program: program.throw(StorageError("injected")))
            return
        if fault is Fault.LATE:
            assert isinstance(request, Create)
            self.world.late.append(request)
            self._advance(
                name, lambda program: program.throw(UnknownOutcomeError("injected"))
            )
            return
        answer = self.world.answer(name, request, stale=fault is Fault.STALE)
        if self.world.late and self.trace[-1][0] != self.trace[-2][0]:
            self.world.land_late()
        if fault is Fault.CRASH_AFTER:
            return
        if fault is Fault.FAIL_AFTER:
            self._advance(
                name, lambda program: program.throw(UnknownOutcomeError("injected"))
            )
            return
        self._advance(name, lambda program: program.send(answer))

    def _advance(self, name: str, step: Callable[[Program], WorldRequest]) -> None:
        with suppress(StopIteration):
            self.waiting[name] = step(self.programs[name])

    def _finish(self) -> None:
        restored_before = self.world.restored
        driver = Driver("last", self.world, epochs=2, sweeps=True, takeovers=1)
        _run_alone(self.world, "last", driver.run())
        self.world.check_whole()
        newest = self.world.newest(driver.job)
        assert newest is not None
        assert newest.ref in self.world.acknowledged, "the last driver could not publish"
        for ref in self.world.chain(driver.job)[: self.world.keep_epochs]:
            assert ref in self.world.committed, f"{ref} is retained but was never committed"
        assert self.world.restored == restored_before


@cache
def _past() -> World:
    """What every history starts from: two epochs of a driver that has stopped."""
    world = World()
    _run_alone(world, "first", Driver("first", world, epochs=2, takeovers=1).run())
    return world


def _run_alone(world: World, name: str, program: Program) -> None:
    try:
        request = next(program)
        while True:
            request = program.send(world.answer(name, request))
    except StopIteration:
        return


def exhaust(scenario: Scenario, budget: Budget, limit: int) -> Iterator[History]:
    """Yield every history within the budget, up to `limit` of them."""
    prefix: list[int] = []
    for _ in range(limit):
        path: list[int] = []
        widths: list[int] = []

        def choose(options: list[tuple[str, Fault]]) -> int:
            index = len(path)  # noqa: B023 (used within this turn only)
            choice = prefix[index] if index < len(prefix) else 0  # noqa: B023
            path.append(choice)  # noqa: B023
            widths.append(len(options))  # noqa: B023
            return choice

        history = History(scenario, choose, budget)
        _run(history, path)
        yield history
        while path and path[-1] + 1 == widths[len(path) - 1]:
            path.pop()
        if not path:
            return
        prefix = [*path[:-1], path[-1] + 1]


def sample(scenario: Scenario, budget: Budget, seeds: range) -> Iterator[History]:
    """Yield one random history per seed."""
    for seed in seeds:
        chance = random.Random(seed)

        def choose(options: list[tuple[str, Fault]]) -> int:
            if chance.random() < 0.8:  # noqa: B023
                return 0
            return chance.randrange(len(options))  # noqa: B023

        history = History(scenario, choose, budget)
        _run(history, [seed])
        yield history


def _run(history: History, choices: list[int]) -> None:
    try:
        history.run()
    except BaseException as error:
        lines = [
            f"{name:12} {fault.value:12} {request}"[:200]
            for name, fault, request in history.trace
        ]
        error.add_note("choices: " + " ".join(map(str, choices)))
        error.add_note("\n".join(lines))
        raise
