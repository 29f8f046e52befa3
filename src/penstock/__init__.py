"""Penstock: stateful stream processing in Python, on Spark, with open state.

Public names only. The layers, from the bottom: `errors`, `core`, `graph` and `state`,
`operators`, `connectors`, `runtime`, `api`, `console` beside `testing`.

A name is imported when it is first used: a worker, the command line or a test of one layer
must not pay for the libraries of all of them.
"""

import typing
from importlib import import_module
from importlib.metadata import version

if typing.TYPE_CHECKING:
    from penstock.api.pipeline import Pipeline as Pipeline
    from penstock.api.stream import KeyedStream as KeyedStream
    from penstock.api.stream import Stream as Stream
    from penstock.api.windowing import session as session
    from penstock.api.windowing import sliding as sliding
    from penstock.api.windowing import tumbling as tumbling
    from penstock.connectors.files.commit import CommittedFile as CommittedFile
    from penstock.connectors.files.commit import committed_files as committed_files
    from penstock.connectors.files.commit import read_committed as read_committed
    from penstock.connectors.files.connector import files as files
    from penstock.connectors.impulse import impulse as impulse
    from penstock.connectors.memory import list_sink as list_sink
    from penstock.connectors.memory import list_source as list_source
    from penstock.connectors.nexmark.source import nexmark as nexmark
    from penstock.connectors.stdout import blackhole as blackhole
    from penstock.connectors.stdout import stdout as stdout
    from penstock.console import Progress as Progress
    from penstock.console import exit_code as exit_code
    from penstock.console import main as main
    from penstock.core.schema import StreamSchema as StreamSchema
    from penstock.core.watermark import IDLE as IDLE
    from penstock.core.watermark import CheckpointBarrier as CheckpointBarrier
    from penstock.core.watermark import EndOfData as EndOfData
    from penstock.core.watermark import EventTime as EventTime
    from penstock.core.watermark import Stop as Stop
    from penstock.errors import ExternalError as ExternalError
    from penstock.errors import PenstockError as PenstockError
    from penstock.graph.logical import BAD as BAD
    from penstock.graph.logical import LATE as LATE
    from penstock.graph.logical import MAIN as MAIN
    from penstock.graph.logical import OperatorSpec as OperatorSpec
    from penstock.operators.aggregates.aggregate import Aggregate as Aggregate
    from penstock.operators.aggregates.functions import avg as avg
    from penstock.operators.aggregates.functions import count as count
    from penstock.operators.aggregates.functions import count_distinct as count_distinct
    from penstock.operators.aggregates.functions import first as first
    from penstock.operators.aggregates.functions import last as last
    from penstock.operators.aggregates.functions import max as max  # noqa: A004
    from penstock.operators.aggregates.functions import min as min  # noqa: A004
    from penstock.operators.aggregates.functions import stddev as stddev
    from penstock.operators.aggregates.functions import sum as sum  # noqa: A004
    from penstock.operators.aggregates.functions import var as var
    from penstock.operators.collector import ArrowCollector as ArrowCollector
    from penstock.operators.collector import SourceCollector as SourceCollector
    from penstock.operators.context import CommitContext as CommitContext
    from penstock.operators.context import OperatorContext as OperatorContext
    from penstock.operators.context import SourceContext as SourceContext
    from penstock.operators.operator import ArrowOperator as ArrowOperator
    from penstock.operators.operator import DisplayableOperator as DisplayableOperator
    from penstock.operators.registry import ConstructedOperator as ConstructedOperator
    from penstock.operators.registry import OperatorConstructor as OperatorConstructor
    from penstock.operators.registry import Registry as Registry
    from penstock.operators.source import SourceFinishType as SourceFinishType
    from penstock.operators.source import SourceOperator as SourceOperator
    from penstock.operators.source import SourcePlan as SourcePlan
    from penstock.operators.splits import SourceBudget as SourceBudget
    from penstock.operators.splits import SplitPlan as SplitPlan
    from penstock.operators.splits import SplitState as SplitState
    from penstock.operators.timers import DueTimers as DueTimers
    from penstock.operators.udfs.specs import async_udf as async_udf
    from penstock.operators.udfs.specs import call_udf as call_udf
    from penstock.operators.udfs.specs import native_udf as native_udf
    from penstock.operators.udfs.specs import udf as udf
    from penstock.runtime.driver.decide import JobPhase as JobPhase
    from penstock.runtime.driver.decide import JobStatus as JobStatus
    from penstock.runtime.driver.decide import StopMode as StopMode
    from penstock.runtime.spark.attach import AttachedJob as AttachedJob
    from penstock.runtime.spark.attach import attached as attached
    from penstock.runtime.spark.frame_sink import for_each_epoch as for_each_epoch
    from penstock.runtime.spark.frame_source import dataframe as dataframe
    from penstock.runtime.spark.frame_source import dataframes as dataframes
    from penstock.state.files.migration import MigratableState as MigratableState
    from penstock.state.tables.specs import TimeDomain as TimeDomain
    from penstock.state.tables.specs import global_table as global_table
    from penstock.state.tables.specs import keyed_table as keyed_table
    from penstock.state.tables.specs import time_keyed_table as time_keyed_table

