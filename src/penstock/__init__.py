"""Penstock: stateful stream processing in Python, on Spark, with open state.

Public names only; `__init__.pyi` lists them. The layers, from the bottom: `errors`, `core`,
`graph` and `state`, `operators`, `connectors`, `catalog`, `runtime`, `api`, `console` beside
`testing`. A name is imported when it is first used: a worker, the command line or a test of
one layer must not pay for the libraries of all of them. What authors of operators need is in
`penstock.operators`.
"""

from importlib.metadata import PackageNotFoundError, version

from penstock.core import spellings

__getattr__, __dir__, __all__ = spellings.attach(
    __name__,
    __file__,
    others=("penstock.operators", "penstock.testing", "penstock.errors"),
)
try:
    __version__ = version("penstock")
except PackageNotFoundError:
    # Executors may get the package as files on their path, without its metadata.
    __version__ = "unknown"
__all__ += ["__version__"]
