"""The public names of the test kit and where they live; read at run time, too."""

from .faults import STORAGE_FAULTS as STORAGE_FAULTS
from .faults import Call as Call
from .faults import CrashError as CrashError
from .faults import Fault as Fault
from .faults import FaultMode as FaultMode
from .faults import FaultyStore as FaultyStore
from .faults import Lands as Lands
from .faults import Trial as Trial
from .faults import stored_objects as stored_objects
from .faults import sweep as sweep
from .given import EpochOutput as EpochOutput
from .harness import HarnessCheckpoint as HarnessCheckpoint
from .harness import OperatorHarness as OperatorHarness
from .harness import SourceHarness as SourceHarness
from .parts import ABORT as ABORT
from .parts import CUT as CUT
from .parts import EOF as EOF
from .parts import PAUSE as PAUSE
from .parts import ScriptedSource as ScriptedSource
from .pipelines import Chaos as Chaos
from .pipelines import LocalJob as LocalJob
from .pipelines import ManualClock as ManualClock
from .pipelines import (
    assert_acknowledged_epochs_survive as assert_acknowledged_epochs_survive,
)
from .pipelines import assert_commits_were_permitted as assert_commits_were_permitted
from .pipelines import assert_job_is_whole as assert_job_is_whole
from .pipelines import assert_no_restore_is_left_pinned as assert_no_restore_is_left_pinned
from .pipelines import assert_nothing_was_changed as assert_nothing_was_changed
from .pipelines import list_sink as list_sink
from .pipelines import list_source as list_source
from .pipelines import run_pipeline as run_pipeline
from .stepped_job import Amnesia as Amnesia

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
