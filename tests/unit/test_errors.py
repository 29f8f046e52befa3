import copy
import pickle

import pytest

from penstock.errors import (
    CorruptStateError,
    ErrorCode,
    FencedError,
    InternalError,
    PenstockError,
    SchemaError,
    SettingsError,
    StateError,
    StorageError,
    UnknownOutcomeError,
    UserCodeError,
    UserError,
)


def every_class(kind: type[PenstockError] = PenstockError) -> list[type[PenstockError]]:
    return [kind, *(one for child in kind.__subclasses__() for one in every_class(child))]


CLASSES = sorted(
    (kind for kind in every_class() if kind.__module__ == "penstock.errors"),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_comes_through_pickle_whole(kind: type[PenstockError]) -> None:
    error = kind("the disk is full", code=ErrorCode.STORAGE_FULL, path="a/b", epoch=7)
    error.add_note("free some space")

    loaded = pickle.loads(pickle.dumps(error))

    assert type(loaded) is kind
    assert str(loaded) == loaded.message == "the disk is full"
    assert loaded.args == error.args
    assert loaded.code is ErrorCode.STORAGE_FULL
    assert loaded.context == {"path": "a/b", "epoch": 7}
    assert loaded.__notes__ == ["free some space"]


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_without_facts_comes_through_pickle_with_the_code_of_its_class(
    kind: type[PenstockError],
) -> None:
    loaded = pickle.loads(pickle.dumps(kind("it broke")))

    assert (type(loaded), loaded.code, loaded.context) == (kind, kind.default_code, {})
    assert not hasattr(loaded, "__notes__")


def test_an_error_can_be_copied() -> None:
    error = StorageError("no answer", path="a")

    assert copy.copy(error).context == {"path": "a"}


def test_a_text_that_cannot_be_encoded_is_escaped_so_that_the_error_can_be_sent() -> None:
    error = UserError("no file 'a\udcff'", path="a\udcff")
    error.add_note("in a\udcff")

    assert (error.message, str(error)) == ("no file 'a\\udcff'",) * 2
    assert (error.context, error.__notes__) == ({"path": "a\\udcff"}, ["in a\\udcff"])


def test_facts_that_are_unknown_are_left_out() -> None:
    assert UserError("no", job="j", epoch=None).context == {"job": "j"}


@pytest.mark.parametrize("kind", [SettingsError, SchemaError])
def test_what_the_user_must_fix_is_a_user_error(kind: type[PenstockError]) -> None:
    assert issubclass(kind, UserError)


@pytest.mark.parametrize(
    "kind",
    [
        UserCodeError,
        FencedError,
        StorageError,
        UnknownOutcomeError,
        CorruptStateError,
        StateError,
        InternalError,
    ],
)
def test_what_needs_another_reaction_is_a_class_of_its_own(
    kind: type[PenstockError],
) -> None:
    assert kind.__bases__ == (PenstockError,)


def test_codes_are_unique_words_a_program_can_match() -> None:
    assert len({code.value for code in ErrorCode}) == len(ErrorCode)
    assert all(code.value == code.name.lower().replace("_", "-") for code in ErrorCode)
