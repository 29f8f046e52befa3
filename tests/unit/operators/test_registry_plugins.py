from pathlib import Path

import pytest

from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.registry import ENTRY_POINT_GROUP, Registry

MODULE = """
from dataclasses import dataclass

from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import ConstructedOperator, OperatorConstructor


@dataclass(frozen=True)
class Config:
    factor: int = 1


class Scale(ArrowOperator):
    def name(self):
        return "plugged-scale"

    def process_batch(self, batch, ctx, collector):
        collector.collect(batch)


class Constructor(OperatorConstructor):
    config_type = Config

    def with_config(self, config, registry):
        return ConstructedOperator(Scale())


def register(registry):
    registry.add("plugged.scale", Constructor())


def register_broken(registry):
    raise RuntimeError("no licence")


MODULE_NUMBER = 7
"""


def _install(folder: Path, module: str, *entry_points: str) -> None:
    """Lay a package out as an installer would."""
    (folder / f"{module}.py").write_text(MODULE)
    info = folder / f"{module}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.2\n")
    lines = [f"[{ENTRY_POINT_GROUP}]", *entry_points]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def test_an_installed_package_adds_its_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tmp_path, "penstock_plug_good", "good = penstock_plug_good:register")
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry()
    registry.load_entry_points()
    assert registry.construct(OperatorSpec("plugged.scale")).name() == "plugged-scale"


@pytest.mark.parametrize(
    ("module", "target", "cause"),
    [
        ("penstock_plug_1", "penstock_plug_absent:register", "ModuleNotFoundError"),
        ("penstock_plug_2", "penstock_plug_2:absent", "AttributeError"),
        ("penstock_plug_3", "penstock_plug_3:register_broken", "RuntimeError: no licence"),
        ("penstock_plug_4", "penstock_plug_4:MODULE_NUMBER", "TypeError"),
    ],
)
def test_a_package_that_cannot_be_loaded_is_named(
    module: str, target: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tmp_path, module, f"bad = {target}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError) as caught:
        Registry().load_entry_points()
    assert caught.value.code is ErrorCode.PLUGIN_FAILED
    assert f"operators of {module} 1.2" in caught.value.message
    assert cause in caught.value.message
    assert caught.value.__cause__ is not None


def test_a_kind_that_two_packages_add_is_an_error_that_names_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        module = f"penstock_plug_twice_{name}"
        _install(tmp_path, module, f"{name} = {module}:register")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"penstock_plug_twice_b 1\.2") as caught:
        Registry().load_entry_points()
    assert "'plugged.scale' is taken" in caught.value.message


def test_other_groups_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tmp_path, "penstock_plug_other", "x = penstock_plug_other:register")
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry()
    registry.load_entry_points("penstock.no-such-group")
    assert registry.constructors == {}
