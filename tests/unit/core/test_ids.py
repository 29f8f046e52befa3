import pickle
from typing import Any

import pytest

from penstock.core.ids import (
    Epoch,
    Generation,
    JobId,
    KeyRange,
    Name,
    OperatorId,
    Ordinal,
    SavepointName,
    Subtask,
    TableName,
    TaskInfo,
    Token,
)
from penstock.errors import ErrorCode, UserError

NAMES: list[type[Name]] = [JobId, OperatorId, TableName, SavepointName]
ORDINALS: list[type[Ordinal]] = [Epoch, Generation]


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("value", ["a", "7", "hot-auctions", "A.b_c-9", "x" * 128])
def test_a_plain_name_is_kept_as_it_is(kind: type[Name], value: str) -> None:
    assert kind(value) == value
    assert isinstance(kind(value), kind)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize(
    "value",
    [
        "",
        ".",
        "..",
        "../up",
        "a/b",
        "a\\b",
        "/absolute",
        ".hidden",
        "-option",
        "_private",
        "a b",
        "a\n",
        "a\x00",
        "Zürich",
        "٣",
        "a%2Fb",
        "x" * 129,
        None,
        7,
        b"bytes",
    ],
)
def test_whatever_could_leave_the_prefix_is_no_name(kind: type[Name], value: Any) -> None:
    with pytest.raises(UserError) as caught:
        kind(value)

    assert caught.value.code is ErrorCode.INVALID_NAME
    assert f"is not a valid {kind.what}" in caught.value.message
    assert repr(value) in caught.value.message


def test_a_token_is_32_lower_case_hex_digits() -> None:
    assert Token("0123456789abcdef" * 2) == "0123456789abcdef" * 2


@pytest.mark.parametrize(
    "value", ["", "0" * 31, "0" * 33, "A" * 32, "g" * 32, "0" * 31 + "\n", 0]
)
def test_anything_else_is_no_token(value: Any) -> None:
    with pytest.raises(UserError, match="is not a token"):
        Token(value)


@pytest.mark.parametrize("kind", ORDINALS)
@pytest.mark.parametrize("value", [1, 2, 9_999_999_999])
def test_a_positive_number_of_ten_digits_orders_things(
    kind: type[Ordinal], value: int
) -> None:
    assert kind(value) == value


@pytest.mark.parametrize("kind", ORDINALS)
@pytest.mark.parametrize("value", [0, -1, 10_000_000_000, True, 1.0, 1.5, "1", None])
def test_other_numbers_are_refused_not_rounded(kind: type[Ordinal], value: Any) -> None:
    with pytest.raises(UserError, match=f"not a valid {kind.what}") as caught:
        kind(value)

    assert caught.value.code is ErrorCode.INVALID_NUMBER


def test_the_number_after_has_the_same_meaning() -> None:
    assert Epoch(9).next() == Epoch(10)
    assert type(Generation(1).next()) is Generation


def test_there_is_no_number_after_the_largest() -> None:
    with pytest.raises(UserError, match="not a valid epoch"):
        Epoch(9_999_999_999).next()


def test_ten_digits_always_hold_an_epoch_and_keep_its_order() -> None:
    epochs = [Epoch(one) for one in (1, 9, 10, 999_999_999, 9_999_999_999)]

    assert sorted(f"{epoch:010}" for epoch in epochs) == [
        f"{epoch:010}" for epoch in epochs
    ]


@pytest.mark.parametrize(("index", "parallelism"), [(0, 1), (2, 3), (999_999, 1_000_000)])
def test_a_subtask_is_one_of_its_operators(index: int, parallelism: int) -> None:
    subtask = Subtask(index, parallelism)

    assert (subtask.index, subtask.parallelism) == (index, parallelism)


@pytest.mark.parametrize(
    ("index", "parallelism"),
    [(1, 1), (-1, 1), (0, 0), (0, -1), (0, 1_000_001), (0.5, 1), (0, 1.5), (False, True)],
)
def test_a_subtask_outside_the_parallelism_does_not_exist(
    index: Any, parallelism: Any
) -> None:
    with pytest.raises(UserError, match="does not exist") as caught:
        Subtask(index, parallelism)

    assert caught.value.code is ErrorCode.INVALID_NUMBER


def test_a_task_owns_the_range_of_its_subtask() -> None:
    task = TaskInfo(JobId("job"), OperatorId("operator"), Subtask(1, 2))

    assert task.key_range == task.subtask.key_range == KeyRange(1 << 63, 1 << 64)


def test_ids_keep_their_type_through_pickle() -> None:
    task = TaskInfo(JobId("job"), OperatorId("operator"), Subtask(0, 4))
    loaded = pickle.loads(pickle.dumps((task, Epoch(3), Token("0" * 32))))

    assert loaded == (task, Epoch(3), Token("0" * 32))
    assert [type(one) for one in loaded] == [TaskInfo, Epoch, Token]
    assert type(loaded[0].job) is JobId
