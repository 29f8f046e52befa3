"""The public test kit: what Penstock tests itself with, for users to test their own code.

Harnesses for operators and sources, whole pipelines in one process, stores that fail on
purpose, sweeps over every point where they can, and checks of what must hold afterwards.
Nothing in Penstock outside of tests imports from here. `testing.strategies` needs
Hypothesis and `testing.plugin` is for pytest, which imports it in every run: so names are
imported at their first use.
"""

import typing
from importlib import import_module

if typing.TYPE_CHECKING:
    from penstock.connectors.memory import list_sink as list_sink
    from penstock.connectors.memory import list_source as list_source
    from penstock.core.clock import ManualClock as ManualClock
    from penstock.runtime.in_process import Chaos as Chaos
    from penstock.testing.chain_subtasks import Amnesia as Amnesia
    from penstock.testing.faults import STORAGE_FAULTS as STORAGE_FAULTS
    from penstock.testing.faults import Call as Call
    from penstock.testing.faults import CrashError as CrashError
    from penstock.testing.faults import Fault as Fault
    from penstock.testing.faults import FaultMode as FaultMode
    from penstock.testing.faults import FaultyStore as FaultyStore
    from penstock.testing.faults import Lands as Lands
    from penstock.testing.faults import Trial as Trial
    from penstock.testing.faults import sweep as sweep
    from penstock.testing.given import EpochOutput as EpochOutput
    from penstock.testing.harness import HarnessCheckpoint as HarnessCheckpoint
    from penstock.testing.harness import OperatorHarness as OperatorHarness
    from penstock.testing.invariants import (
        assert_acknowledged_epochs_survive as assert_acknowledged_epochs_survive,
    )
    from penstock.testing.invariants import (
        assert_commits_were_permitted as assert_commits_were_permitted,
    )
    from penstock.testing.invariants import assert_job_is_whole as assert_job_is_whole
    from penstock.testing.invariants import (
        assert_no_restore_is_left_pinned as assert_no_restore_is_left_pinned,
    )
    from penstock.testing.invariants import (
        assert_nothing_was_changed as assert_nothing_was_changed,
    )
    from penstock.testing.invariants import stored_objects as stored_objects
    from penstock.testing.pipelines import LocalJob as LocalJob
    from penstock.testing.pipelines import run_pipeline as run_pipeline
    from penstock.testing.scripted_source import ABORT as ABORT
    from penstock.testing.scripted_source import CUT as CUT
    from penstock.testing.scripted_source import EOF as EOF
    from penstock.testing.scripted_source import PAUSE as PAUSE
    from penstock.testing.scripted_source import ScriptedSource as ScriptedSource
    from penstock.testing.source_harness import SourceHarness as SourceHarness

_HOMES = {
    "penstock.connectors.memory": (
        "list_sink",
        "list_source",
    ),
    "penstock.core.clock": ("ManualClock",),
    "penstock.runtime.in_process": ("Chaos",),
    "penstock.testing.chain_subtasks": ("Amnesia",),
    "penstock.testing.faults": (
        "Call",
        "CrashError",
        "Fault",
        "FaultMode",
        "FaultyStore",
        "Lands",
        "STORAGE_FAULTS",
        "Trial",
        "sweep",
    ),
    "penstock.testing.given": ("EpochOutput",),
    "penstock.testing.harness": (
        "HarnessCheckpoint",
        "OperatorHarness",
    ),
    "penstock.testing.invariants": (
        "assert_acknowledged_epochs_survive",
        "assert_commits_were_permitted",
        "assert_job_is_whole",
        "assert_no_restore_is_left_pinned",
        "assert_nothing_was_changed",
        "stored_objects",
    ),
    "penstock.testing.pipelines": (
        "LocalJob",
        "run_pipeline",
    ),
    "penstock.testing.scripted_source": (
        "ABORT",
        "CUT",
        "EOF",
        "PAUSE",
        "ScriptedSource",
    ),
    "penstock.testing.source_harness": ("SourceHarness",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> typing.Any:
    """Import a public name at its first use."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "ABORT",
    "CUT",
    "EOF",
    "PAUSE",
    "STORAGE_FAULTS",
    "Amnesia",
    "Call",
    "Chaos",
    "CrashError",
    "EpochOutput",
    "Fault",
    "FaultMode",
    "FaultyStore",
    "HarnessCheckpoint",
    "Lands",
    "LocalJob",
    "ManualClock",
    "OperatorHarness",
    "ScriptedSource",
    "SourceHarness",
    "Trial",
    "assert_acknowledged_epochs_survive",
    "assert_commits_were_permitted",
    "assert_job_is_whole",
    "assert_no_restore_is_left_pinned",
    "assert_nothing_was_changed",
    "list_sink",
    "list_source",
    "run_pipeline",
    "stored_objects",
    "sweep",
]
