import pytest

from penstock.core.key_hash import hash_keys_uncut
from tests.golden.key_hash_reference import hash_rows
from tests.golden.key_hash_vectors import CASES, read_vectors

FROZEN = read_vectors()


def test_every_case_has_frozen_hashes_and_no_case_was_dropped() -> None:
    assert FROZEN.keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_hashes_are_the_frozen_ones(name: str) -> None:
    hashes = hash_keys_uncut(CASES[name])

    assert [f"{one:016x}" for one in hashes.tolist()] == FROZEN[name]


@pytest.mark.parametrize("name", CASES)
def test_the_documented_algorithm_gives_the_frozen_hashes(name: str) -> None:
    assert [f"{one:016x}" for one in hash_rows(CASES[name])] == FROZEN[name]


@pytest.mark.parametrize("name", CASES)
def test_a_slice_hashes_as_the_rows_it_holds(name: str) -> None:
    columns = [column.slice(1, len(column) - 1) for column in CASES[name]]

    assert [f"{one:016x}" for one in hash_keys_uncut(columns).tolist()] == FROZEN[name][1:]


@pytest.mark.parametrize("name", CASES)
def test_no_rows_have_no_hashes(name: str) -> None:
    assert hash_keys_uncut([column.slice(0, 0) for column in CASES[name]]).shape == (0,)
