"""The catalog: every kind of operator and connector that a graph can name without plug-ins."""

from functools import partial

from penstock.connectors.files.sink import FilesSink, FilesSinkConfig
from penstock.connectors.files.source import FilesSource, FilesSourceConfig
from penstock.connectors.impulse import ImpulseConfig, ImpulseSource
from penstock.connectors.memory import (
    ListSink,
    ListSinkConfig,
    ListSource,
    ListSourceConfig,
)
from penstock.connectors.nexmark.rows import NexmarkConfig
from penstock.connectors.nexmark.source import KIND as NEXMARK
from penstock.connectors.nexmark.source import NexmarkSource
from penstock.connectors.stdout import Blackhole, BlackholeConfig, StdoutConfig, StdoutSink
from penstock.operators.event_time import WatermarkConfig, WatermarkGenerator
from penstock.operators.expressions import (
    Filter,
    FilterConfig,
    Project,
    SelectConfig,
    WithColumnsConfig,
)
from penstock.operators.registry import Registry
from penstock.operators.stateless import (
    FlatMap,
    FlatMapConfig,
    KeyBy,
    KeyByConfig,
    MapBatches,
    MapBatchesConfig,
    Union,
    UnionConfig,
)
from penstock.operators.udfs.async_operator import build_async_udf
from penstock.operators.udfs.functions import build_udf
from penstock.operators.udfs.native import NativeUdf, build_call_udf
from penstock.operators.udfs.specs import AsyncUdfSpec, CallUdfSpec, NativeUdfSpec, UdfSpec
from penstock.operators.updating.aggregate import UpdatingAggregate, UpdatingAggregateConfig
from penstock.operators.updating.changelog import ToDebezium, ToDebeziumConfig
from penstock.operators.updating.combine import Combine, CombineConfig
from penstock.operators.user_functions import (
    ProcessConfig,
    SourceConfig,
    build_process,
    build_source,
)
from penstock.operators.windows.panes import (
    PaneCombiner,
    PaneCombinerConfig,
    PaneWindowConfig,
    PaneWindows,
)
from penstock.operators.windows.sessions import SessionWindowConfig, SessionWindows


def default_registry(*, load_plugins: bool = True) -> Registry:
    """Return a new registry with all built-in kinds and those of installed packages.

    Finding the packages takes milliseconds, so a process keeps its registry.
    """
    registry = Registry()
    registry.add(FilterConfig.kind, FilterConfig, Filter)
    registry.add(SelectConfig.kind, SelectConfig, Project)
    registry.add(WithColumnsConfig.kind, WithColumnsConfig, Project)
    registry.add(MapBatchesConfig.kind, MapBatchesConfig, MapBatches)
    registry.add(FlatMapConfig.kind, FlatMapConfig, FlatMap)
    registry.add(KeyByConfig.kind, KeyByConfig, KeyBy)
    registry.add(UnionConfig.kind, UnionConfig, Union)
    registry.add(ProcessConfig.kind, ProcessConfig, build_process)
    registry.add(SourceConfig.kind, SourceConfig, build_source)
    registry.add(WatermarkConfig.kind, WatermarkConfig, WatermarkGenerator)
    registry.add(UdfSpec.kind, UdfSpec, build_udf)
    registry.add(AsyncUdfSpec.kind, AsyncUdfSpec, build_async_udf)
    registry.add(NativeUdfSpec.kind, NativeUdfSpec, partial(NativeUdf, registry))
    registry.add(CallUdfSpec.kind, CallUdfSpec, partial(build_call_udf, registry))
    registry.add(ListSourceConfig.kind, ListSourceConfig, ListSource)
    registry.add(ListSinkConfig.kind, ListSinkConfig, ListSink)
    registry.add(FilesSourceConfig.kind, FilesSourceConfig, FilesSource)
    registry.add(ImpulseConfig.kind, ImpulseConfig, ImpulseSource)
    registry.add(NEXMARK, NexmarkConfig, NexmarkSource)
    registry.add(StdoutConfig.kind, StdoutConfig, StdoutSink)
    registry.add(FilesSinkConfig.kind, FilesSinkConfig, FilesSink)
    registry.add(BlackholeConfig.kind, BlackholeConfig, Blackhole)
    registry.add(CombineConfig.kind, CombineConfig, Combine)
    registry.add(UpdatingAggregateConfig.kind, UpdatingAggregateConfig, UpdatingAggregate)
    registry.add(ToDebeziumConfig.kind, ToDebeziumConfig, ToDebezium)
    registry.add(PaneCombinerConfig.kind, PaneCombinerConfig, PaneCombiner)
    registry.add(PaneWindowConfig.kind, PaneWindowConfig, PaneWindows)
    registry.add(SessionWindowConfig.kind, SessionWindowConfig, SessionWindows)
    if load_plugins:
        registry.load_entry_points()
    return registry
