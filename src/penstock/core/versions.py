"""Versions of Penstock and of everything that results depend on, for reports of problems.

None of these libraries is imported for it, so it also answers where one of them is broken or
missing.
"""

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = {"Spark": "pyspark", "pyarrow": "pyarrow", "Polars": "polars"}
"""What results depend on most, by the names that people use."""


def own_version() -> str:
    """Return the version of Penstock; executors may have its files without its metadata."""
    try:
        return version("penstock")
    except PackageNotFoundError:
        return "unknown"


def describe_versions() -> str:
    """Return the version of Penstock and, in parentheses, those of what it runs on."""
    found = [f"Python {platform.python_version()}"]
    for shown, package in _PACKAGES.items():
        try:
            found.append(f"{shown} {version(package)}")
        except PackageNotFoundError:
            found.append(f"no {shown}")
    return f"penstock {own_version()} ({', '.join(found)})"
