"""Names of files that were read are forgotten some time after the files have gone."""

from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.files.connector import files
from penstock.connectors.files.discovery import LISTING, ORIGIN, GoneFiles
from penstock.errors import UserError
from penstock.operators.splits import SplitState
from penstock.state.storage.memory import MemoryStore
from penstock.testing import SourceHarness
from tests.builders.files_job import SCHEMA, some_rows, write_file

HOUR = 3_600_000_000
WEEK = 7 * 24 * HOUR


def a_harness(folder: Path, **options: Any) -> SourceHarness:
    options = {"discover": "1h", "schema": SCHEMA, **options}
    return SourceHarness(files(f"{folder}/*.jsonl", **options).source_spec())


def names(harness: SourceHarness) -> set[str]:
    return set(harness.splits) - {ORIGIN, LISTING}


def numbers(harness: SourceHarness) -> list[int]:
    return sorted(row["n"] for row in harness.rows())


def live(harness: SourceHarness, folder: Path, hours: int, start: int) -> None:
    """Let time go by; in every hour a new file comes."""
    for index in range(hours):
        n = start + index
        write_file(folder / f"{n:06}.jsonl", some_rows(n, n + 1))
        harness.advance("1h")
        harness.read()


def test_the_names_of_files_that_are_gone_for_long_are_forgotten(tmp_path: Path) -> None:
    with a_harness(tmp_path, remember="6h") as harness:
        for index in range(40):
            live(harness, tmp_path, 1, index)
            for old in sorted(tmp_path.iterdir())[:-2]:
                old.unlink()
            if index % 7 == 3:
                harness.rescale(1 + index % 3)

        assert numbers(harness) == list(range(40))
        assert len(names(harness)) <= 12


def test_the_name_of_a_file_that_is_there_is_never_forgotten(tmp_path: Path) -> None:
    with a_harness(tmp_path, remember="1h") as harness:
        live(harness, tmp_path, 20, 0)

        assert len(names(harness)) == 20
        assert numbers(harness) == list(range(20))


def test_a_file_that_comes_back_before_its_name_is_forgotten_is_not_read_again(
    tmp_path: Path,
) -> None:
    with a_harness(tmp_path, remember="10h") as harness:
        live(harness, tmp_path, 1, 0)
        away = (tmp_path / "000000.jsonl").rename(tmp_path / "away")
        live(harness, tmp_path, 5, 1)
        away.rename(tmp_path / "000000.jsonl")
        live(harness, tmp_path, 20, 6)

        assert numbers(harness) == list(range(26))


def test_a_file_that_comes_under_a_forgotten_name_is_a_new_file(tmp_path: Path) -> None:
    with a_harness(tmp_path, remember="2h") as harness:
        live(harness, tmp_path, 1, 0)
        (tmp_path / "000000.jsonl").unlink()
        live(harness, tmp_path, 8, 1)
        assert "000000.jsonl" not in names(harness)
        write_file(tmp_path / "000000.jsonl", some_rows(100, 102))
        harness.advance("1h")
        harness.read()

        assert numbers(harness) == [*range(9), 100, 101]


def test_files_of_a_list_that_was_fixed_at_the_start_are_never_forgotten(
    tmp_path: Path,
) -> None:
    write_file(tmp_path / "a.jsonl", some_rows(0, 1))
    with a_harness(tmp_path, discover=False) as harness:
        harness.read()
        (tmp_path / "a.jsonl").unlink()
        harness.advance("30d")
        harness.read()

        assert names(harness) == {"a.jsonl"}


def read_at(micros: int, **fields: Any) -> SplitState:
    return SplitState((1, 1, 1), ended=True, last_active_micros=micros, **fields)


