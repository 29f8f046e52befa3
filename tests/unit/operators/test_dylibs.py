import hashlib
import os
import tempfile
from pathlib import Path

import pytest

from penstock.errors import ErrorCode, UserError
from penstock.operators.dylibs import load_dylib, open_dylib
from penstock.operators.registry import Registry
from penstock.state.storage.urls import open_store

LIBRARY = b"\x7fELF not really"
SHA256 = hashlib.sha256(LIBRARY).hexdigest()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libs" / "plugin.so"
    path.parent.mkdir()
    path.write_bytes(LIBRARY)
    return path


def test_a_library_is_copied_to_a_path_named_by_its_hash(
    library: Path, tmp_path: Path
) -> None:
    found = load_dylib(str(library), SHA256, cache_root=tmp_path)
    assert found == tmp_path / "dylibs" / f"{SHA256}.so"
    assert found.read_bytes() == LIBRARY
    assert list(found.parent.iterdir()) == [found], "no temporary file is left"


def test_a_cached_library_is_not_fetched_again(library: Path, tmp_path: Path) -> None:
    first = load_dylib(str(library), SHA256, cache_root=tmp_path)
    library.unlink()
    assert load_dylib(str(library), SHA256, cache_root=tmp_path) == first


def test_a_damaged_copy_is_fetched_again(library: Path, tmp_path: Path) -> None:
    copy = load_dylib(str(library), SHA256, cache_root=tmp_path)
    copy.write_bytes(LIBRARY[:-1])
    assert load_dylib(str(library), SHA256, cache_root=tmp_path) == copy
    assert copy.read_bytes() == LIBRARY


def test_a_copy_damaged_before_this_process_is_fetched_again(
    library: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "dylibs" / f"{SHA256}.so"
    copy.parent.mkdir()
    copy.write_bytes(b"torn")
    assert load_dylib(str(library), SHA256, cache_root=tmp_path).read_bytes() == LIBRARY


def test_another_hash_is_refused_with_both_and_nothing_is_kept(
    library: Path, tmp_path: Path
) -> None:
    declared = "0" * 64
    with pytest.raises(UserError) as caught:
        load_dylib(str(library), declared, cache_root=tmp_path)
    assert caught.value.code is ErrorCode.LIBRARY_MISMATCH
    assert SHA256 in caught.value.message
    assert declared in caught.value.message
    assert list((tmp_path / "dylibs").iterdir()) == []


@pytest.mark.parametrize("text", ["", "abc", SHA256.upper(), f"{SHA256}0", f"../{SHA256}"])
def test_text_that_is_no_hash_is_refused(text: str, library: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="64 lower-case hex digits") as caught:
        load_dylib(str(library), text, cache_root=tmp_path)
    assert caught.value.code is ErrorCode.LIBRARY_MISMATCH


def test_a_missing_library_is_named_and_no_folder_is_made(tmp_path: Path) -> None:
    missing = tmp_path / "absent" / "plugin.so"
    with pytest.raises(UserError, match="there is no library") as caught:
        load_dylib(str(missing), SHA256, cache_root=tmp_path)
    assert caught.value.code is ErrorCode.OBJECT_MISSING
    assert not missing.parent.exists()


def test_a_library_comes_from_a_file_url(tmp_path: Path) -> None:
    path = tmp_path / "with space.so"
    path.write_bytes(LIBRARY)
    found = load_dylib(path.as_uri(), SHA256, cache_root=tmp_path)
    assert found.read_bytes() == LIBRARY


def test_a_library_comes_from_a_store(tmp_path: Path) -> None:
    open_store("memory:test-dylibs").put("plugin.so", LIBRARY)
    found = load_dylib("memory:test-dylibs/plugin.so", SHA256, cache_root=tmp_path)
    assert found.read_bytes() == LIBRARY
    with pytest.raises(UserError, match="there is no library"):
        load_dylib("memory:test-dylibs/other.so", "0" * 64, cache_root=tmp_path)


def test_what_is_no_library_cannot_be_opened(library: Path, tmp_path: Path) -> None:
    copy = load_dylib(str(library), SHA256, cache_root=tmp_path)
    with pytest.raises(UserError, match="Build it for this operating system") as caught:
        open_dylib(copy)
    assert caught.value.code is ErrorCode.LIBRARY_MISMATCH


def test_the_registry_keeps_libraries_in_a_folder_of_its_own(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = Registry().load_dylib(str(library), SHA256)
    assert found.read_bytes() == LIBRARY
    assert found.parent.stat().st_mode & 0o077 == 0, "nobody else may write there"
    assert found.stat().st_uid == os.getuid()


def test_a_folder_of_somebody_else_is_not_used(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"penstock-dylibs-{os.getuid()}").symlink_to(elsewhere)
    with pytest.raises(UserError, match="belongs to somebody else"):
        load_dylib(str(library), SHA256)
    assert list(elsewhere.iterdir()) == []
