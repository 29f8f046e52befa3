"""Output folders under test: a files sink in a harness, and a look at what it wrote."""

from typing import Any

import pyarrow as pa

from penstock.catalog import default_registry
from penstock.connectors.files.connector import files
from penstock.connectors.files.sink import FilesSink, FilesSinkConfig
from penstock.core.clock import new_token
from penstock.graph.logical import OperatorSpec
from penstock.operators.registry import Registry
from penstock.state.storage.object_store import ObjectStore

KIND = "watched_files_sink"


def an_output() -> str:
    """Return the URL of an empty output that nobody else writes to."""
    return f"memory:out-{new_token()}"


def sink_on(store: ObjectStore, **options: Any) -> tuple[OperatorSpec, Registry]:
    """Return a files sink that writes to this very store, and the registry that knows it."""

    def open_output(url: str) -> ObjectStore:
        del url
        return store

    registry = default_registry(load_plugins=False)
    registry.add(KIND, FilesSinkConfig, lambda config: FilesSink(config, open_output))
    spec = files("memory:unused", **options).sink_spec()
    return OperatorSpec(KIND, spec.config), registry


def paths_in(store: ObjectStore, prefix: str = "") -> list[str]:
    """Return the names of all objects."""
    return [info.path for info in store.list(prefix)]


def parts_in(store: ObjectStore) -> list[str]:
    """Return the final names, listed or not."""
    return [path for path in paths_in(store) if not path.startswith("_")]


def numbers(*values: int) -> pa.Table:
    """Return rows of one column."""
    return pa.table({"n": pa.array(values, pa.int64())})


def a_schema(**columns: Any) -> pa.Schema:
    """Return a schema of columns by name and type."""
    return pa.schema(columns)