def test_a_listing_that_lacks_a_file_does_not_let_it_be_forgotten() -> None:
    store = MemoryStore({"a": b"x", "b": b"x"})
    known = {"a": read_at(0), "gone": read_at(0)}
    gone = GoneFiles(HOUR)

    for hour in range(2, 9):
        gone.note(known, ["b"], store, hour * HOUR)

    assert gone.find_forgotten(known) == ("gone",)


def test_an_empty_folder_lets_nothing_be_forgotten() -> None:
    known = {"a": read_at(0)}
    gone = GoneFiles(HOUR)

    for hour in range(2, 9):
        gone.note(known, [], MemoryStore(), hour * HOUR)
    gone.note(known, ["b"], MemoryStore(), 9 * HOUR)

    assert gone.find_forgotten(known) == ()


def test_a_file_must_be_missed_for_an_hour_and_have_been_read_long_ago() -> None:
    known = {"old": read_at(0), "new": read_at(WEEK)}
    store = MemoryStore()

    for later, expected in ((0, ()), (HOUR - 1, ()), (HOUR, ("old",))):
        gone = GoneFiles(WEEK)
        gone.note(known, ["x"], store, WEEK)
        gone.note(known, ["x"], store, WEEK + later)
        assert gone.find_forgotten(known) == expected
        gone.note(known, ["x", "old"], store, WEEK + later)
        assert gone.find_forgotten(known) == ()


def test_a_file_that_one_listing_finds_must_be_missed_for_an_hour_again() -> None:
    known, store, gone = {"a": read_at(0)}, MemoryStore(), GoneFiles(0)

    gone.note(known, ["x"], store, WEEK)
    gone.note(known, ["x", "a"], store, WEEK + HOUR // 2)
    for minute in range(1, 90):
        gone.note(known, ["x"], store, WEEK + HOUR // 2 + minute * HOUR // 60)
        if minute <= 60:
            assert gone.find_forgotten(known) == ()

    assert gone.find_forgotten(known) == ("a",)


def test_as_many_names_are_forgotten_as_come_however_seldom_files_are_listed() -> None:
    known: dict[str, SplitState] = {}
    gone, store = GoneFiles(0), MemoryStore()

    for hour in range(20):
        come = [f"{hour:03}-{n:04}" for n in range(1000)]
        gone.note(known, come, store, hour * HOUR)
        forgotten = gone.find_forgotten(known)
        known = {name: known[name] for name in known.keys() - set(forgotten)}
        known |= {name: read_at(hour * HOUR) for name in come}

    assert len(known) <= 3000


def test_what_the_source_must_know_is_kept() -> None:
    listing = SplitState(("*", (("listed", 1),)), ended=True, last_active_micros=0)
    known = {
        LISTING: listing,
        ORIGIN: read_at(0),
        "listed": read_at(0),
        "latest": read_at(0, max_event_time_micros=9),
        "earlier": read_at(0, max_event_time_micros=8),
        "begun": SplitState((1, 1, 1), last_active_micros=0),
        "of an old checkpoint": SplitState((1, 1, 1), ended=True),
    }
    gone = GoneFiles(0)

    for hour in range(3):
        gone.note(known, ["x"], MemoryStore(), hour * HOUR)

    assert gone.find_forgotten(known) == ("earlier",)


def test_few_files_are_asked_for_after_a_listing_and_each_only_once() -> None:
    known = {f"{n:03}": read_at(0) for n in range(250)}
    gone, asked = GoneFiles(0), []

    class Asked(MemoryStore):
        def size(self, path: str) -> int | None:
            asked.append(path)
            return None

    for hour in range(5):
        gone.note(known, ["x"], Asked(), hour * HOUR)

        assert len(asked) <= 101 * hour

    assert len(asked) == len(set(asked)) == 250
    assert len(gone.find_forgotten(known)) == 250


def test_only_a_duration_says_how_long_names_are_remembered() -> None:
    with pytest.raises(UserError, match="remember"):
        files("*.csv", remember="soon")
    assert files("*.csv", remember="2h").remember_micros == 2 * HOUR
