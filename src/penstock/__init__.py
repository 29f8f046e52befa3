"""Penstock: stateful stream processing in Python, on Spark, with open state.

Public names only. The layers, from the bottom: `errors`, `core`, `graph` and `state`,
`operators`, `connectors`, `runtime`, `api`, `testing`.
"""

from importlib.metadata import version

from penstock.api.pipeline import Pipeline
from penstock.api.stream import KeyedStream, Stream

__all__ = ["KeyedStream", "Pipeline", "Stream", "__version__"]

__version__ = version("penstock")
