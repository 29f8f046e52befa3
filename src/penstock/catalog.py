"""The catalog: every kind of operator and connector that a graph can name out of the box."""

from penstock.connectors.files.sink import FilesSinkConstructor
from penstock.connectors.files.source import FilesSourceConstructor
from penstock.connectors.impulse import ImpulseConstructor
from penstock.connectors.memory import ListSinkConstructor, ListSourceConstructor
from penstock.connectors.nexmark.source import NexmarkConstructor
from penstock.connectors.stdout import Blackhole, BlackholeConfig, StdoutConfig, StdoutSink
from penstock.operators.event_time import WatermarkConstructor
from penstock.operators.expressions import FilterConstructor, ProjectConstructor
from penstock.operators.registry import Registry
from penstock.operators.stateless import (
    FlatMap,
    FunctionConstructor,
    KeyByConstructor,
    MapBatches,
    UnionConstructor,
)
from penstock.operators.udfs.kinds import register_udfs
from penstock.operators.updating.kinds import register_updating
from penstock.operators.user_functions import ProcessConstructor, SourceConstructor
from penstock.operators.windows.kinds import register_windows


def default_registry(*, load_plugins: bool = True) -> Registry:
    """Return a new registry with all built-in kinds and those of installed packages.

    Looking for packages takes milliseconds: a process keeps its registry.
    """
    registry = Registry()
    registry.add("filter", FilterConstructor())
    registry.add("select", ProjectConstructor("select"))
    registry.add("with_columns", ProjectConstructor("with_columns"))
    registry.add("map_batches", FunctionConstructor(MapBatches))
    registry.add("flat_map", FunctionConstructor(FlatMap))
    registry.add("key_by", KeyByConstructor())
    registry.add("union", UnionConstructor())
    registry.add("process", ProcessConstructor())
    registry.add("source", SourceConstructor())
    registry.add("watermark", WatermarkConstructor())
    registry.add("list_source", ListSourceConstructor())
    registry.add("list_sink", ListSinkConstructor())
    registry.add("files_source", FilesSourceConstructor())
    registry.add("impulse", ImpulseConstructor())
    registry.add("nexmark", NexmarkConstructor())
    registry.add(StdoutConfig.kind, StdoutConfig, StdoutSink)
    registry.add("files_sink", FilesSinkConstructor())
    registry.add(BlackholeConfig.kind, BlackholeConfig, Blackhole)
    register_udfs(registry)
    register_updating(registry)
    register_windows(registry)
    if load_plugins:
        registry.load_entry_points()
    return registry
