"""Every golden case on an embedded Spark, each mode by several: nightly every case in every mode."""

from pathlib import Path

import pytest

from tests.builders.profile import by_profile
from tests.builders.run_modes import MODES, CheckedJob
from tests.builders.spark_session import OnSpark
from tests.golden_cases.catalog import CASES
from tests.golden_cases.golden_case import GoldenCase

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MOST_ROWS = 400
EVERY = by_profile(default=4, ci=2, nightly=1)
"""Of how many modes in turn a case runs in one; another case begins with another mode."""
CHOSEN = [
    pytest.param(case, mode, id=f"{case.name}-{mode}")
    for place, case in enumerate(CASES)
    for mode in list(MODES)[place % EVERY :: EVERY]
]


@pytest.mark.parametrize(("case", "mode"), CHOSEN)
def test_a_golden_case_comes_out_as_expected_on_spark(
    case: GoldenCase, mode: str, tmp_path: Path
) -> None:
    place = OnSpark(tmp_path, most_rows=MOST_ROWS)
    MODES[mode](CheckedJob(case, place, tmp_path))
