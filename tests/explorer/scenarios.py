"""The histories worth exploring: who takes part, by name."""

from penstock.core.ids import JobId
from tests.explorer.actors import Branching, CollectingUser, Driver, PinningUser, Program
from tests.explorer.search import Budget, Scenario
from tests.explorer.world import World


def two_drivers(world: World) -> dict[str, Program]:
    """An old driver that may sleep anywhere, and its successor."""
    return {
        "old": Driver("old", world, collects=False).run(),
        "new": Driver("new", world).run(),
    }


def two_collectors(world: World) -> dict[str, Program]:
    """Both collect, so a sleeping one wakes up with an old plan."""
    return {
        "old": Driver("old", world, epochs=2).run(),
        "new": Driver("new", world, epochs=2).run(),
    }


def restore_against_zombie(world: World) -> dict[str, Program]:
    """Somebody restores the first epoch while a driver runs and collects."""
    world.keep_epochs = 1
    return {
        "old": Driver("old", world, epochs=2).run(),
        "restoring": Driver("restoring", world, restore=2, epochs=1).run(),
    }


def pin_against_collection(world: World) -> dict[str, Program]:
    """Somebody pins an epoch that a driver is about to give up."""
    world.keep_epochs = 1
    return {
        "driver": Driver("driver", world, epochs=2).run(),
        "pin": PinningUser("pin", world, epoch=2, releases=False).run(),
    }


def collection_by_hand(world: World) -> dict[str, Program]:
    """Somebody collects beside a driver that collects, too."""
    world.keep_epochs = 1
    return {
        "driver": Driver("driver", world, epochs=3, sweeps=True).run(),
        "collecting": CollectingUser("collecting", world).run(),
    }


def pin_and_unpin(world: World) -> dict[str, Program]:
    """Two users pin and let go of the same epoch."""
    world.keep_epochs = 1
    return {
        "driver": Driver("driver", world).run(),
        "keeping": PinningUser("keeping", world, epoch=2, releases=False).run(),
        "leaving": PinningUser("leaving", world, epoch=2).run(),
    }


def branch_against_collection(world: World) -> dict[str, Program]:
    """A branch is made and outgrows its origin, which collects meanwhile."""
    world.keep_epochs = 1
    return {
        "driver": Driver("driver", world, epochs=2).run(),
        "branch": Branching("branch", world, epochs=3).run(),
    }


def three_drivers(world: World) -> dict[str, Program]:
    """A zombie, its successor, and the successor of that."""
    return {
        "zombie": Driver("zombie", world, epochs=2, sweeps=True).run(),
        "second": Driver("second", world, sweeps=True).run(),
        "third": Driver("third", world, sweeps=True).run(),
    }


def pin_against_thinning(world: World) -> dict[str, Program]:
    """Somebody is slow to pin while the ledger grows past a waypoint and is thinned out."""
    world.keep_epochs = 1
    return {
        "driver": Driver("driver", world, epochs=6, sweeps=True).run(),
        "pin": PinningUser("pin", world, releases=False).run(),
    }


def two_restores(world: World) -> dict[str, Program]:
    """Two people restore different epochs at once, and the job was running."""
    return {
        "running": Driver("running", world, collects=False).run(),
        "one": Driver("one", world, restore=1).run(),
        "two": Driver("two", world, restore=2).run(),
    }


def same_restore_twice(world: World) -> dict[str, Program]:
    """Two starts of one program ask for the same restore at once, and the job was running."""
    world.restored_once = 1
    return {
        "one": Driver("one", world, restore=1).run(),
        "running": Driver("running", world, collects=False).run(),
        "two": Driver("two", world, restore=1).run(),
    }


def restore_and_undo(world: World) -> dict[str, Program]:
    """A restore, then a restore of what it abandoned, over a collecting zombie."""
    world.keep_epochs = 3
    return {
        "back": Driver("back", world, restore=1).run(),
        "undo": Driver("undo", world, restore=2, epochs=2, sweeps=True).run(),
    }


