import pytest

from tests.golden.nexmark_cases import CASES, read_frozen, rows_of

FROZEN = read_frozen()


def test_every_case_has_frozen_rows_and_no_case_was_dropped() -> None:
    assert FROZEN.keys() == CASES.keys()


@pytest.mark.parametrize("case", CASES)
def test_rows_are_the_frozen_ones(case: str) -> None:
    assert rows_of(case) == FROZEN[case]
