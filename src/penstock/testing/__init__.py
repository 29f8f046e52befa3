"""The public test kit: what Penstock tests itself with, for users to test their own code.

Stores that fail on purpose, and sweeps over every point where they can. Nothing in
Penstock outside of tests imports from here.
"""

from penstock.testing.fault_modes import STORAGE_FAULTS, Call, Fault, FaultMode, Lands
from penstock.testing.fault_sweep import Trial, sweep
from penstock.testing.faults import CrashError, FaultyStore

__all__ = [
    "STORAGE_FAULTS",
    "Call",
    "CrashError",
    "Fault",
    "FaultMode",
    "FaultyStore",
    "Lands",
    "Trial",
    "sweep",
]
