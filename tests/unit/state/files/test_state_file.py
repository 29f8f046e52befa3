"""State files as values: durable form, and the single operations on lists."""

from dataclasses import replace

from penstock.core.ids import FULL_RANGE, KeyRange
from penstock.state.files.state_file import (
    StateFile,
    apply_swap,
    derive_missing,
    merge_lists,
    restrict,
)
from tests.builders.kept_epochs import count_runs
from tests.unit.state.files.file_builders import a_state_file

LOW, HIGH = KeyRange(0, 1 << 63), KeyRange(1 << 63, 1 << 64)


def test_the_durable_form_goes_both_ways_with_extreme_values() -> None:
    file = replace(
        a_state_file(
            "j/ä.parquet", 9_999_999_999, visible=HIGH, replaces=("x#0-1", "y#0-1")
        ),
        checksum=(1 << 64) - 1,
        min_time_micros=-(1 << 63),
        max_time_micros=(1 << 63) - 1,
        min_key_hash=0,
        max_key_hash=(1 << 64) - 1,
        last_expiry_micros=0,
    )
    assert StateFile.from_proto(file.to_proto()) == file
    bare = a_state_file("x")
    assert StateFile.from_proto(bare.to_proto()) == bare


def test_restricting_narrows_what_is_seen_and_drops_what_is_not() -> None:
    whole = a_state_file("a", visible=FULL_RANGE)
    elsewhere = a_state_file("b", visible=LOW)
    empty_there = a_state_file("c", visible=FULL_RANGE, hashes=(0, 10))
    assert restrict([whole, elsewhere, empty_there], HIGH) == (
        replace(whole, visible=HIGH),
    )


def test_merging_joins_touching_parts_of_one_file() -> None:
    file = a_state_file("a")
    assert merge_lists([restrict([file], LOW), restrict([file], HIGH)]) == (file,)


def test_merging_never_bridges_a_gap() -> None:
    file = a_state_file("a")
    parts = [replace(file, visible=KeyRange(0, 5)), replace(file, visible=KeyRange(6, 9))]
    assert merge_lists([[part] for part in parts]) == tuple(parts)


def test_a_swap_takes_the_place_of_its_inputs() -> None:
    files = [a_state_file(name, epoch) for epoch, name in enumerate("abcd", start=1)]
    output = a_state_file("bc", 3, level=1, replaces=(files[1].identity, files[2].identity))
    assert apply_swap(files, [output]) == (files[0], output, files[3])


def test_a_swap_is_void_when_an_input_is_gone_narrowed_or_parted() -> None:
    files = [a_state_file(name, epoch) for epoch, name in enumerate("abc", start=1)]
    output = a_state_file("ab", 2, level=1, replaces=(files[0].identity, files[1].identity))
    assert apply_swap(files[1:], [output]) is None
    assert apply_swap([replace(files[0], visible=LOW), *files[1:]], [output]) is None
    assert apply_swap([files[0], files[2], files[1]], [output]) is None


def test_a_swap_bears_the_loss_of_inputs_that_have_expired_but_not_of_all_or_of_others() -> (
    None
):
    files = [a_state_file(name, epoch) for epoch, name in enumerate("abcd", start=1)]
    ids = [file.identity for file in files]
    output = a_state_file("abc", 3, level=1, replaces=tuple(ids[:3]))
    assert apply_swap(files[1:], [output], ids[:1]) == (output, files[3])
    assert apply_swap([files[0], *files[2:]], [output], ids) == (output, files[3])
    assert apply_swap(files, [output], ids) == (output, files[3])
    assert apply_swap(files[1:], [output], ids[1:]) is None, "it left for another reason"
    assert apply_swap(files[3:], [output], ids) is None
    parted = [files[1], files[3], files[2]]
    assert apply_swap(parted, [output], ids[:1]) is None


def test_a_fold_without_the_oldest_inputs_of_a_merge_goes_on_and_one_without_newer_does_not() -> (
    None
):
    files = [a_state_file(name, epoch) for epoch, name in enumerate("abcd", start=1)]
    replaced = tuple(file.identity for file in files[:3])
    merged = a_state_file("abc", 3, level=1, replaces=replaced)
    wanted = [merged, files[3]]
    assert derive_missing(files[1:], wanted) == ()
    assert derive_missing(files[2:3], wanted) == (files[3],)
    assert derive_missing(files[:2], wanted) is None, (
        "what is newer may never have been read"
    )
    assert derive_missing([files[0], files[2]], wanted) is None


def test_missing_files_are_those_after_what_is_held() -> None:
    files = [a_state_file(name, epoch) for epoch, name in enumerate("abc", start=1)]
    assert derive_missing(files[:1], files) == tuple(files[1:])
    assert derive_missing(files, files) == ()
    assert derive_missing([], files) == tuple(files)


def test_a_swap_alone_costs_no_read() -> None:
    files = [a_state_file(name, epoch) for epoch, name in enumerate("abc", start=1)]
    replaced = tuple(file.identity for file in files[:2])
    group = [a_state_file(name, 2, level=1, replaces=replaced) for name in ("x", "y")]
    assert derive_missing(files, [*group, files[2]]) == ()
    assert derive_missing(files[:2], [*group, files[2]]) == (files[2],)
    assert derive_missing([*group, files[2]], [*group, files[2]]) == ()


def test_a_list_that_is_no_prefix_starts_over() -> None:
    files = [a_state_file(name, epoch) for epoch, name in enumerate("abc", start=1)]
    assert derive_missing(files, files[:2]) is None
    assert derive_missing([files[1]], files) is None
    group = a_state_file("x", 2, level=1, replaces=(files[0].identity, "other#0-1"))
    assert derive_missing(files, [group, files[2]]) is None


def test_a_group_of_which_only_a_part_is_held_starts_over() -> None:
    group = [a_state_file(name, 2, level=1, replaces=("x", "y")) for name in ("a", "b")]
    assert derive_missing(group[:1], group) is None


def test_runs_are_counted_by_overlap_of_neighbours() -> None:
    low, high = a_state_file("a", visible=LOW), a_state_file("b", visible=HIGH)
    whole = a_state_file("c")
    assert count_runs([]) == 0
    assert count_runs([low, high]) == 1
    assert count_runs([low, high, whole]) == 2
    assert count_runs([low, high, low]) == 2
