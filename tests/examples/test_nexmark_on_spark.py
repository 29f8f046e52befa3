"""Queries of Nexmark on an embedded Spark give what SQL gives, in the modes of the golden cases."""

from pathlib import Path

import pytest

from examples.nexmark.__main__ import queries
from tests.builders.profile import by_profile
from tests.builders.run_modes import MODES, CheckedJob
from tests.builders.spark_session import OnSpark
from tests.examples.nexmark_case import EVENTS, NexmarkCase

CHOSEN = by_profile(
    default=[("q4", "killed-and-restored")],
    # Every query in two modes, one of which stops or kills it.
    ci=[
        (name, mode)
        for place, name in enumerate(queries())
        for mode in list(MODES)[place % 2 :: 2]
    ],
    nightly=[(name, mode) for name in queries() for mode in MODES],
)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), CHOSEN)
def test_a_query_gives_what_sql_gives_on_spark(
    name: str, mode: str, tmp_path: Path
) -> None:
    # Epochs take most of the time: as few as there may be.
    place = OnSpark(tmp_path, most_rows=EVENTS)
    case = NexmarkCase(name)
    MODES[mode](CheckedJob(case, place, tmp_path, clock=case.clock))
