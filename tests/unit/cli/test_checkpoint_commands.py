"""The commands about epochs: what they show, change and refuse."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import penstock as pen
from penstock.cli.app import app
from penstock.connectors.memory import list_source
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.state.storage.urls import to_store
from penstock.testing import LocalJob


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job that has run for some epochs, in the folder that commands take by default."""
    shop = pen.Pipeline("shop")
    rows = [{"user": f"u{number % 3}", "paid": number} for number in range(40)]
    sales = shop.read("sales", list_source(rows))
    sales.key_by("user").aggregate("spent", total=pen.sum("paid")).write(
        "out", pen.blackhole()
    )
    settings = DriverSettings(budget=SourceBudget(rows=5), adapts_budget=False)
    LocalJob(shop, store=to_store(str(tmp_path)), settings=settings).run(epochs=6)
    monkeypatch.setattr("penstock.cli.terminal.current", lambda: _Given(str(tmp_path)))
    return str(tmp_path)


class _Given:
    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint


def epochs(url: str) -> list[int]:
    return [epoch.epoch for epoch in pen.checkpoints(url, "shop").list()]


def test_epochs_are_listed_and_one_of_them_is_shown(url: str) -> None:
    listed = json.loads(run("checkpoints", "list", "shop", "--json").stdout)
    assert [each["epoch"] for each in listed] == epochs(url)
    newest = str(epochs(url)[0])
    assert newest in run("checkpoints", "list", "shop", "-c", url).stdout
    shown = run("checkpoints", "show", "shop", newest)
    assert "spent" in shown.stdout
    assert f"penstock restore shop {newest}" in shown.stderr
    as_json = json.loads(run("checkpoints", "show", "shop", newest, "--json").stdout)
    assert {table["step"] for table in as_json["tables"]} == {"sales", "spent"}


def test_an_epoch_that_is_not_kept_is_a_message_and_exit_code_9(url: str) -> None:
    result = run("checkpoints", "show", "shop", "999")
    assert result.exit_code == 9
    assert "no epoch '999'" in result.stderr


def test_a_savepoint_is_made_listed_and_deleted(url: str) -> None:
    oldest = str(epochs(url)[-1])
    made = run("savepoint", "create", "shop", "first", "--epoch", oldest)
    assert f"epoch {oldest} is kept as 'first'" in made.stdout
    assert "first" in run("savepoint", "list", "shop").stdout
    (found,) = json.loads(run("savepoint", "list", "shop", "--json").stdout)
    assert (found["name"], found["epoch"]) == ("first", int(oldest))
    assert run("savepoint", "delete", "shop", "first").exit_code == 0
    assert "no savepoints" in run("savepoint", "list", "shop").stderr
    assert run("savepoint", "delete", "shop", "first").exit_code == 9


def test_a_branch_begins_where_the_job_was(url: str) -> None:
    made = run("branch", "shop", "trial")
    assert made.exit_code == 0, made.output
    assert "trial" in run("jobs", url).stdout
    assert run("branch", "shop", "../x").exit_code == 2


def test_a_stopped_job_is_restored_by_number_and_by_name(url: str) -> None:
    kept = epochs(url)
    run("savepoint", "create", "shop", "first", "-e", str(kept[-1]))
    restored = run("restore", "shop", "first")
    assert restored.exit_code == 0, restored.output
    assert f"goes on from epoch {kept[-1]}" in restored.stdout


def test_a_dry_run_of_gc_says_what_the_collection_then_does(url: str) -> None:
    before = epochs(url)
    dry = run("gc", "shop", "--keep", "2", "--dry-run")
    assert epochs(url) == before
    assert dry.stdout.strip().endswith(", ".join(map(str, sorted(before[2:]))))
    assert run("gc", "shop", "--keep", "2").exit_code == 0
    assert epochs(url) == before[:2]
    again = run("gc", "shop", "--keep", "2", "--dry-run")
    assert again.stdout.strip().endswith("none")


def test_the_newest_epoch_cannot_be_collected(url: str) -> None:
    result = run("gc", "shop", "--keep", "0")
    assert result.exit_code == 2
    assert len(epochs(url)) > 0


def test_a_command_that_is_not_told_where_says_all_the_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.cli.terminal.current", lambda: _Given(""))
    result = run("status", "shop")
    assert result.exit_code == 2
    for way in ("--checkpoint", "PENSTOCK_CHECKPOINT", "penstock.toml"):
        assert way in result.stderr
