"""No interleaving of drivers, users and faults breaks the protocol's promises.

The number of histories depends on the Hypothesis profile in force: `default` takes
seconds, `ci` explores more than 100,000, `nightly` more than a million. The count is printed.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from penstock.state.protocol.publication import publish_checkpoint
from penstock.state.protocol.reading import is_fenced
from penstock.state.protocol.records import Actor, Fenced
from penstock.state.protocol.steps import delete
from penstock.state.protocol.takeover import Recovered, TakenOver, take_over
from tests.builders.profile import a_start, by_profile
from tests.explorer.actors import JOB, RULES, Driver, Program, token_of
from tests.explorer.scenarios import LONG, SHORT
from tests.explorer.search import Budget, exhaust, sample, scatter
from tests.explorer.world import CommitSinks, World

PROFILE = by_profile("default", "ci", "nightly")
ENUMERATED = by_profile(default=40, ci=2_000, nightly=100_000)
SCATTERED = by_profile(default=40, ci=1_500, nightly=50_000)
SAMPLED = by_profile(default=80, ci=3_900, nightly=100_000)
PROMISED = by_profile(default=2_000, ci=100_000, nightly=1_000_000)
SCENARIOS = list(dict.fromkeys(scenario for scenario, _ in SHORT))
EVERY = by_profile(default=8, ci=1, nightly=1)
"""Of how many scenarios in turn one is enumerated to its end."""
NO_LIMIT = 1_000_000


def explore(kind: str, index: int) -> int:
    """Explore one scenario in one way; return the number of histories."""
    if kind == "enumerated":
        return sum(1 for _ in exhaust(*SHORT[index], ENUMERATED))
    if kind == "scattered":
        return sum(1 for _ in scatter(*SHORT[index], range(SCATTERED)))
    return sum(1 for _ in sample(*LONG[index], range(SAMPLED)))


def enumerate_all(index: int) -> int:
    """Enumerate a scenario to the end, with one switch and with one fault at every call."""
    scenario = SCENARIOS[index]
    return sum(
        sum(1 for _ in exhaust(scenario, budget, NO_LIMIT))
        for budget in (Budget(switches=1, faults=0), Budget(switches=0, faults=1))
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_history_with_one_switch_or_one_fault_breaks_an_invariant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ProcessPoolExecutor(max_workers=2) as pool:
        chosen = range(a_start(EVERY), len(SCENARIOS), EVERY)
        numbers = list(pool.map(enumerate_all, chosen))
    with capsys.disabled():
        print(  # noqa: T201 (the promise is a printed number)
            f"\nprotocol explorer: all {sum(numbers):,} histories of {len(numbers)} of "
            f"{len(SCENARIOS)} scenarios with one switch or one fault"
        )
    assert min(numbers) > 100


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_no_explored_history_breaks_an_invariant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    explored: Counter[str] = Counter()
    kinds = (
        ["sampled"] * len(LONG) + ["enumerated"] * len(SHORT) + ["scattered"] * len(SHORT)
    )
    indices = [*range(len(LONG)), *range(len(SHORT)), *range(len(SHORT))]
    with ProcessPoolExecutor(max_workers=2) as pool:
        for kind, number in zip(kinds, pool.map(explore, kinds, indices), strict=True):
            explored[kind] += number
    with capsys.disabled():
        print(  # noqa: T201 (the promise is a printed number)
            f"\nprotocol explorer ({PROFILE}): {explored.total():,} histories of "
            f"{len(SHORT) + len(LONG)} scenarios: "
            + ", ".join(f"{number:,} {kind}" for kind, number in sorted(explored.items()))
        )
    assert explored.total() >= PROMISED


class HastyDriver(Driver):
    """Commits the epoch it won although it sees that it was replaced."""

    def run(self) -> Program:
        actor = Actor(JOB, token_of("hasty"), 7, RULES)
        taken = yield from take_over(actor)
        if not isinstance(taken, TakenOver) or not isinstance(taken.decision, Recovered):
            return
        base = taken.decision.base
        manifest, _ = yield from self.write_epoch(
            taken.claim, base, taken.decision.next_epoch, []
        )
        outcome = yield from publish_checkpoint(taken.claim, manifest, base)
        if isinstance(outcome, Fenced) and outcome.acknowledged is not None:
            yield CommitSinks(outcome.acknowledged)


class CarelessDriver(Driver):
    """Deletes an old epoch's files without giving the epoch up first."""

    def run(self) -> Program:
        actor = Actor(JOB, token_of("careless"), 7, RULES)
        taken = yield from take_over(actor)
        newest = self.world.newest(JOB)
        assert newest is not None
        if isinstance(taken, Fenced) or (yield from is_fenced(taken.claim)):
            return
        for path in sorted(self.world.needed_by(newest.ref)):
            yield from delete(path)


def overtaken(planted: type[Driver]) -> Iterator[None]:
    def scenario(world: World) -> dict[str, Program]:
        return {
            "planted": planted("planted", world).run(),
            "new": Driver("new", world).run(),
        }

    for _ in exhaust(scenario, Budget(switches=2, faults=0), 5_000):
        yield


def test_the_explorer_finds_a_driver_that_commits_although_replaced() -> None:
    with pytest.raises(AssertionError, match="commits although fenced"):
        list(overtaken(HastyDriver))


def test_the_explorer_finds_a_driver_that_deletes_what_is_kept() -> None:
    with pytest.raises(AssertionError, match=r"deletes .* needs it"):
        list(overtaken(CarelessDriver))


def test_the_same_choices_give_the_same_history() -> None:
    scenario, budget = LONG[-1]
    first, again = (next(sample(scenario, budget, range(7, 8))).trace for _ in range(2))
    assert first == again
    assert len(first) > 100