def same_branch_twice(world: World) -> dict[str, Program]:
    """Two people make the same branch at once, over a driver that collects."""
    world.keep_epochs = 1
    return {
        "one": Branching("branch", world, user="one").run(),
        "driver": Driver("driver", world).run(),
        "two": Branching("branch", world, user="two").run(),
    }


def branch_of_a_branch(world: World) -> dict[str, Program]:
    """A branch of a branch outlives both, which collect meanwhile."""
    world.keep_epochs = 1
    return {
        "branch": Branching("branch", world).run(),
        "twig": Branching("twig", world, origin=JobId("branch"), epochs=3).run(),
        "branch-again": Driver("again", world, job=JobId("branch"), epochs=3).run(),
        "driver": Driver("driver", world, epochs=2).run(),
    }


def stubborn_drivers(world: World) -> dict[str, Program]:
    """Drivers that go on after storage errors, with what they remember."""
    return {
        "old": Driver("old", world, epochs=4, sweeps=True, stubborn=True).run(),
        "new": Driver("new", world, epochs=4, sweeps=True, stubborn=True).run(),
        "leaving": PinningUser("leaving", world).run(),
    }


def everything(world: World) -> dict[str, Program]:
    """All at once, for long random histories."""
    return {
        "zombie": Driver("zombie", world, epochs=4, sweeps=True).run(),
        "second": Driver("second", world, epochs=4, sweeps=True, commits=False).run(),
        "restoring": Driver("restoring", world, restore=2, epochs=2, sweeps=True).run(),
        "pin": PinningUser("pin", world, releases=False).run(),
        "leaving": PinningUser("leaving", world).run(),
        "collecting": CollectingUser("collecting", world).run(),
        "branch": Branching("branch", world, epochs=3).run(),
    }


SHORT: list[tuple[Scenario, Budget]] = [
    (two_drivers, Budget(switches=2, faults=0)),
    (two_drivers, Budget(switches=1, faults=1)),
    (two_collectors, Budget(switches=2, faults=0)),
    (two_collectors, Budget(switches=1, faults=1)),
    (restore_against_zombie, Budget(switches=2, faults=0)),
    (restore_against_zombie, Budget(switches=1, faults=1)),
    (pin_against_collection, Budget(switches=2, faults=0)),
    (pin_against_collection, Budget(switches=1, faults=1)),
    (pin_against_thinning, Budget(switches=2, faults=0)),
    (pin_against_thinning, Budget(switches=1, faults=1)),
    (collection_by_hand, Budget(switches=2, faults=0)),
    (collection_by_hand, Budget(switches=1, faults=1)),
    (pin_and_unpin, Budget(switches=2, faults=0)),
    (branch_against_collection, Budget(switches=2, faults=0)),
    (branch_against_collection, Budget(switches=1, faults=1)),
    (same_branch_twice, Budget(switches=2, faults=0)),
    (branch_of_a_branch, Budget(switches=1, faults=1)),
    (three_drivers, Budget(switches=2, faults=0)),
    (two_restores, Budget(switches=2, faults=0)),
    (same_restore_twice, Budget(switches=2, faults=0)),
    (same_restore_twice, Budget(switches=1, faults=1)),
    (restore_and_undo, Budget(switches=1, faults=1)),
    (stubborn_drivers, Budget(switches=1, faults=1)),
]
"""Histories with few switches and faults: enumerated, or drawn evenly where too many."""
LONG: list[tuple[Scenario, Budget]] = [
    (two_collectors, Budget(switches=20, faults=3)),
    (restore_against_zombie, Budget(switches=20, faults=3)),
    (pin_against_thinning, Budget(switches=20, faults=3)),
    (collection_by_hand, Budget(switches=20, faults=3)),
    (same_branch_twice, Budget(switches=20, faults=2)),
    (branch_of_a_branch, Budget(switches=30, faults=3)),
    (three_drivers, Budget(switches=30, faults=4)),
    (two_restores, Budget(switches=30, faults=4)),
    (restore_and_undo, Budget(switches=20, faults=3)),
    (stubborn_drivers, Budget(switches=20, faults=8)),
    (everything, Budget(switches=60, faults=6)),
]
"""Histories that switch and fail all the time, drawn by seed."""
