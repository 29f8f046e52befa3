"""A user's query sees the tables it is given, and reaches nothing else."""

import time
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import UserError
from penstock.inspect.querying import query_tables

TABLES = {"spent": pa.table({"user": ["ada", "bob"], "total": [7, 5]})}


def test_a_query_sees_its_tables() -> None:
    found = query_tables(TABLES, 'select "user" from spent where total > 6')
    assert found.to_pylist() == [{"user": "ada"}]


def test_several_tables_can_be_joined() -> None:
    both = {**TABLES, "names": pa.table({"user": ["ada"], "name": ["Ada L."]})}
    sql = "select name, total from spent join names using (user)"
    assert query_tables(both, sql).to_pylist() == [{"name": "Ada L.", "total": 7}]


@pytest.mark.parametrize(
    "attempt",
    [
        "select * from '{file}'",
        "select * from read_text('{file}')",
        "select * from read_csv('{file}')",
        "select * from read_json('{file}')",
        "select * from read_parquet('{file}')",
        "select * from read_blob('{file}')",
        "select * from parquet_metadata('{file}')",
        "select * from sniff_csv('{file}')",
        "select * from glob('{folder}/*')",
        "select * from 's3://bucket/x.parquet'",
        "select * from 'https://example.com/x.csv'",
        "copy spent to '{folder}/out.csv'",
        "copy spent to '{folder}/out.parquet' (format parquet)",
        "copy spent to '.tmp/out.csv'",
        "copy (select 1) to '/dev/stdout'",
        "export database '{folder}/all'",
        "import database '{folder}/all'",
        "attach '{folder}/other.db'",
        "attach ':memory:' as x; copy spent to '{folder}/out.csv'",
        "install httpfs",
        "load httpfs",
        "load '{file}'",
        "set enable_external_access = true",
        "set temp_directory = '{folder}'",
        "set lock_configuration = false",
        "reset temp_directory",
        "pragma temp_directory='{folder}'",
        "create persistent secret s (type s3)",
        "select getenv('HOME')",
        "select * from TABLES",
        "select * from secret_frame",
    ],
)
def test_nothing_else_is_in_reach(
    attempt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "secret.txt"
    file.write_text("hunter2")
    secret_frame = pa.table({"a": ["hunter2"]})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError) as caught:
        query_tables(TABLES, attempt.format(file=file, folder=tmp_path))
    assert "hunter2" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert secret_frame.num_rows == 1


def test_a_query_that_takes_too_long_is_stopped() -> None:
    began = time.monotonic()
    endless = "select count(*) from range(100000000000) a, range(100000) b where a.range > b.range"
    with pytest.raises(UserError, match="longer than 500ms"):
        query_tables(TABLES, endless, timeout="500ms")
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("sql", ["selec 1", "", ";"])
def test_what_is_no_query_gets_a_sentence(sql: str) -> None:
    with pytest.raises(UserError):
        query_tables(TABLES, sql)


def test_a_memory_limit_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="is no size"):
        query_tables(TABLES, "select 1", memory="much")
