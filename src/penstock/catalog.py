"""The catalog: every kind of operator and connector that a graph can name without plug-ins."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from penstock.connectors import impulse, memory, stdout
from penstock.connectors.delta import lookup as delta_lookup
from penstock.connectors.delta import sink as delta_sink
from penstock.connectors.delta import source as delta_source
from penstock.connectors.files import lookup as files_lookup
from penstock.connectors.files import sink as files_sink
from penstock.connectors.files import source as files_source
from penstock.connectors.history import source as history_source
from penstock.connectors.kafka import sink as kafka_sink
from penstock.connectors.kafka import source as kafka_source
from penstock.connectors.nexmark import rows as nexmark_rows
from penstock.connectors.nexmark import source as nexmark
from penstock.operators import event_time, expressions, stateless, user_functions
from penstock.operators.changelogs import debezium, envelopes, latest, settling
from penstock.operators.joins import (
    function_lookup,
    interval_join,
    lookup_join,
    session_join,
    stream_lookup,
    table_join,
    table_output,
    version_lookup,
    window_join,
)
from penstock.operators.operator import ArrowOperator, SourceOperator
from penstock.operators.ranking import changelog_top, deduplicate, top, window_top
from penstock.operators.registry import OperatorConfig, Registry
from penstock.operators.udfs import async_operator, functions, native, specs
from penstock.operators.updating import aggregate, combine, retracting
from penstock.operators.windows import (
    changing,
    panes,
    processing_time,
    revised_sessions,
    sessions,
)

_Build: TypeAlias = Callable[[Any], ArrowOperator | SourceOperator]

_KINDS: tuple[tuple[type[OperatorConfig], _Build], ...] = (
    (expressions.FilterConfig, expressions.Filter),
    (expressions.SelectConfig, expressions.Project),
    (expressions.WithColumnsConfig, expressions.Project),
    (expressions.EventTimeConfig, expressions.EventTimeColumn),
    (stateless.MapBatchesConfig, stateless.MapBatches),
    (stateless.MapRowsConfig, stateless.MapRows),
    (stateless.FlatMapConfig, stateless.FlatMap),
    (stateless.RenameConfig, stateless.Rename),
    (stateless.KeyByConfig, stateless.KeyBy),
    (stateless.UnionConfig, stateless.Union),
    (user_functions.ProcessConfig, user_functions.build_process),
    (user_functions.SourceConfig, user_functions.build_source),
    (event_time.WatermarkConfig, event_time.WatermarkGenerator),
    (specs.UdfSpec, functions.build_udf),
    (specs.AsyncUdfSpec, async_operator.build_async_udf),
    (memory.ListSourceConfig, memory.ListSource),
    (memory.ListSinkConfig, memory.ListSink),
    (files_source.FilesSourceConfig, files_source.FilesSource),
    (files_sink.FilesSinkConfig, files_sink.FilesSink),
    (kafka_source.KafkaSourceConfig, kafka_source.KafkaSource),
    (delta_source.DeltaSourceConfig, delta_source.DeltaSource),
    (delta_sink.DeltaSinkConfig, delta_sink.DeltaSink),
    (kafka_sink.KafkaSinkConfig, kafka_sink.KafkaSink),
    (impulse.ImpulseConfig, impulse.ImpulseSource),
    (stdout.StdoutConfig, stdout.StdoutSink),
    (stdout.BlackholeConfig, stdout.Blackhole),
    (combine.CombineConfig, combine.Combine),
    (aggregate.UpdatingAggregateConfig, aggregate.UpdatingAggregate),
    (retracting.RetractingAggregateConfig, retracting.RetractingAggregate),
    (settling.SettleConfig, settling.Settle),
    (latest.LatestConfig, latest.Latest),
    (debezium.FromDebeziumConfig, debezium.FromDebezium),
    (envelopes.ToDebeziumConfig, envelopes.ToDebezium),
    (envelopes.ToUpsertsConfig, envelopes.ToUpserts),
    (envelopes.ToRowsConfig, envelopes.ToRows),
    (panes.PaneCombinerConfig, panes.PaneCombiner),
    (panes.PaneWindowConfig, panes.PaneWindows),
    (changing.ChangingCombinerConfig, changing.ChangingCombiner),
    (changing.ChangingWindowConfig, changing.ChangingWindows),
    (processing_time.ClockCombinerConfig, processing_time.ClockCombiner),
    (processing_time.ClockWindowConfig, processing_time.ClockWindows),
    (sessions.SessionWindowConfig, sessions.SessionWindows),
    (revised_sessions.RevisedSessionConfig, revised_sessions.RevisedSessions),
    (top.TopConfig, top.Top),
    (changelog_top.ChangelogTopConfig, changelog_top.ChangelogTop),
    (window_top.RankedRowsConfig, window_top.RankedRows),
    (deduplicate.DeduplicateConfig, deduplicate.Deduplicate),
    (interval_join.IntervalJoinConfig, interval_join.IntervalJoin),
    (window_join.WindowJoinConfig, window_join.WindowJoin),
    (session_join.SessionJoinConfig, session_join.SessionJoin),
    (table_output.TableJoinConfig, table_join.TableJoin),
    (files_lookup.FilesLookupConfig, lookup_join.LookupJoin),
    (delta_lookup.DeltaLookupConfig, lookup_join.LookupJoin),
    (lookup_join.FrameLookupConfig, lookup_join.LookupJoin),
    (stream_lookup.StreamLookupConfig, stream_lookup.StreamLookup),
    (version_lookup.VersionLookupConfig, version_lookup.VersionLookup),
    (version_lookup.VersionSourceConfig, version_lookup.VersionSource),
    (function_lookup.FunctionLookupConfig, function_lookup.FunctionLookup),
)
"""The class of each kind's config, and the function or class that builds the operator from it."""


def default_registry(*, load_plugins: bool = True) -> Registry:
    """Return a new registry with all built-in kinds and those of installed packages."""
    registry = Registry()
    for config, build in _KINDS:
        registry.add(config.kind, config, build)
    registry.add(nexmark.KIND, nexmark_rows.NexmarkConfig, nexmark.NexmarkSource)
    concat = history_source.ConcatSourceConfig
    registry.add(concat.kind, concat, partial(history_source.ConcatSource, registry))
    # These two are built with the registry, which loads libraries and knows UDFs by name.
    native_udf, call_udf = specs.NativeUdfSpec, specs.CallUdfSpec
    registry.add(native_udf.kind, native_udf, partial(native.NativeUdf, registry))
    registry.add(call_udf.kind, call_udf, partial(native.build_call_udf, registry))
    if load_plugins:
        registry.load_entry_points()
    return registry
