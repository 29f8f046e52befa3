"""What a driver does next, over all facts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.driver.decide import (
    Action,
    AskSources,
    Facts,
    Finish,
    JobPhase,
    Restart,
    RunEpoch,
    StopMode,
    Wait,
    next_action,
)

STOPPED, FINISHED = Finish(JobPhase.STOPPED), Finish(JobPhase.FINISHED)
NOW = 100

CASES: list[tuple[str, Facts, Action]] = [
    ("at first", Facts(NOW), RunEpoch()),
    ("more to read", Facts(NOW, has_work=True, wake_up_micros=500), RunEpoch()),
    ("nothing ever", Facts(NOW, has_work=False), Wait(None)),
    ("wake up later", Facts(NOW, has_work=False, wake_up_micros=150), Wait(150)),
    ("wake up now", Facts(NOW, has_work=False, wake_up_micros=100), RunEpoch()),
    ("overslept", Facts(NOW, has_work=False, wake_up_micros=7), RunEpoch()),
    (
        "keep a distance",
        Facts(NOW, has_work=False, wake_up_micros=7, next_epoch_micros=130),
        Wait(130),
    ),
    (
        "distance is no alarm",
        Facts(NOW, has_work=False, next_epoch_micros=90),
        Wait(None),
    ),
    (
        "ask whether enough waits",
        Facts(NOW, has_work=False, wake_up_micros=7, next_epoch_micros=130, ask_micros=90),
        AskSources(),
    ),
    (
        "ask later",
        Facts(NOW, has_work=False, wake_up_micros=7, next_epoch_micros=130, ask_micros=110),
        Wait(110),
    ),
    (
        "do not ask when it is time",
        Facts(NOW, has_work=False, wake_up_micros=7, next_epoch_micros=90, ask_micros=90),
        RunEpoch(),
    ),
    (
        "do not ask when told to stop",
        Facts(NOW, stop=StopMode.CHECKPOINT, has_work=False, ask_micros=90),
        RunEpoch(StopMode.CHECKPOINT),
    ),
    ("work does not wait", Facts(NOW, next_epoch_micros=130), RunEpoch()),
    ("finished", Facts(NOW, is_finished=True), FINISHED),
    ("finished and stop", Facts(NOW, is_finished=True, stop=StopMode.GRACEFUL), FINISHED),
    ("graceful", Facts(NOW, stop=StopMode.GRACEFUL), RunEpoch(StopMode.GRACEFUL)),
    (
        "checkpoint while idle",
        Facts(NOW, has_work=False, stop=StopMode.CHECKPOINT),
        RunEpoch(StopMode.CHECKPOINT),
    ),
    ("has stopped", Facts(NOW, stop=StopMode.CHECKPOINT, has_stopped=True), STOPPED),
    ("immediate", Facts(NOW, stop=StopMode.IMMEDIATE), STOPPED),
    ("immediate, finished", Facts(NOW, stop=StopMode.IMMEDIATE, is_finished=True), STOPPED),
    ("back off", Facts(NOW, retry_at_micros=180), Wait(180, JobPhase.RESTARTING)),
    ("try again", Facts(NOW, retry_at_micros=100), Restart()),
    (
        "failed, told to stop",
        Facts(NOW, retry_at_micros=180, stop=StopMode.GRACEFUL),
        STOPPED,
    ),
]


@pytest.mark.parametrize(
    ("facts", "action"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_the_next_action_follows_from_the_facts(facts: Facts, action: Action) -> None:
    assert next_action(facts) == action


moments = st.integers(0, 300)
all_facts = st.builds(
    Facts,
    now_micros=moments,
    stop=st.none() | st.sampled_from(StopMode),
    has_stopped=st.booleans(),
    is_finished=st.booleans(),
    retry_at_micros=st.none() | moments,
    has_work=st.booleans(),
    wake_up_micros=st.none() | moments,
    next_epoch_micros=moments,
    ask_micros=st.none() | moments,
)


@given(all_facts)
def test_nothing_runs_after_the_last_epoch_or_an_immediate_stop(facts: Facts) -> None:
    if facts.has_stopped or facts.stop is StopMode.IMMEDIATE:
        assert next_action(facts) == STOPPED


@given(all_facts)
def test_an_epoch_runs_only_in_a_sound_session_with_something_left_to_do(
    facts: Facts,
) -> None:
    action = next_action(facts)
    if isinstance(action, RunEpoch):
        assert facts.retry_at_micros is None
        assert not facts.is_finished
        assert action.stop is facts.stop


@given(all_facts)
def test_a_wait_always_lies_ahead_and_sleeps_through_nothing(facts: Facts) -> None:
    action = next_action(facts)
    if not isinstance(action, Wait):
        return
    assert facts.stop is None
    if action.until_micros is None:
        assert facts.wake_up_micros is None
        assert not facts.has_work
    else:
        assert action.until_micros > facts.now_micros
        known = [facts.wake_up_micros, facts.retry_at_micros, facts.next_epoch_micros]
        assert action.until_micros in [*known, facts.ask_micros]


@given(all_facts)
def test_a_request_to_stop_is_never_slept_on(facts: Facts) -> None:
    if facts.stop is not None:
        assert isinstance(next_action(facts), Finish | RunEpoch)


@given(all_facts)
def test_waiting_until_told_leads_to_something_else(facts: Facts) -> None:
    action = next_action(facts)
    if isinstance(action, Wait) and action.until_micros is not None:
        later = Facts(
            action.until_micros,
            retry_at_micros=facts.retry_at_micros,
            is_finished=facts.is_finished,
            has_work=facts.has_work,
            wake_up_micros=facts.wake_up_micros,
            next_epoch_micros=facts.next_epoch_micros,
            ask_micros=facts.ask_micros,
        )
        assert isinstance(next_action(later), RunEpoch | AskSources | Restart)
