import time

import pytest

from penstock.errors import ErrorCode, UserCodeError
from penstock.operators.collector import call_within

FOREVER = 60.0


def spin(seconds: float) -> str:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
    return "done"


def test_a_function_that_comes_back_in_time_gives_its_value() -> None:
    assert call_within(FOREVER, "read", lambda: 7) == 7


def test_what_a_function_raises_comes_out_as_it_is() -> None:
    def fail() -> None:
        raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file"):
        call_within(FOREVER, "read", fail)


def test_a_function_that_spins_is_interrupted_with_an_error_that_names_the_source() -> None:
    with pytest.raises(UserCodeError) as raised:
        call_within(0.02, "read", lambda: spin(FOREVER))
    assert raised.value.code is ErrorCode.SOURCE_OVERRAN
    assert raised.value.context["operator"] == "read"
    assert "'read'" in raised.value.message
    assert "0.02 s" in raised.value.message
    assert "ctx.budget.is_spent" in raised.value.message


def test_catching_every_exception_does_not_keep_a_function_alive() -> None:
    def stubborn() -> None:
        while True:
            try:
                spin(FOREVER)
            except Exception:  # noqa: BLE001, S112 (what many polling loops do)
                continue

    with pytest.raises(UserCodeError) as raised:
        call_within(0.02, "read", stubborn)
    assert raised.value.code is ErrorCode.SOURCE_OVERRAN


def test_a_function_that_ends_just_then_either_returns_or_is_interrupted_never_both() -> (
    None
):
    """The interruption may hit any bytecode up to the end: also while the watch is locked."""
    outcomes = set()
    limit = 0.000_2
    until = time.perf_counter() + 0.5
    while time.perf_counter() < until:
        try:
            outcomes.add(call_within(limit, "read", lambda: spin(limit)))
        except UserCodeError as error:
            outcomes.add(error.code)
    assert outcomes <= {"done", ErrorCode.SOURCE_OVERRAN}
    with pytest.raises(UserCodeError):
        call_within(0.02, "read", lambda: spin(FOREVER))
