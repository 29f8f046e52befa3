"""Every timer fires exactly once when its clock passes it, unless it was cancelled before."""

from collections import Counter
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from penstock.state.tables.specs import TimeDomain
from tests.unit.operators.timer_cluster import Handle, Timer, TimerCluster

USERS = ["", "a", "b", "ü", None]
timers_chosen = st.lists(
    st.tuples(st.booleans(), st.sampled_from(USERS), st.integers(-5, 60)), max_size=6
)
Change = tuple[bool, str | None, int]
"""Set or cancel a timer."""


class TimerMachine(RuleBasedStateMachine):
    """Random histories of one operator's timers, next to a plain set of (key, due)."""

    domain: TimeDomain

    @initialize(parallelism=st.integers(1, 3))
    def start(self, parallelism: int) -> None:
        self.cluster = TimerCluster(self.domain, parallelism)
        self.model: set[Timer] = set()
        self.history = [set(self.model)]
        self.latest = 0

    @rule(
        changes=timers_chosen,
        answers=timers_chosen,
        late=timers_chosen,
        step=st.none() | st.integers(0, 12),
        warm=st.booleans(),
        is_torn=st.booleans(),
    )
    def run_epoch(
        self,
        *,
        changes: list[Change],
        answers: list[Change],
        late: list[Change],
        step: int | None,
        warm: bool,
        is_torn: bool,
    ) -> None:
        """Change timers among the rows, once while they fire, and behind that."""
        now = self._now(step)
        model = set(self.model)
        expected: Counter[Timer] = Counter()
        apply(model, changes)
        if take(model, now, expected):
            answers_of_all = answers if self.cluster.parallelism == 1 else []
            apply(model, answers_of_all)
            take(model, now, expected)
        apply(model, late)
        answered: list[bool] = []

        def answer(handle: Handle, _fired: list[Timer]) -> None:
            if not answered and self.cluster.parallelism == 1:
                answered.append(True)
                change(handle, answers)

        fired = self.cluster.run_epoch(
            now,
            lambda handle: change(handle, changes),
            on_fire=answer,
            at_end=lambda handle: change(handle, late),
            warm=warm,
            is_torn=is_torn,
        )
        assert Counter(fired) == expected
        assert self.cluster.has_fired() == bool(expected)
        self._check_next_due(model, now)
        if not is_torn:
            self.model = model
            self.history.append(set(model))

    @rule(parallelism=st.integers(1, 4))
    def rescale(self, parallelism: int) -> None:
        self.cluster.rescale(parallelism)

    @rule(back=st.integers(0, 3))
    def restore(self, back: int) -> None:
        self.cluster.restore(back)
        self.history = self.history[: max(1, len(self.history) - back)]
        self.model = set(self.history[-1])

    @rule()
    def compact(self) -> None:
        self.cluster.compact()

    def _now(self, step: int | None) -> int | None:
        """Event time goes back with a restore; processing time does not."""
        if self.domain is TimeDomain.PROCESSING_TIME:
            self.latest += step or 0
            return self.latest
        clock = self.cluster.clock
        return clock if step is None else (clock or 0) + step

    def _check_next_due(self, model: set[Timer], now: int | None) -> None:
        """What is past by now waits for the next instant of the clock."""
        waiting = [due if now is None else max(due, now + 1) for _, due in model]
        assert self.cluster.next_due() == min(waiting, default=None)


def apply(model: set[Timer], changes: list[Change]) -> None:
    for is_set, user, due in changes:
        (model.add if is_set else model.discard)((user, due))


def take(model: set[Timer], now: int | None, fired: Counter[Timer]) -> bool:
    due = {timer for timer in model if now is not None and timer[1] <= now}
    model -= due
    fired.update(due)
    return bool(due)


def change(handle: Handle, changes: list[Change]) -> None:
    for is_set, user, due in changes:
        (handle.set if is_set else handle.cancel)((user, due))


class EventTimeMachine(TimerMachine):
    domain = TimeDomain.EVENT_TIME


class ProcessingTimeMachine(TimerMachine):
    domain = TimeDomain.PROCESSING_TIME


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", [EventTimeMachine, ProcessingTimeMachine])
def test_long_histories_keep_every_law(kind: type[TimerMachine], seed: int) -> None:
    """Hypothesis leaves rules out to find small failures; here all of them mix."""
    random = Random(seed)
    machine = kind()
    machine.start(parallelism=random.randint(1, 3))

    def changes() -> list[Change]:
        base = max(machine.cluster.clock or 0, machine.latest)
        return [
            (random.random() < 0.7, random.choice(USERS), base + random.randint(-4, 25))
            for _ in range(random.randrange(5))
        ]

    for _ in range(60):
        action = random.randrange(10)
        if action < 7:
            machine.run_epoch(
                changes=changes(),
                answers=changes(),
                late=changes() if random.random() < 0.3 else [],
                step=random.choice([None, 0, random.randint(0, 8)]),
                warm=random.random() < 0.7,
                is_torn=random.random() < 0.2,
            )
        elif action == 7:
            machine.rescale(parallelism=random.randint(1, 4))
        elif action == 8:
            machine.compact()
        else:
            machine.restore(back=random.randint(0, 2))


TestEventTime = pytest.mark.slow(EventTimeMachine.TestCase)
TestProcessingTime = pytest.mark.slow(ProcessingTimeMachine.TestCase)
