"""Penstock: stateful stream processing in Python, on Spark, with open state.

Public names only. The layers, from the bottom: `errors`, `core`, `state`, `testing`.
"""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("penstock")
