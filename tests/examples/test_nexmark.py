"""Every query of Nexmark gives what SQL gives, in every mode of the golden cases."""

from pathlib import Path

import pytest

from examples.nexmark.__main__ import main, queries
from tests.builders.profile import by_profile
from tests.builders.run_modes import MODES, CheckedJob, InThisProcess
from tests.examples.nexmark_case import NexmarkCase

MOST_ROWS = by_profile(default=1_000, ci=150, nightly=50)


@pytest.mark.slow
@pytest.mark.parametrize("name", queries())
@pytest.mark.parametrize("mode", MODES)
def test_a_query_gives_what_sql_gives(name: str, mode: str, tmp_path: Path) -> None:
    place = InThisProcess(tmp_path, most_rows=MOST_ROWS)
    case = NexmarkCase(name)
    MODES[mode](CheckedJob(case, place, tmp_path, clock=case.clock))


def test_the_command_lists_the_queries_and_runs_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main([])
    assert "q5   Find the auctions with most bids" in capsys.readouterr().out
    main(["q2", "--events", "2k", "--in-process"])
    said = capsys.readouterr().out
    assert "q2: 2,000 events in" in said
    assert "rows came out, the first of them" in said
    assert "auction" in said
    main(["q10", "--events", "2k", "--in-process"])
    assert "2015-07-15 ┆ 00:00" in capsys.readouterr().out
