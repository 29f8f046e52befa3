"""The public names of Penstock and where they live; read at run time, too."""

from .api.checkpoints import Checkpoints as Checkpoints
from .api.checkpoints import checkpoints as checkpoints
from .api.joining import same_window as same_window
from .api.pipeline import Pipeline as Pipeline
from .api.stream import KeyedStream as KeyedStream
from .api.stream import Stream as Stream
from .api.windowing import session as session
from .api.windowing import sliding as sliding
from .api.windowing import tumbling as tumbling
from .connectors.files.committed import CommittedFile as CommittedFile
from .connectors.files.committed import committed_files as committed_files
from .connectors.files.committed import read_committed as read_committed
from .connectors.files.connector import files as files
from .connectors.impulse import impulse as impulse
from .connectors.memory import list_sink as list_sink
from .connectors.memory import list_source as list_source
from .connectors.nexmark.source import nexmark as nexmark
from .connectors.stdout import blackhole as blackhole
from .connectors.stdout import stdout as stdout
from .console import Progress as Progress
from .console import exit_code as exit_code
from .console import main as main
from .core.schema import StreamSchema as StreamSchema
from .errors import ExternalError as ExternalError
from .errors import PenstockError as PenstockError
from .graph.logical import BAD as BAD
from .graph.logical import LATE as LATE
from .graph.logical import MAIN as MAIN
from .operators.aggregates.aggregate import Aggregate as Aggregate
from .operators.aggregates.functions import avg as avg
from .operators.aggregates.functions import count as count
from .operators.aggregates.functions import count_distinct as count_distinct
from .operators.aggregates.functions import first as first
from .operators.aggregates.functions import last as last
from .operators.aggregates.functions import max as max
from .operators.aggregates.functions import min as min
from .operators.aggregates.functions import stddev as stddev
from .operators.aggregates.functions import sum as sum
from .operators.aggregates.functions import var as var
from .operators.joins.sides import BAD_RIGHT as BAD_RIGHT
from .operators.joins.sides import LATE_RIGHT as LATE_RIGHT
from .operators.udfs.specs import async_udf as async_udf
from .operators.udfs.specs import call_udf as call_udf
from .operators.udfs.specs import native_udf as native_udf
from .operators.udfs.specs import udf as udf
from .runtime.driver.decide import JobPhase as JobPhase
from .runtime.driver.decide import JobStatus as JobStatus
from .runtime.driver.decide import StopMode as StopMode
from .runtime.driver.fitness import StartCheck as StartCheck
from .runtime.driver.policies import restarts as restarts
from .runtime.driver.policies import retention as retention
from .runtime.driver.policies import trigger as trigger
from .runtime.driver.running_job import RunningJob as RunningJob
from .runtime.spark.attach import AttachedJob as AttachedJob
from .runtime.spark.frame_sink import for_each_epoch as for_each_epoch
from .runtime.spark.frame_source import dataframe as dataframe
from .runtime.spark.frame_source import dataframes as dataframes
from .runtime.spark.handoff import attached as attached
from .state.tables.specs import TimeDomain as TimeDomain

__version__: str
__all__ = [
    "BAD",
    "BAD_RIGHT",
    "LATE",
    "LATE_RIGHT",
    "MAIN",
    "Aggregate",
    "AttachedJob",
    "Checkpoints",
    "CommittedFile",
    "ExternalError",
    "JobPhase",
    "JobStatus",
    "KeyedStream",
    "PenstockError",
    "Pipeline",
    "Progress",
    "RunningJob",
    "StartCheck",
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
    "checkpoints",
    "committed_files",
    "count",
    "count_distinct",
    "dataframe",
    "dataframes",
    "exit_code",
    "files",
    "first",
    "for_each_epoch",
    "impulse",
    "last",
    "list_sink",
    "list_source",
    "main",
    "max",
    "min",
    "native_udf",
    "nexmark",
    "read_committed",
    "restarts",
    "retention",
    "same_window",
    "session",
    "sliding",
    "stddev",
    "stdout",
    "sum",
    "trigger",
    "tumbling",
    "udf",
    "var",
]