_HOMES = {
    "penstock.api.pipeline": ("Pipeline",),
    "penstock.api.stream": (
        "KeyedStream",
        "Stream",
    ),
    "penstock.api.windowing": (
        "session",
        "sliding",
        "tumbling",
    ),
    "penstock.connectors.files.commit": (
        "CommittedFile",
        "committed_files",
        "read_committed",
    ),
    "penstock.connectors.files.connector": ("files",),
    "penstock.connectors.impulse": ("impulse",),
    "penstock.connectors.memory": (
        "list_sink",
        "list_source",
    ),
    "penstock.connectors.nexmark.source": ("nexmark",),
    "penstock.connectors.stdout": (
        "blackhole",
        "stdout",
    ),
    "penstock.console": (
        "Progress",
        "exit_code",
        "main",
    ),
    "penstock.core.schema": ("StreamSchema",),
    "penstock.core.watermark": (
        "CheckpointBarrier",
        "EndOfData",
        "EventTime",
        "IDLE",
        "Stop",
    ),
    "penstock.errors": (
        "ExternalError",
        "PenstockError",
    ),
    "penstock.graph.logical": (
        "BAD",
        "LATE",
        "MAIN",
        "OperatorSpec",
    ),
    "penstock.operators.aggregates.aggregate": ("Aggregate",),
    "penstock.operators.aggregates.functions": (
        "avg",
        "count",
        "count_distinct",
        "first",
        "last",
        "max",
        "min",
        "stddev",
        "sum",
        "var",
    ),
    "penstock.operators.collector": (
        "ArrowCollector",
        "SourceCollector",
    ),
    "penstock.operators.context": (
        "CommitContext",
        "OperatorContext",
        "SourceContext",
    ),
    "penstock.operators.operator": (
        "ArrowOperator",
        "DisplayableOperator",
    ),
    "penstock.operators.registry": (
        "ConstructedOperator",
        "OperatorConstructor",
        "Registry",
    ),
    "penstock.operators.source": (
        "SourceFinishType",
        "SourceOperator",
        "SourcePlan",
    ),
    "penstock.operators.splits": (
        "SourceBudget",
        "SplitPlan",
        "SplitState",
    ),
    "penstock.operators.timers": ("DueTimers",),
    "penstock.operators.udfs.specs": (
        "async_udf",
        "call_udf",
        "native_udf",
        "udf",
    ),
    "penstock.runtime.driver.decide": (
        "JobPhase",
        "JobStatus",
        "StopMode",
    ),
    "penstock.runtime.spark.attach": (
        "AttachedJob",
        "attached",
    ),
    "penstock.runtime.spark.frame_sink": ("for_each_epoch",),
    "penstock.runtime.spark.frame_source": (
        "dataframe",
        "dataframes",
    ),
    "penstock.state.files.migration": ("MigratableState",),
    "penstock.state.tables.specs": (
        "TimeDomain",
        "global_table",
        "keyed_table",
        "time_keyed_table",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__version__ = version("penstock")


def __getattr__(name: str) -> typing.Any:
    """Import a public name at its first use."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "BAD",
    "IDLE",
    "LATE",
    "MAIN",
    "Aggregate",
    "ArrowCollector",
    "ArrowOperator",
    "AttachedJob",
    "CheckpointBarrier",
    "CommitContext",
    "CommittedFile",
    "ConstructedOperator",
    "DisplayableOperator",
    "DueTimers",
    "EndOfData",
    "EventTime",
    "ExternalError",
    "JobPhase",
    "JobStatus",
    "KeyedStream",
    "MigratableState",
    "OperatorConstructor",
    "OperatorContext",
    "OperatorSpec",
    "PenstockError",
    "Pipeline",
    "Progress",
    "Registry",
    "SourceBudget",
    "SourceCollector",
    "SourceContext",
    "SourceFinishType",
    "SourceOperator",
    "SourcePlan",
    "SplitPlan",
    "SplitState",
    "Stop",
    "StopMode",
    "Stream",
    "StreamSchema",
    "TimeDomain",
    "__version__",
    "async_udf",
    "attached",
    "avg",
    "blackhole",
    "call_udf",
    "committed_files",
    "count",
    "count_distinct",
    "dataframe",
    "dataframes",
    "exit_code",
    "files",
    "first",
    "for_each_epoch",
    "global_table",
    "impulse",
    "keyed_table",
    "last",
    "list_sink",
    "list_source",
    "main",
    "max",
    "min",
    "native_udf",
    "nexmark",
    "read_committed",
    "session",
    "sliding",
    "stddev",
    "stdout",
    "sum",
    "time_keyed_table",
    "tumbling",
    "udf",
    "var",
]
