"""`python -m penstock --version`: the version, and those of everything that results depend on.

A report of a problem starts with this line. None of these libraries is imported for it, so it
also answers where one of them is broken or missing.
"""

import argparse
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = {"Spark": "pyspark", "pyarrow": "pyarrow", "Polars": "polars"}
"""What results depend on most, by the names that people use."""


def describe_versions() -> str:
    """Return the version of Penstock and, in parentheses, those of what it runs on."""
    found = [f"Python {platform.python_version()}"]
    for shown, package in _PACKAGES.items():
        try:
            found.append(f"{shown} {version(package)}")
        except PackageNotFoundError:
            found.append(f"no {shown}")
    return f"penstock {version('penstock')} ({', '.join(found)})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer what the command line asks; if it asks nothing, show what can be asked."""
    parser = argparse.ArgumentParser(
        prog="penstock", description="Stateful stream processing in Python, on Spark."
    )
    parser.add_argument("--version", action="version", version=describe_versions())
    parser.parse_args(arguments)
    parser.print_help()


if __name__ == "__main__":
    main()
