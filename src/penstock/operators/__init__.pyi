"""What authors of operators, sources and sinks import, and where it lives; read at run time, too."""

from ..core.schema import StreamSchema as StreamSchema
from ..core.watermark import IDLE as IDLE
from ..core.watermark import CheckpointBarrier as CheckpointBarrier
from ..core.watermark import EndOfData as EndOfData
from ..core.watermark import EventTime as EventTime
from ..core.watermark import Stop as Stop
from ..errors import ExternalError as ExternalError
from ..graph.logical import BAD as BAD
from ..graph.logical import LATE as LATE
from ..graph.logical import MAIN as MAIN
from ..graph.logical import OperatorSpec as OperatorSpec
from ..state.files.migration import MigratableState as MigratableState
from ..state.tables.global_keyed import GlobalKeyedView as GlobalKeyedView
from ..state.tables.keyed_view import KeyedRows as KeyedRows
from ..state.tables.keyed_view import KeyedView as KeyedView
from ..state.tables.sorted_rows import GroupedRows as GroupedRows
from ..state.tables.specs import TimeDomain as TimeDomain
from ..state.tables.specs import global_table as global_table
from ..state.tables.specs import keyed_table as keyed_table
from ..state.tables.specs import time_keyed_table as time_keyed_table
from ..state.tables.time_keyed_view import KeyTimeView as KeyTimeView
from ..state.tables.time_keyed_view import TimeKeyedView as TimeKeyedView
from .context import ArrowCollector as ArrowCollector
from .context import CommitContext as CommitContext
from .context import CommitPart as CommitPart
from .context import OperatorContext as OperatorContext
from .context import SourceCollector as SourceCollector
from .context import SourceContext as SourceContext
from .context import StartContext as StartContext
from .operator import ArrowOperator as ArrowOperator
from .operator import DisplayableOperator as DisplayableOperator
from .operator import SourceFinishType as SourceFinishType
from .operator import SourceOperator as SourceOperator
from .registry import ConstructedOperator as ConstructedOperator
from .registry import OperatorConstructor as OperatorConstructor
from .registry import Registry as Registry
from .splits import Lag as Lag
from .splits import SourceBudget as SourceBudget
from .splits import SplitPlan as SplitPlan
from .splits import SplitState as SplitState
from .timers import DueTimers as DueTimers

__all__ = [
    "BAD",
    "IDLE",
    "LATE",
    "MAIN",
    "ArrowCollector",
    "ArrowOperator",
    "CheckpointBarrier",
    "CommitContext",
    "CommitPart",
    "ConstructedOperator",
    "DisplayableOperator",
    "DueTimers",
    "EndOfData",
    "EventTime",
    "ExternalError",
    "GlobalKeyedView",
    "GroupedRows",
    "KeyTimeView",
    "KeyedRows",
    "KeyedView",
    "Lag",
    "MigratableState",
    "OperatorConstructor",
    "OperatorContext",
    "OperatorSpec",
    "Registry",
    "SourceBudget",
    "SourceCollector",
    "SourceContext",
    "SourceFinishType",
    "SourceOperator",
    "SourcePlan",
    "SplitPlan",
    "SplitState",
    "StartContext",
    "Stop",
    "StreamSchema",
    "TimeDomain",
    "TimeKeyedView",
    "global_table",
    "keyed_table",
    "time_keyed_table",
]
from .splits import SourcePlan as SourcePlan
