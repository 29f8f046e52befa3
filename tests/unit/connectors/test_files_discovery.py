import re
from pathlib import Path

import pytest

from penstock.connectors.files_discovery import FilePattern, parse_pattern, to_regex
from penstock.errors import UserError
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.urls import open_store


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*.csv", ["a.csv"], ["a/b.csv", ".a.csv", "_a.csv", "a.csv.gz"]),
        ("a?.csv", ["ab.csv"], ["a.csv", "a/.csv", "abc.csv"]),
        ("[a-c]1.csv", ["a1.csv", "c1.csv"], ["d1.csv"]),
        ("[!a-c]1.csv", ["d1.csv"], ["a1.csv"]),
        ("a[1", ["a[1"], ["a1"]),
        (
            "**/*.csv",
            ["a.csv", "x/a.csv", "x/y/a.csv"],
            ["_x/a.csv", "x/.y/a.csv", "a.txt"],
        ),
        ("x/**", ["x/a", "x/y/a.csv"], ["x", "y/a", "x/_a", "x/_staging/a"]),
        ("x/**/z/*", ["x/z/a", "x/y/z/a"], ["x/a"]),
        ("*/a.csv", ["x/a.csv"], ["a.csv", "x/y/a.csv", "_x/a.csv"]),
        ("_x/*", ["_x/a"], ["x/a"]),
        ("a.b", ["a.b", "a.b/c", "a.b/c/d"], ["axb", "a.b/_c"]),
    ],
)
def test_a_pattern_names_some_files_and_not_others(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    matches = re.compile(to_regex(pattern)).fullmatch

    assert [path for path in [*matching, *others] if matches(path)] == matching


@pytest.mark.parametrize(
    ("path", "root", "pattern"),
    [
        ("s3://lake/bids/*.parquet", "s3://lake/bids", "*.parquet"),
        ("s3://lake/*/x/*.parquet", "s3://lake", "*/x/*.parquet"),
        ("gs://lake/bids/", "gs://lake/bids", "**"),
        ("s3://lake/a.csv", "s3://lake", "a.csv"),
        ("/data/bids/*.csv", "file:///data/bids", "*.csv"),
        ("file:///data/a%20b/c%20*.csv", "file:///data/a%20b", "c *.csv"),
        ("/data/bids", "file:///data", "bids"),
        ("memory:lake/bids/*.csv", "memory:lake", "bids/*.csv"),
    ],
)
def test_a_path_is_parted_into_store_and_pattern(
    path: str, root: str, pattern: str
) -> None:
    assert parse_pattern(path) == FilePattern(root, pattern)


def test_a_relative_path_means_the_working_folder_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert parse_pattern("bids/*.csv").root == (tmp_path / "bids").as_uri()
    assert parse_pattern("*.csv").root == tmp_path.as_uri()


@pytest.mark.parametrize("path", ["", "/"])
def test_a_path_that_names_nothing_is_refused(path: str) -> None:
    with pytest.raises(UserError, match="names no files"):
        parse_pattern(path)


def test_files_are_listed_in_order_of_path_with_their_sizes() -> None:
    store = MemoryStore({"x/b.csv": b"12", "x/a.csv": b"1", "x/c.txt": b"", "y.csv": b""})
    files = FilePattern("memory:", "x/*.csv")

    assert [(info.path, info.size_bytes) for info in files.list_files(store)] == [
        ("x/a.csv", 1),
        ("x/b.csv", 2),
    ]


def test_a_path_without_wildcards_is_a_file_or_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out" / "day=1").mkdir(parents=True)
    (tmp_path / "out" / "day=1" / "a.csv").write_bytes(b"1")
    (tmp_path / "out" / "_staged").write_bytes(b"1")
    (tmp_path / "b.csv").write_bytes(b"12")

    for name, expected in (("out", "out/day=1/a.csv"), ("b.csv", "b.csv")):
        files = parse_pattern(f"{tmp_path}/{name}")
        found = files.list_files(open_store(files.root))
        assert [info.path for info in found] == [expected]
