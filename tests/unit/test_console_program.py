"""Programs end with a message for people and a code for supervisors."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import console, errors
from penstock.console import describe_error, exit_code, main
from penstock.errors import (
    ErrorCode,
    ExternalError,
    FencedError,
    GraphError,
    InternalError,
    PenstockError,
    StorageError,
    UnknownOutcomeError,
    UserError,
)
from penstock.runtime.driver.policies import is_transient

KINDS = PenstockError.__subclasses__()
RAISES_A_BUG = """
import penstock as pen
from penstock.errors import InternalError
def run():
    raise InternalError("two and two made five")
pen.main(run)
"""


def ends_with(function: object) -> int:
    with pytest.raises(SystemExit) as raised:
        main(function)  # type: ignore[arg-type]
    assert isinstance(raised.value.code, int)
    return raised.value.code


def raising(error: BaseException) -> object:
    def run() -> None:
        raise error

    return run


def test_every_kind_of_error_has_a_code_of_its_own() -> None:
    codes = [kind.exit_code for kind in KINDS]
    assert sorted(codes) == list(range(2, 2 + len(KINDS)))


def test_the_codes_are_those_that_both_docstrings_list() -> None:
    drawn = re.findall(r"[├└]── (\w+Error) +(\d+)  ", errors.__doc__ or "")
    listed = re.findall(r"^\| (\d+) \| `(\w+Error)`", console.__doc__ or "", re.MULTILINE)
    expected = {kind.__name__: kind.exit_code for kind in KINDS}
    assert {name: int(code) for name, code in drawn} == expected
    assert {name: int(code) for code, name in listed} == expected


def test_a_kind_inside_a_kind_has_its_code() -> None:
    assert exit_code(GraphError("two problems")) == UserError.exit_code


def test_the_codes_worth_starting_again_are_those_that_the_driver_tries_again() -> None:
    worth = {kind for kind in KINDS if is_transient(kind("…"))}
    assert worth == {ExternalError, StorageError, UnknownOutcomeError}


def test_a_function_that_returns_ends_well_unless_it_returns_a_number() -> None:
    assert ends_with(lambda: None) == 0
    assert ends_with(lambda: "a status") == 0
    assert ends_with(lambda: True) == 0
    assert ends_with(lambda: 7) == 7


def test_an_error_is_a_message_with_its_notes_and_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = FencedError("job 'a' is owned by generation 4", code=ErrorCode.FENCED)
    error.add_note("It was claimed\na while ago")
    assert ends_with(raising(error)) == 5
    assert capsys.readouterr().err == (
        "error: job 'a' is owned by generation 4 [fenced]\n  It was claimed\n  a while ago\n"
    )


def test_ctrl_c_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_what_is_not_ours_is_left_to_python() -> None:
    with pytest.raises(ZeroDivisionError):
        main(lambda: 1 // 0)
    assert exit_code(ZeroDivisionError()) == 1


def test_a_bug_of_ours_comes_with_its_traceback() -> None:
    with pytest.raises(InternalError) as raised:
        raise InternalError("two and two made five")
    assert describe_error(raised.value).startswith("Traceback")


@pytest.mark.slow
def test_a_program_ends_with_the_code_and_the_message(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RAISES_A_BUG],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 10
    assert done.stderr.endswith("InternalError: two and two made five\n")
    assert done.stdout == ""
