"""Whose Spark it is: one of Penstock's own is silent, one of the user's is left as it was."""

import os
import sys
from pathlib import Path

import pytest

from penstock.runtime.spark.session import (
    EXCLUDED_RULES,
    adopt_session,
    find_lacking,
    set_for_epochs,
)
from tests.builders.profile import takes_long
from tests.builders.spark_home import quick_jvm, spark_home
from tests.builders.spark_session import ROOT, run_module, shared_session

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def quick() -> dict[str, str]:
    """The variables of a program whose Spark starts quickly."""
    return {
        **os.environ,
        "SPARK_HOME": str(spark_home()),
        "SPARK_SUBMIT_OPTS": quick_jvm(),
        "PYSPARK_PYTHON": sys.executable,
    }


def test_nothing_of_spark_reaches_the_terminal(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoints")
    done = run_module(
        "tests.spark.small_program",
        folder,
        "local[2,4]",
        folder=tmp_path,
        variables=quick(),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@takes_long
def test_what_spark_says_is_shown_to_whoever_asks(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoints")
    done = run_module(
        "tests.spark.small_program",
        folder,
        "local[2,4]",
        "shows-logs",
        folder=tmp_path,
        variables=quick(),
    )
    assert done.returncode == 0
    assert " WARN " in done.stderr


@takes_long
def test_a_spark_that_runs_already_is_used_told_what_it_lacks_once_and_left_alone(
    tmp_path: Path,
) -> None:
    done = run_module(
        "tests.spark.foreign_session_program",
        "local[2]",
        str(tmp_path / "checkpoints"),
        folder=tmp_path,
        variables={
            **quick(),
            "SPARK_LOCAL_DIRS": f"{tmp_path / 'local'},{tmp_path / 'other'}",
        },
    )
    assert done.returncode == 0, done.stderr
    first, second, refused, rows, unchanged = done.stdout.splitlines()
    assert (first, second) == ("finished", "finished")
    assert "was to run with master 'local[7]'" in refused
    assert (rows, unchanged) == ("7 rows", "unchanged: True")
    warnings = [line for line in done.stderr.splitlines() if "started by somebody" in line]
    assert len(warnings) == 1
    assert "spark.python.unix.domain.socket.enabled=true" in warnings[0]
    assert "spark.scheduler.mode=FAIR" in warnings[0]
    assert "local[2] never tries a task again" in warnings[0]


@takes_long
def test_the_last_of_several_jobs_stops_their_spark_and_nobody_stops_another(
    tmp_path: Path,
) -> None:
    done = run_module(
        "tests.spark.several_jobs_program",
        str(tmp_path / "checkpoints"),
        folder=tmp_path,
        variables={**quick(), "SPARK_LOCAL_DIRS": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    first, second, *rest = done.stdout.splitlines()
    assert {first, second} == {"left finished", "right finished"}
    assert rest == [
        "left running: False",
        "on-theirs finished",
        "3 rows",
        "after-theirs finished",
    ]


def test_a_spark_of_our_own_lacks_nothing() -> None:
    own = adopt_session(shared_session())
    assert [*set_for_epochs(own), *find_lacking(own)] == []


def test_optimizer_rules_that_the_user_has_excluded_stay_excluded() -> None:
    theirs = shared_session().newSession()
    own = theirs.newSession()
    rule = "org.apache.spark.sql.catalyst.optimizer.ColumnPruning"
    own.conf.set(EXCLUDED_RULES, rule)
    assert set_for_epochs(own) == []
    excluded = (own.conf.get(EXCLUDED_RULES) or "").split(",")
    assert rule in excluded
    assert len(excluded) == 2


def test_a_job_runs_on_spark_connect_and_attaching_there_is_refused(tmp_path: Path) -> None:
    done = run_module(
        "tests.spark.connect_program",
        "local[2,4]",
        str(tmp_path / "job"),
        folder=tmp_path,
        variables={**quick(), "SPARK_LOCAL_DIRS": str(tmp_path), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    module, phase, refused = done.stdout.splitlines()
    assert module == "pyspark.sql.connect.session"
    assert phase == "finished"
    assert "is of Spark Connect, whose queries call functions in another process" in refused
