import os
import re
from pathlib import Path

import pytest

from penstock.connectors.files.discovery import FilePattern, parse_pattern, to_regex
from penstock.errors import ErrorCode, UserError
from penstock.state.storage.local_disk import LocalStore
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.urls import open_store


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*.csv", ["a.csv"], ["a/b.csv", ".a.csv", "_a.csv", "a.csv.gz"]),
        ("a?.csv", ["ab.csv"], ["a.csv", "a/.csv", "abc.csv"]),
        ("[a-c]1.csv", ["a1.csv", "c1.csv"], ["d1.csv"]),
        ("[!a-c]1.csv", ["d1.csv"], ["a1.csv"]),
        ("[!b]*.csv", ["a.csv"], ["b.csv", "_a.csv", ".a.csv"]),
        ("[_.a]*.csv", ["a.csv"], ["_a.csv", ".a.csv"]),
        ("[!b]*/*", ["a/c"], ["b/c", "_a/c", ".a/c", "a/_c"]),
        ("_*.csv", ["_a.csv", "__a.csv"], ["a.csv", "._a.csv"]),
        (".?.csv", [".a.csv", "._.csv"], ["_a.csv"]),
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


ODD_NAMES = (
    b"a#1.csv",
    b"b\\1.csv",
    b"c\n1.csv",
    b"d\x7f.csv",
    b"e\xff.csv",
    b"odd#/a.csv",
)


def write_bytes(path: bytes) -> None:
    """Write a file of a name that need not be text."""
    Path(os.fsdecode(path)).parent.mkdir(parents=True, exist_ok=True)
    Path(os.fsdecode(path)).write_bytes(b"n\n1\n")


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("pattern", ["**/*.csv", ""])
def test_files_that_are_meant_but_cannot_be_named_are_refused(
    tmp_path: Path, name: bytes, pattern: str
) -> None:
    write_bytes(bytes(tmp_path) + b"/in/fine.csv")
    write_bytes(bytes(tmp_path) + b"/in/" + name)
    files = parse_pattern(f"{tmp_path}/in/{pattern}")

    with pytest.raises(UserError, match="because of their names") as caught:
        files.list_files(open_store(files.root))

    message = str(caught.value)
    assert caught.value.code is ErrorCode.INVALID_NAME
    assert repr(os.fsdecode(name)) in message
    assert "Rename them" in message
    assert message.encode().isascii()


def test_a_single_file_that_cannot_be_named_is_refused(tmp_path: Path) -> None:
    write_bytes(bytes(tmp_path) + b"/a#1.csv")
    files = parse_pattern(f"{tmp_path}/a#1.csv")

    with pytest.raises(UserError, match=r"'a#1\.csv'\. Rename"):
        files.list_files(open_store(files.root))


def test_many_names_are_refused_at_once_and_some_are_shown(tmp_path: Path) -> None:
    for number in range(9):
        write_bytes(bytes(tmp_path) + b"/%d#.csv" % number)
    files = parse_pattern(f"{tmp_path}/*.csv")

    with pytest.raises(UserError, match=r"'0#\.csv', '1#\.csv', '2#\.csv' and 6 more"):
        files.list_files(open_store(files.root))


def test_odd_names_that_are_not_meant_do_no_harm(tmp_path: Path) -> None:
    for name in (b"fine.csv", b"a#1.txt", b"_a#1.csv", b"below/a#1.csv", b"#staging/a.csv"):
        write_bytes(bytes(tmp_path) + b"/" + name)

    for pattern in ("*.csv", "fine.csv"):
        files = parse_pattern(f"{tmp_path}/{pattern}")
        found = files.list_files(open_store(files.root))
        assert [info.path for info in found] == ["fine.csv"]


def test_what_a_store_below_is_writing_is_not_meant(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "out")
    store.put("a.csv", b"n\n1\n")
    (tmp_path / "out" / "#staging" / "token").write_bytes(b"")
    files = parse_pattern(f"{tmp_path}/")

    found = files.list_files(open_store(files.root))

    assert [info.path for info in found] == ["out/a.csv"]


def test_a_path_that_is_too_long_for_a_store_is_refused(tmp_path: Path) -> None:
    write_bytes(bytes(tmp_path) + b"/" + b"/".join([b"x" * 200] * 6) + b".csv")
    files = parse_pattern(f"{tmp_path}/**/*.csv")

    with pytest.raises(UserError, match="at most 1024 bytes"):
        files.list_files(open_store(files.root))


def test_a_folder_is_read_under_its_own_name_and_not_by_links_to_it(tmp_path: Path) -> None:
    (tmp_path / "2026-01-01").mkdir()
    (tmp_path / "2026-01-01" / "a.csv").write_bytes(b"1")
    (tmp_path / "latest").symlink_to("2026-01-01")
    (tmp_path / "up").symlink_to(tmp_path)

    for path, expected in (
        ("*/*.csv", "2026-01-01/a.csv"),
        ("**", "2026-01-01/a.csv"),
        ("latest/*.csv", "a.csv"),
        ("latest", "latest/a.csv"),
    ):
        files = parse_pattern(f"{tmp_path}/{path}")
        found = files.list_files(open_store(files.root))
        assert [info.path for info in found] == [expected]
