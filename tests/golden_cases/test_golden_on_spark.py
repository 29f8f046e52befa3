"""Every golden case in every mode, on an embedded Spark."""

from pathlib import Path

import pytest

from tests.builders.run_modes import MODES, CheckedJob
from tests.builders.spark_session import OnSpark
from tests.golden_cases.catalog import CASES
from tests.golden_cases.golden_case import GoldenCase

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MOST_ROWS = 400


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("mode", MODES)
def test_a_golden_case_comes_out_as_expected_on_spark(
    case: GoldenCase, mode: str, tmp_path: Path
) -> None:
    place = OnSpark(tmp_path, most_rows=MOST_ROWS)
    MODES[mode](CheckedJob(case, place, tmp_path))
