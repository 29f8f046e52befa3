"""The options that users write, in the same way wherever they start a job."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.errors import UserError
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.driver.policies import (
    RestartPolicy,
    Retention,
    Trigger,
    to_restarts,
    to_retention,
    to_trigger,
)
from penstock.state.storage.memory import MemoryStore

SECOND = 1_000_000
DAY = 86_400 * SECOND


def settings(**given: Any) -> DriverSettings:
    chosen = RunOptions.of("run", given, checkpoint="memory:")  # type: ignore[arg-type] # as given
    return chosen.driver_settings()


@pytest.mark.parametrize(
    ("given", "trigger"),
    [
        ("1m", Trigger(60 * SECOND)),
        (dt.timedelta(seconds=2), Trigger(2 * SECOND)),
        (pen.trigger(every="5s", rows=10, bytes=20), Trigger(5 * SECOND, 10, 20)),
    ],
)
def test_a_trigger_is_a_duration_or_made_by_the_function(
    given: Any, trigger: Trigger
) -> None:
    assert to_trigger(given) == trigger
    assert settings(trigger=given).trigger == trigger


@pytest.mark.parametrize(
    ("given", "retention"),
    [
        (20, Retention(20)),
        ("7d", Retention(age_micros=7 * DAY)),
        (dt.timedelta(days=1), Retention(age_micros=DAY)),
        (pen.retention(5, age="1d"), Retention(5, DAY)),
    ],
)
def test_a_retention_is_a_number_of_epochs_an_age_or_both(
    given: Any, retention: Retention
) -> None:
    assert to_retention(given) == retention
    found = settings(retention=given)
    assert found.keep_epochs == (retention.epochs or DriverSettings().keep_epochs)
    assert found.keep_micros == retention.age_micros


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        (0, RestartPolicy(max_restarts=0)),
        (3, RestartPolicy(max_restarts=3)),
        (
            pen.restarts(2, first_delay="100ms", longest_delay="5s"),
            RestartPolicy(2, SECOND // 10, 5 * SECOND),
        ),
    ],
)
def test_restarts_are_a_number_or_made_by_the_function(
    given: Any, policy: RestartPolicy
) -> None:
    assert to_restarts(given) == policy
    assert settings(restarts=given).restarts == policy


def test_what_is_left_out_or_none_is_as_before() -> None:
    bare = settings()
    assert bare == settings(trigger=None, retention=None, restarts=None, on_status=None)
    assert (bare.trigger, bare.keep_micros, bare.restarts) == (None, None, RestartPolicy())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trigger": "fast"}, "'fast' is not a valid trigger"),
        ({"trigger": 60}, "60 is not a valid trigger: write how long"),
        ({"trigger": "0s"}, "cannot begin an epoch every '0s'"),
        ({"retention": 0}, "0 cannot be the epochs of a retention"),
        ({"retention": "old"}, "'old' is not a valid age of epochs"),
        ({"retention": 1.5}, "1.5 cannot be the epochs of a retention"),
        ({"restarts": -1}, "cannot be restarted -1 times in a row"),
        ({"restarts": True}, "cannot be restarted True times in a row"),
        ({"trigers": "1m"}, "run has no option 'trigers'; did you mean 'trigger'?"),
        ({"tick": "1m"}, "run has no option 'tick'; known are 'allow_dropped_state'"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_with_what_can(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        settings(**given)
    assert message in caught.value.message


@pytest.mark.parametrize("given", [{"rows": 0}, {"bytes": -1}, {"rows": True}])
def test_a_trigger_by_size_takes_whole_numbers_from_one(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="give a whole number of at least 1"):
        pen.trigger(every="1m", **given)


def test_the_longest_delay_is_not_shorter_than_the_first() -> None:
    with pytest.raises(UserError, match="'1s', is shorter than the first, '2s'"):
        pen.restarts(first_delay="2s", longest_delay="1s")


@pytest.mark.parametrize("method", ["run", "run_in_process"])
def test_every_way_to_run_a_job_refuses_the_same_mistake(method: str) -> None:
    pipeline = pen.Pipeline("p")
    pipeline.read("in", pen.impulse(count=1)).write("out", pen.blackhole())
    with pytest.raises(UserError, match=f"{method} has no option 'trigers'"):
        getattr(pipeline, method)("memory:", trigers="1m")


def test_a_job_fed_by_a_query_has_no_trigger_of_its_own() -> None:
    pipeline = pen.Pipeline("p")
    with pytest.raises(UserError, match="no option 'trigger': its epochs are the batches"):
        pipeline.start_attached("memory:", session=None, trigger="1m")  # type: ignore[call-arg,arg-type]


def test_an_old_name_of_a_method_is_answered_by_the_new_one() -> None:
    with pytest.raises(
        AttributeError, match="'foreach_batch': start_attached starts a job"
    ):
        pen.Pipeline("p").foreach_batch("memory:")  # type: ignore[attr-defined]


def test_a_name_that_never_was_is_answered_as_usual() -> None:
    assert not hasattr(pen.Pipeline("p"), "never")


def a_pipeline() -> pen.Pipeline:
    pipeline = pen.Pipeline("p")
    pipeline.read("rows", pen.list_source([{"n": 1}])).write("out", pen.blackhole())
    return pipeline


def test_checkpoints_take_the_options_of_their_store(tmp_path: Path) -> None:
    options = {"durable": False}
    a_pipeline().run_in_process(tmp_path, store_options=options)
    found = a_pipeline().check(tmp_path, store_options=options)
    assert found.epoch is not None
    chosen = RunOptions.of("run", {"store_options": options}, checkpoint=str(tmp_path))
    assert "durable" not in repr(chosen), "options may be secrets"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"durabel": False}, r"does not take the options \['durabel'\]"),
        ("secret", "store_options are no options by name"),
        ({1: 2}, "store_options are no options by name"),
    ],
)
def test_options_that_the_store_of_checkpoints_lacks_are_refused(
    tmp_path: Path, options: Any, problem: str
) -> None:
    for call in (a_pipeline().run_in_process, a_pipeline().check):
        with pytest.raises(UserError, match=problem):
            call(tmp_path, store_options=options)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", [pen.files, pen.read_committed, pen.committed_files])
def test_store_options_are_options_by_name_everywhere(call: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="store_options are no options by name") as caught:
        call(str(tmp_path), store_options="hunter2")
    assert "hunter2" not in caught.value.message


def test_an_open_store_has_its_options_already(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="an open store does not take the options"):
        a_pipeline().check(MemoryStore(), store_options={"durable": False})


def test_a_misspelt_option_of_one_method_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(UserError, match="no option 'show_log'; did you mean 'show_logs'"):
        a_pipeline().run("memory:", show_log=True)  # type: ignore[call-arg] # a typing error


def test_logs_of_a_session_that_the_job_was_given_cannot_be_asked_for() -> None:
    pipeline = pen.Pipeline("shown")
    pipeline.read("numbers", pen.impulse(count=1)).write("out", pen.blackhole())
    given: Any = object()
    with pytest.raises(UserError, match="leave show_logs out, and set the level"):
        pipeline.run("unused", session=given, show_logs=True)
