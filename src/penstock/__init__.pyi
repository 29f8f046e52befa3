"""The public names of Penstock and where they live; read at run time, too."""

from .api.checkpoints import Checkpoints as Checkpoints
from .api.checkpoints import checkpoints as checkpoints
from .api.joining import same_window as same_window
from .api.lookups import lookup_frame as lookup_frame
from .api.lookups import lookup_function as lookup_function
from .api.lookups import lookup_stream as lookup_stream
from .api.pipeline import Pipeline as Pipeline
from .api.stream import KeyedStream as KeyedStream
from .api.stream import Stream as Stream
from .connectors.delta.connector import delta as delta
from .connectors.delta.lookup import lookup_delta as lookup_delta
from .connectors.files.committed import CommittedFile as CommittedFile
from .connectors.files.committed import committed_files as committed_files
from .connectors.files.committed import read_committed as read_committed
from .connectors.files.connector import files as files
from .connectors.files.latest import read_latest as read_latest
from .connectors.files.lookup import lookup_files as lookup_files
from .connectors.formats.record_format import BadRecord as BadRecord
from .connectors.formats.record_format import Decoded as Decoded
from .connectors.formats.record_format import RecordFormat as RecordFormat
from .connectors.formats.registry import record_format as record_format
from .connectors.history.connector import concat_sources as concat_sources
from .connectors.impulse import impulse as impulse
from .connectors.kafka.connector import kafka as kafka
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
from .inspect.state import open_state as open_state
from .operators.aggregates.aggregate import Aggregate as Aggregate
from .operators.aggregates.functions import aggregate_rows as aggregate_rows
from .operators.aggregates.functions import approx_distinct as approx_distinct
from .operators.aggregates.functions import approx_quantile as approx_quantile
from .operators.aggregates.functions import approx_top_k as approx_top_k
from .operators.aggregates.functions import arg_max as arg_max
from .operators.aggregates.functions import arg_min as arg_min
from .operators.aggregates.functions import avg as avg
from .operators.aggregates.functions import bit_and as bit_and
from .operators.aggregates.functions import bit_or as bit_or
from .operators.aggregates.functions import bit_xor as bit_xor
from .operators.aggregates.functions import bool_and as bool_and
from .operators.aggregates.functions import bool_or as bool_or
from .operators.aggregates.functions import collect_list as collect_list
from .operators.aggregates.functions import collect_set as collect_set
from .operators.aggregates.functions import count as count
from .operators.aggregates.functions import count_distinct as count_distinct
from .operators.aggregates.functions import first as first
from .operators.aggregates.functions import last as last
from .operators.aggregates.functions import max as max
from .operators.aggregates.functions import median as median
from .operators.aggregates.functions import min as min
from .operators.aggregates.functions import quantile as quantile
from .operators.aggregates.functions import stddev as stddev
from .operators.aggregates.functions import stddev_pop as stddev_pop
from .operators.aggregates.functions import string_agg as string_agg
from .operators.aggregates.functions import sum as sum
from .operators.aggregates.functions import var as var
from .operators.aggregates.functions import var_pop as var_pop
from .operators.aggregates.pairs import corr as corr
from .operators.aggregates.pairs import covar_pop as covar_pop
from .operators.aggregates.pairs import covar_samp as covar_samp
from .operators.aggregates.pairs import regr_avgx as regr_avgx
from .operators.aggregates.pairs import regr_avgy as regr_avgy
from .operators.aggregates.pairs import regr_count as regr_count
from .operators.aggregates.pairs import regr_intercept as regr_intercept
from .operators.aggregates.pairs import regr_r2 as regr_r2
from .operators.aggregates.pairs import regr_slope as regr_slope
from .operators.aggregates.pairs import regr_sxx as regr_sxx
from .operators.aggregates.pairs import regr_sxy as regr_sxy
from .operators.aggregates.pairs import regr_syy as regr_syy
from .operators.joins.sides import BAD_RIGHT as BAD_RIGHT
from .operators.joins.sides import LATE_RIGHT as LATE_RIGHT
from .operators.secret_options import secret as secret
from .operators.udfs.specs import async_udf as async_udf
from .operators.udfs.specs import call_udf as call_udf
from .operators.udfs.specs import native_udf as native_udf
from .operators.udfs.specs import udf as udf
from .operators.windows.definitions import session as session
from .operators.windows.definitions import sliding as sliding
from .operators.windows.definitions import tumbling as tumbling
from .runtime.driver.decide import JobPhase as JobPhase
from .runtime.driver.decide import JobStatus as JobStatus
from .runtime.driver.decide import StopMode as StopMode
from .runtime.driver.fitness import StartCheck as StartCheck
from .runtime.driver.listening import JobListener as JobListener
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
    "BadRecord",
    "Checkpoints",
    "CommittedFile",
    "Decoded",
    "ExternalError",
    "JobListener",
    "JobPhase",
    "JobStatus",
    "KeyedStream",
    "PenstockError",
    "Pipeline",
    "Progress",
    "RecordFormat",
    "RunningJob",
    "StartCheck",
    "StopMode",
    "Stream",
    "StreamSchema",
    "TimeDomain",
    "__version__",
    "aggregate_rows",
    "approx_distinct",
    "approx_quantile",
    "approx_top_k",
    "arg_max",
    "arg_min",
    "async_udf",
    "attached",
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "blackhole",
    "bool_and",
    "bool_or",
    "call_udf",
    "checkpoints",
    "collect_list",
    "collect_set",
    "committed_files",
    "concat_sources",
    "corr",
    "count",
    "count_distinct",
    "covar_pop",
    "covar_samp",
    "dataframe",
    "dataframes",
    "delta",
    "exit_code",
    "files",
    "first",
    "for_each_epoch",
    "impulse",
    "kafka",
    "last",
    "list_sink",
    "list_source",
    "lookup_delta",
    "lookup_files",
    "lookup_frame",
    "lookup_function",
    "lookup_stream",
    "main",
    "max",
    "median",
    "min",
    "native_udf",
    "nexmark",
    "open_state",
    "quantile",
    "read_committed",
    "record_format",
    "regr_avgx",
    "regr_avgy",
    "regr_count",
    "regr_intercept",
    "regr_r2",
    "regr_slope",
    "regr_sxx",
    "regr_sxy",
    "regr_syy",
    "restarts",
    "retention",
    "same_window",
    "secret",
    "session",
    "sliding",
    "stddev",
    "stddev_pop",
    "stdout",
    "string_agg",
    "sum",
    "trigger",
    "tumbling",
    "udf",
    "var",
    "var_pop",
]
