"""Files that are looked up: read whole, and never half in the middle of a change."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typing_extensions import override

from penstock.connectors.files.lookup import FilesLookup, load_files, lookup_files
from penstock.errors import ErrorCode, ExternalError, UserError
from penstock.state.storage.local_disk import LocalStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store


def put(folder: Path, name: str, *numbers: int) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"n": list(numbers)}), folder / name)


def load(lookup: FilesLookup, store: ObjectStore | None = None) -> list[int]:
    config = lookup.spec.source_config()
    rows = load_files(config, store or open_store(config.root))
    return [row["n"] for row in rows.to_pylist()]


class Meddling(LocalStore):
    """A folder in which something happens whenever a file is about to be read."""

    def __init__(self, root: Path, meddle: Callable[[str], None]) -> None:
        super().__init__(root)
        self._meddle = meddle

    @override
    def read(self, path: str) -> bytes | None:
        self._meddle(path)
        return super().read(path)


def test_all_files_of_all_formats_are_one_table(tmp_path: Path) -> None:
    put(tmp_path, "b.parquet", 3, 4)
    put(tmp_path, "a.parquet", 1, 2)
    put(tmp_path, "empty.parquet")
    assert load(lookup_files(tmp_path / "[ab]*.parquet")) == [1, 2, 3, 4]
    (tmp_path / "a.csv").write_text("n\n5\n6\n")
    (tmp_path / "a.jsonl").write_text('{"n": 7}\n')
    assert load(lookup_files(tmp_path / "a.csv", schema={"n": int})) == [5, 6]
    assert load(lookup_files(tmp_path / "*.jsonl", schema={"n": int})) == [7]


def test_a_file_without_rows_is_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n")
    assert load(lookup_files(tmp_path / "a.csv", schema={"n": int})) == []


def test_a_file_that_vanishes_while_files_are_read_lets_them_be_listed_again(
    tmp_path: Path,
) -> None:
    put(tmp_path, "a.parquet", 1)
    put(tmp_path, "b.parquet", 2)

    def meddle(path: str) -> None:
        if path == "b.parquet" and (tmp_path / path).exists():
            (tmp_path / path).unlink()
            put(tmp_path, "c.parquet", 3)

    lookup = lookup_files(tmp_path / "*.parquet")
    assert load(lookup, Meddling(tmp_path, meddle)) == [1, 3]


def test_a_file_that_comes_while_files_are_read_lets_them_be_listed_again(
    tmp_path: Path,
) -> None:
    put(tmp_path, "a.parquet", 1)
    store = Meddling(tmp_path, lambda _: put(tmp_path, "b.parquet", 2))
    assert load(lookup_files(tmp_path / "*.parquet"), store) == [1, 2]


def test_files_that_never_stay_the_same_are_refused(tmp_path: Path) -> None:
    count = iter(range(100))
    put(tmp_path, "a.parquet", 1)
    store = Meddling(tmp_path, lambda _: put(tmp_path, f"b{next(count)}.parquet", 2))
    with pytest.raises(ExternalError, match="changed while it was read") as error:
        load(lookup_files(tmp_path / "*.parquet"), store)
    assert error.value.code == ErrorCode.INPUT_CHANGED


@pytest.mark.parametrize("path", ["missing/*.parquet", "*.csv"])
def test_a_missing_and_an_empty_folder_are_refused_when_the_pipeline_is_built(
    tmp_path: Path, path: str
) -> None:
    with pytest.raises(UserError, match="names no file: correct the path"):
        _ = lookup_files(tmp_path / path).schema


def test_a_row_that_cannot_be_read_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n5\nsix\n")
    with pytest.raises(UserError, match=r"a\.csv, line 3, cannot be read"):
        load(lookup_files(tmp_path / "a.csv", schema={"n": int}))


@pytest.mark.parametrize("reload", ["0s", "10 minutes", -5])
def test_an_interval_that_is_none_is_refused(reload: object) -> None:
    with pytest.raises(UserError):
        lookup_files("a.csv", reload=reload)  # type: ignore[arg-type]
