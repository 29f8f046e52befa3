"""The commands about state: what they print and write, and what they refuse."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import penstock as pen
from penstock.cli.app import app
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.state.storage.urls import to_store
from penstock.testing import LocalJob, list_source

ROWS = [
    {"user": f"u{number % 3}", "shop": number % 2, "paid": number} for number in range(40)
]


@pytest.fixture
def url(tmp_path: Path) -> str:
    pipeline = pen.Pipeline("shop")
    sales = pipeline.read("sales", list_source(ROWS))
    sales.key_by("user").aggregate("spent", total=pen.sum("paid")).write(
        "out", pen.blackhole()
    )
    sales.key_by("user", "shop").aggregate("visits", n=pen.count()).write(
        "out2", pen.blackhole()
    )
    settings = DriverSettings(
        budget=SourceBudget(rows=5), adapts_budget=False, keep_epochs=100
    )
    LocalJob(pipeline, store=to_store(str(tmp_path / "c")), settings=settings).run(epochs=4)
    return str(tmp_path / "c")


def run(url: str, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["state", *(str(each) for each in arguments), "-c", url])


def rows(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.output
    found: list[dict[str, object]] = json.loads(result.stdout)
    return found


def test_tables_are_listed(url: str) -> None:
    assert "spent" in run(url, "tables", "shop").stdout
    found = rows(run(url, "tables", "shop", "--json"))
    assert {row["step"] for row in found} == {"sales", "spent", "visits"}


def test_rows_are_shown_cut_and_chosen(url: str) -> None:
    found = rows(run(url, "show", "shop", "spent", "-e", 1, "--json"))
    assert {row["user"]: row["total.sum"] for row in found} == {"u0": 3, "u1": 5, "u2": 2}
    only = rows(run(url, "show", "shop", "spent.partials", "--column", "user", "--json"))
    assert all(list(row) == ["user"] for row in only)
    cut = run(url, "show", "shop", "spent", "--limit", 1)
    assert "1 of 3 rows" in cut.stderr


def test_keys_are_looked_up_by_value_and_by_column(url: str) -> None:
    found = rows(run(url, "get", "shop", "spent", "u1", "nobody", "--json"))
    assert [row["user"] for row in found] == ["u1"]
    (one,) = rows(run(url, "get", "shop", "visits", "user=u1", "shop=1", "--json"))
    assert (one["user"], one["shop"]) == ("u1", 1)
    wrong = run(url, "get", "shop", "visits", "u1")
    assert wrong.exit_code == 2
    assert "user, shop" in wrong.stderr
    assert run(url, "get", "shop", "visits", "user=u1", "shop=x").exit_code == 2


def test_queries_see_tables_by_the_names_of_their_steps(url: str) -> None:
    sql = 'select count(*) as n from spent join visits using ("user")'
    assert rows(run(url, "query", "shop", sql, "--json")) == [{"n": 6}]
    refused = run(url, "query", "shop", "select * from read_text('/etc/hosts')")
    assert refused.exit_code == 2


def test_a_diff_tells_what_came_between_two_epochs(url: str) -> None:
    found = rows(run(url, "diff", "shop", "spent", 1, 2, "--json"))
    assert {row["change"] for row in found} == {"before", "after"}
    assert rows(run(url, "diff", "shop", "spent", 2, 2, "--json")) == []


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_table_is_exported_once(url: str, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"spent{suffix}"
    assert run(url, "export", "shop", "spent", path).exit_code == 0
    if suffix == ".parquet":
        assert pq.read_table(path).num_rows == 3
    else:
        assert len(path.read_text().splitlines()) == 4
    again = run(url, "export", "shop", "spent", path)
    assert again.exit_code == 2
    assert "already" in again.stderr
    assert run(url, "export", "shop", "spent", tmp_path / "spent.xls").exit_code == 2


def test_what_is_not_there_is_a_message_and_exit_code_9(url: str) -> None:
    assert run(url, "show", "shop", "nothing").exit_code == 9
    assert run(url, "show", "nobody", "spent").exit_code == 9
    assert run(url, "show", "shop", "spent", "-e", 99).exit_code == 9
