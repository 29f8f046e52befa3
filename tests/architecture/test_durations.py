"""Lengths of time have one form in everything that users call: texts, timedeltas, microseconds."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import penstock
import penstock.operators
import penstock.testing

UNITS = ("_seconds", "_millis", "_micros", "_minutes")
INSTANTS = {"wake_at.processing_time_micros", "plan_splits.now_micros"}
"""What is a point in time, not a length."""


def public_callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield what users call; values that the package makes for them are not built by users."""
    for package in (penstock, penstock.operators, penstock.testing):
        for name in package.__all__:
            found = getattr(package, name)
            if not inspect.isclass(found):
                if callable(found):
                    yield name, found
                continue
            if "__init__" in vars(found) and not hasattr(found, "__dataclass_fields__"):
                yield name, found
            for method, called in inspect.getmembers(found, inspect.isfunction):
                if not method.startswith("_"):
                    yield f"{name}.{method}", called


def test_no_public_parameter_is_a_length_of_time_in_a_unit_of_its_own() -> None:
    offenders = [
        f"{name}.{parameter}"
        for name, called in public_callables()
        for parameter in inspect.signature(called).parameters
        if parameter.endswith(UNITS)
        and f"{name}.{parameter}".partition(".")[2] not in INSTANTS
    ]
    assert offenders == [], "take a DurationLike, and name it without a unit"
