from pathlib import Path
from typing import Any

import pytest

from penstock.core import settings
from penstock.core.settings import CompactionSettings, Settings, load_settings
from penstock.errors import ErrorCode, SettingsError


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_without_a_word_from_anybody_the_defaults_count() -> None:
    assert load_settings({}) == Settings()


def test_every_setting_can_come_from_the_environment(tmp_path: Path) -> None:
    loaded = load_settings(
        {
            "PENSTOCK_HASH_BITS": "8",
            "PENSTOCK_CACHE_ROOT": str(tmp_path),
            "PENSTOCK_CACHE_LIMIT_BYTES": "10GB",
            "PENSTOCK_MEMORY_BUDGET_BYTES": "512 MiB",
            "PENSTOCK_KEEP_EPOCHS": "3",
            "PENSTOCK_PROFILE_ROOT": str(tmp_path),
            "PENSTOCK_EXCHANGE_COMPRESSION": "lz4",
            "PENSTOCK_EPOCH_DEADLINE_SECONDS": "90",
            "PENSTOCK_COMPACTION_MIN_FILES": "5",
            "PENSTOCK_COMPACTION_MIN_EXPIRING_FILES": "6",
            "PENSTOCK_COMPACTION_MAX_RUNS": "20",
            "PENSTOCK_COMPACTION_TARGET_FILE_BYTES": "1048576",
            "PENSTOCK_COMPACTION_COMPACT_GENERATIONS": "0, 2",
            "PATH": "/bin",
        }
    )

    assert loaded == Settings(
        hash_bits=8,
        cache_root=str(tmp_path),
        cache_limit_bytes=10_000_000_000,
        memory_budget_bytes=512 << 20,
        keep_epochs=3,
        profile_root=str(tmp_path),
        exchange_compression="lz4",
        epoch_deadline_seconds=90,
        compaction=CompactionSettings(
            min_files=5,
            min_expiring_files=6,
            max_runs=20,
            target_file_bytes=1 << 20,
            compact_generations=(0, 2),
        ),
    )


def test_every_setting_can_come_from_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path / "any.toml",
        f"""
        hash_bits = 8
        cache_root = "{tmp_path.as_posix()}"
        cache_limit_bytes = "10GB"
        memory_budget_bytes = 536870912
        keep_epochs = 3
        profile_root = "{tmp_path.as_posix()}"
        exchange_compression = "lz4"
        epoch_deadline_seconds = 90
        [compaction]
        min_files = 5
        min_expiring_files = 6
        max_runs = 20
        target_file_bytes = "1MiB"
        compact_generations = [0, 2]
        """,
    )

    assert load_settings({}, path) == Settings(
        hash_bits=8,
        cache_root=tmp_path.as_posix(),
        cache_limit_bytes=10_000_000_000,
        memory_budget_bytes=512 << 20,
        keep_epochs=3,
        profile_root=str(tmp_path),
        exchange_compression="lz4",
        epoch_deadline_seconds=90,
        compaction=CompactionSettings(
            min_files=5,
            min_expiring_files=6,
            max_runs=20,
            target_file_bytes=1 << 20,
            compact_generations=(0, 2),
        ),
    )


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "any.toml", "keep_epochs = 3\nhash_bits = 9")
    loaded = load_settings({"PENSTOCK_KEEP_EPOCHS": "4"}, path)

    assert (loaded.keep_epochs, loaded.hash_bits) == (4, 9)


def test_the_file_of_the_working_directory_is_read(tmp_path: Path) -> None:
    write(tmp_path / "penstock.toml", "keep_epochs = 3")

    assert load_settings({}).keep_epochs == 3


def test_a_named_file_is_read_instead_of_that_of_the_working_directory(
    tmp_path: Path,
) -> None:
    write(tmp_path / "penstock.toml", "keep_epochs = 3")
    named = write(tmp_path / "named.toml", "hash_bits = 9")
    loaded = load_settings({"PENSTOCK_CONFIG": str(named)})

    assert (loaded.keep_epochs, loaded.hash_bits) == (Settings().keep_epochs, 9)


def test_a_path_given_in_the_call_wins_over_a_named_file(tmp_path: Path) -> None:
    named = write(tmp_path / "named.toml", "keep_epochs = 3")
    given = write(tmp_path / "given.toml", "keep_epochs = 4")

    assert load_settings({"PENSTOCK_CONFIG": str(named)}, given).keep_epochs == 4


def test_an_empty_variable_counts_as_absent() -> None:
    assert load_settings({"PENSTOCK_HASH_BITS": "", "PENSTOCK_CONFIG": ""}) == Settings()


def test_names_of_the_test_suite_are_left_alone() -> None:
    assert load_settings({"PENSTOCK_TEST_HISTORIES": "5"}) == Settings()


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1h30m", 5_400)])
def test_lengths_of_time_are_read_with_their_unit(text: str, seconds: int) -> None:
    settings = load_settings({"PENSTOCK_EPOCH_DEADLINE_SECONDS": text})
    assert settings.epoch_deadline_seconds == seconds


@pytest.mark.parametrize("text", ["soon", "500ms", "1.5s", "0s", "-1", "6 h"])
def test_what_is_no_length_of_time_in_seconds_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="a duration such as '90s' or '6h'"):
        load_settings({"PENSTOCK_EPOCH_DEADLINE_SECONDS": text})


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1048576", 1 << 20),
        ("1048576b", 1 << 20),
        ("2000kb", 2_000_000),
        ("2000 KiB", 2_048_000),
        ("2M", 2_000_000),
        ("2Mi", 2 << 20),
        ("1.5 GiB", 3 << 29),
        ("3TB", 3_000_000_000_000),
        (" 3tib ", 3 << 40),
    ],
)
def test_sizes_are_read_with_their_unit(text: str, size_bytes: int) -> None:
    assert (
        load_settings({"PENSTOCK_CACHE_LIMIT_BYTES": text}).cache_limit_bytes == size_bytes
    )


