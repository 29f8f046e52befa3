"""Running histories: which actor steps next and which call fails is a list of choices.

A history is replayed from its choices alone, so a failing one can be run again by itself.
`exhaust` walks the tree of choices within a budget of switches and faults, `scatter` draws
from that tree evenly, and `sample` draws histories that switch and fail all the time. At
the end of each, a fresh driver of every job takes over without faults, publishes, collects,
and everything is checked.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import count

from penstock.errors import StorageError, UnknownOutcomeError
from penstock.state.protocol.steps import Create, Delete, ListPaths
from tests.explorer.actors import Driver, Program, tolerating
from tests.explorer.world import CommitSinks, World, WorldRequest


class Fault(Enum):
    NONE = "none"
    FAIL_BEFORE = "fail before"
    FAIL_AFTER = "fail after"
    LATE = "lands later"
    VERY_LATE = "lands last"
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
                Fault.VERY_LATE,
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
        for name, program in self.programs.items():
            with suppress(StopIteration):
                self.waiting[name] = next(program)
        current = next(iter(self.waiting), None)
        while current is not None:
            options = self._options(current)
            name, fault = options[self.choose(options)]
            self.switches -= name != current
            self.faults -= fault is not Fault.NONE
            self._step(name, fault)
            current = name if name in self.waiting else next(iter(self.waiting), None)
        self.world.land_very_late()
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
        program = self.programs[name]
        try:
            if fault is Fault.NONE or fault is Fault.STALE:
                answer = self._answer(name, request, stale=fault is Fault.STALE)
                self.waiting[name] = program.send(answer)
            elif fault is Fault.FAIL_BEFORE:
                self.waiting[name] = program.throw(StorageError("injected"))
            else:
                self._suffer(name, fault, request)
        except StopIteration:
            return

    def _suffer(self, name: str, fault: Fault, request: WorldRequest) -> None:
        """Let a process die, or lose the answer of a write that may have landed."""
        if fault is Fault.CRASH_BEFORE:
            return
        if fault is Fault.LATE or fault is Fault.VERY_LATE:
            assert isinstance(request, Create)
            late = self.world.late if fault is Fault.LATE else self.world.very_late
            late.append(request)
        else:
            self._answer(name, request)
        if fault is not Fault.CRASH_AFTER:
            self.waiting[name] = self.programs[name].throw(UnknownOutcomeError("injected"))

    def _answer(self, name: str, request: WorldRequest, *, stale: bool = False) -> object:
        answer = self.world.answer(name, request, stale=stale)
        if self.world.late and self.trace[-1][0] != self.trace[-2][0]:
            self.world.land_late()
        return answer

    def _finish(self) -> None:
        for job in list(self.world.first_records):
            name = f"last of {job}"
            driver = Driver(
                name, self.world, job=job, epochs=2, sweeps=True, takeovers=1, commits=True
            )
            _run_alone(self.world, name, driver.run())
            newest = self.world.newest(job)
            assert newest is not None
            assert newest.ref in self.world.acknowledged, f"{name} could not publish"
            chain = self.world.chain(job)
            for ref in chain[: min(2, self.world.keep_epochs)]:
                assert ref in self.world.committed, f"{ref} is kept and was never committed"
        self.world.check_whole()
        self.world.check_released()


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


def scatter(scenario: Scenario, budget: Budget, seeds: range) -> Iterator[History]:
    """Yield one history per seed that spends its whole budget at points drawn evenly.

    What `exhaust` would yield if it had the time, a fair draw of it: histories with few
    switches and faults, anywhere.
    """
    quiet = History(scenario, lambda _: 0, Budget(0, 0))
    _run(quiet, [])
    for seed in seeds:
        chance = random.Random(seed)
        points = range(len(quiet.trace))
        chosen = set(chance.sample(points, budget.switches + budget.faults))
        steps = count()

        def choose(options: list[tuple[str, Fault]]) -> int:
            if next(steps) not in chosen or len(options) == 1:  # noqa: B023
                return 0
            return chance.randrange(1, len(options))  # noqa: B023

        history = History(scenario, choose, budget)
        _run(history, [seed])
        yield history


def sample(scenario: Scenario, budget: Budget, seeds: range) -> Iterator[History]:
    """Yield one random history per seed."""
    for seed in seeds:
        chance = random.Random(seed)

        def choose(options: list[tuple[str, Fault]]) -> int:
            drawn = chance.random()  # noqa: B023
            if drawn < 0.85:
                return 0
            # Faults end actors, so most of the time another one just takes its turn.
            wanted = [
                index
                for index, (_, fault) in enumerate(options)
                if (fault is Fault.NONE) == (drawn < 0.98)
            ]
            return chance.choice(wanted or [0])  # noqa: B023

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
