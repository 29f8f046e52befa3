"""Every golden case in every mode, in this process."""

from pathlib import Path

import pytest

from tests.builders.profile import by_profile
from tests.builders.run_modes import MODES, CheckedJob, InThisProcess
from tests.golden_cases.catalog import CASES
from tests.golden_cases.golden_case import GoldenCase, golden_data

MOST_ROWS = by_profile(default=100, ci=20, nightly=20)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("mode", MODES)
def test_a_golden_case_comes_out_as_expected(
    case: GoldenCase, mode: str, tmp_path: Path
) -> None:
    place = InThisProcess(tmp_path, most_rows=MOST_ROWS)
    MODES[mode](CheckedJob(case, place, tmp_path))


def test_no_golden_case_is_left_out() -> None:
    expected = (golden_data() / "expected").glob("*.json")
    assert sorted(case.name for case in CASES) == sorted(path.stem for path in expected)
