"""The public test kit: what Penstock tests itself with, for users to test their own code.

Stores that fail on purpose, sweeps over every point where they can, and checks of what
must hold afterwards. Nothing in Penstock outside of tests imports from here.
"""

from penstock.testing.fault_modes import STORAGE_FAULTS, Call, Fault, FaultMode, Lands
from penstock.testing.fault_sweep import Trial, sweep
from penstock.testing.faults import CrashError, FaultyStore
from penstock.testing.invariants import (
    assert_acknowledged_epochs_survive,
    assert_commits_were_permitted,
    assert_job_is_whole,
    assert_no_restore_is_left_pinned,
    assert_nothing_was_changed,
    stored_objects,
)

__all__ = [
    "STORAGE_FAULTS",
    "Call",
    "CrashError",
    "Fault",
    "FaultMode",
    "FaultyStore",
    "Lands",
    "Trial",
    "assert_acknowledged_epochs_survive",
    "assert_commits_were_permitted",
    "assert_job_is_whole",
    "assert_no_restore_is_left_pinned",
    "assert_nothing_was_changed",
    "stored_objects",
    "sweep",
]