@pytest.mark.parametrize(
    "text", ["", "GB", "10 XB", "-1GB", "1e9", "10GB!", "1,5GB", "٣GB", "inf"]
)
def test_what_is_no_size_is_refused(text: str, tmp_path: Path) -> None:
    path = write(tmp_path / "any.toml", f'cache_limit_bytes = "{text}"')

    with pytest.raises(SettingsError, match="expected a size of at least 1,048,576 bytes"):
        load_settings({}, path)


@pytest.mark.parametrize("text", ["0", "65", "-1", "8.0", "eight", "0x8", "true", "9" * 30])
def test_what_is_no_number_of_bits_is_refused(text: str) -> None:
    with pytest.raises(
        SettingsError, match="expected a whole number from 1 to 64"
    ) as caught:
        load_settings({"PENSTOCK_HASH_BITS": text})

    assert (
        f"hash_bits = {text!r} in the variable PENSTOCK_HASH_BITS" in caught.value.message
    )
    assert caught.value.code is ErrorCode.INVALID_SETTING


@pytest.mark.parametrize("toml", ["true", "8.0", "[8]", "1979-05-27", '"eight"'])
def test_values_of_another_type_in_the_file_are_refused(toml: str, tmp_path: Path) -> None:
    path = write(tmp_path / "any.toml", f"hash_bits = {toml}")

    with pytest.raises(SettingsError, match="expected a whole number from 1 to 64"):
        load_settings({}, path)


def test_a_relative_cache_root_is_refused_because_every_process_would_resolve_it_anew() -> (
    None
):
    with pytest.raises(
        SettingsError, match=r"cache_root = 'cache'.*expected an absolute directory"
    ):
        load_settings({"PENSTOCK_CACHE_ROOT": "cache"})


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    path = write(
        tmp_path / "any.toml",
        "hash_bits = 65\nkeep_epoch = 3\ncompaction = {min_files = 30, runs = 3}",
    )
    with pytest.raises(SettingsError) as caught:
        load_settings({"PENSTOCK_CACHE_LIMIT": "1GB", "PENSTOCK_KEEP_EPOCHS": "0"}, path)

    assert (
        caught.value.message
        == f"""\
6 of the settings cannot work:
  hash_bits = 65 in {path}: expected a whole number from 1 to 64
  keep_epoch = 3 in {path}: there is no such setting; did you mean 'keep_epochs'?
  compaction.runs = 3 in {path}: there is no such setting; did you mean 'compaction.max_runs'?
  PENSTOCK_CACHE_LIMIT = '1GB' in the variable PENSTOCK_CACHE_LIMIT: there is no such setting; \
did you mean 'PENSTOCK_CACHE_LIMIT_BYTES'?
  keep_epochs = '0' in the variable PENSTOCK_KEEP_EPOCHS: expected a whole number from 1 to \
1,000,000
  compaction.max_runs = 16: expected at least compaction.min_files, which is 30, or no merge \
is ever worth while before an epoch has to wait for one
Correct them where they were set and start again."""
    )


def test_a_section_nobody_knows_is_refused_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "any.toml", "[compactoin]\nmin_files = 4")

    with pytest.raises(
        SettingsError, match=r"compactoin = \{'min_files': 4\}.*no such setting"
    ):
        load_settings({}, path)


def test_a_value_where_a_section_belongs_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "any.toml", "compaction = 4")

    with pytest.raises(SettingsError, match=r"compaction = 4 .*there is no such setting"):
        load_settings({}, path)


def test_a_missing_file_is_told_with_its_path(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    with pytest.raises(SettingsError, match="cannot be read") as caught:
        load_settings({"PENSTOCK_CONFIG": str(missing)})

    assert str(missing) in caught.value.message
    assert caught.value.context == {"path": str(missing)}


@pytest.mark.parametrize(
    "content", [b"hash_bits = ", b"hash_bits = 8\nhash_bits = 8", b"\xff"]
)
def test_a_file_that_is_not_toml_is_told_with_its_path(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "any.toml"
    path.write_bytes(content)

    with pytest.raises(SettingsError, match="is not TOML") as caught:
        load_settings({}, path)
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"hash_bits": 0}, "hash_bits"),
        ({"hash_bits": True}, "hash_bits"),
        ({"hash_bits": None}, "hash_bits"),
        ({"cache_limit_bytes": "10GB"}, "cache_limit_bytes"),
        ({"cache_root": ""}, "cache_root"),
        ({"compaction": CompactionSettings(min_files=1)}, "compaction.min_files"),
        (
            {"compaction": CompactionSettings(compact_generations=(-1,))},
            "compaction.compact_generations",
        ),
    ],
)
def test_settings_made_in_code_are_checked_too(wrong: dict[str, Any], key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings(**wrong)

    assert f"  {key} = " in caught.value.message


def test_contradictions_made_in_code_are_found() -> None:
    with pytest.raises(SettingsError, match=r"expected at least compaction\.min_files"):
        Settings(compaction=CompactionSettings(min_files=9, max_runs=8))


def test_the_settings_of_a_process_are_read_once() -> None:
    assert settings.current() is settings.current()
