"""The public face: `__all__` of the three public packages equals reality."""

import importlib
import inspect
from types import ModuleType

import pytest

import penstock

PUBLIC = ["penstock", "penstock.operators", "penstock.testing"]


def names_a_reader_sees(module: ModuleType) -> set[str]:
    """Return what a public package binds itself: neither private names nor its own modules."""
    return {
        name
        for name, value in vars(module).items()
        if not inspect.ismodule(value)
        and (not name.startswith("_") or name == "__version__")
        and getattr(value, "__module__", module.__name__).startswith("penstock")
    }


@pytest.mark.parametrize("name", PUBLIC)
def test_all_lists_exactly_what_a_public_package_offers(name: str) -> None:
    module = importlib.import_module(name)
    for exported in module.__all__:
        getattr(module, exported)  # names may be imported at their first use
    assert sorted(module.__all__) == sorted(names_a_reader_sees(module))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_exported_object_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    undocumented = [
        exported
        for exported in module.__all__
        if callable(getattr(module, exported))
        and not inspect.getdoc(getattr(module, exported))
    ]
    assert undocumented == []


def test_the_version_is_the_installed_one() -> None:
    assert penstock.__version__
