"""A verification reads all that kept epochs need, finds every damage, and changes nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

import penstock as pen
from penstock.errors import StateError
from penstock.inspect.verifying import verify_job
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.state.storage.urls import to_store
from penstock.testing import LocalJob, list_source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shop = pen.Pipeline("shop")
    rows = [{"user": f"u{number % 3}", "paid": number} for number in range(40)]
    sales = shop.read("sales", list_source(rows))
    sales.key_by("user").aggregate("spent", total=pen.sum("paid")).write(
        "out", pen.blackhole()
    )
    settings = DriverSettings(budget=SourceBudget(rows=5), adapts_budget=False)
    LocalJob(shop, store=to_store(str(tmp_path)), settings=settings).run(epochs=5)
    return tmp_path


def test_a_whole_job_is_found_whole_and_left_as_it_is(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    found = verify_job(str(folder), "shop")
    assert found.is_whole
    assert found.epochs >= 5
    assert found.objects > found.epochs
    assert "All of them are whole" in str(found)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("harm", [flip, Path.unlink], ids=["flipped", "gone"])
@pytest.mark.parametrize("kind", ["*.parquet", "*.metadata", "manifest.pb"])
def test_every_damage_is_found_and_named(
    folder: Path, kind: str, harm: Callable[[Path], None]
) -> None:
    harmed = sorted(folder.rglob(kind))[-1]
    harm(harmed)
    found = verify_job(str(folder), "shop")
    assert not found.is_whole
    assert any(harmed.name in problem for problem in found.problems)


def test_epochs_that_a_lost_record_hides_are_found(folder: Path) -> None:
    sorted(folder.rglob("*.record"))[1].unlink()
    (problem,) = verify_job(str(folder), "shop").problems
    assert "the record of epoch 2 is gone" in problem


def test_a_damaged_record_is_named(folder: Path) -> None:
    harmed = sorted(folder.rglob("epochs/*.record"))[2]
    flip(harmed)
    (problem,) = verify_job(str(folder), "shop").problems
    assert harmed.name in problem


def test_a_job_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no job 'nobody'"):
        verify_job(str(tmp_path), "nobody")
