import pytest

from penstock.errors import StorageError
from penstock.state.protocol.steps import (
    Create,
    Delete,
    Exists,
    ListPaths,
    Read,
    Request,
    Steps,
    delete,
    exists,
    list_paths,
    read,
)
from penstock.state.storage.create import run_steps
from penstock.state.storage.memory import MemoryStore
from penstock.testing import Call, CrashError, Fault, FaultMode, FaultyStore


def everything() -> Steps[list[object]]:
    answers: list[object] = []
    requests: list[Request] = [
        Create("a/1", b"one"),
        Create("a/1", b"two"),
        Read("a/1"),
        Read("a/2"),
        Exists("a/1"),
        Exists("a/2"),
        ListPaths("a"),
        Delete("a/1"),
        ListPaths("a"),
    ]
    for request in requests:
        answer = yield request
        answers.append(answer)
    return answers


def test_every_request_is_one_storage_call() -> None:
    store = FaultyStore(MemoryStore())
    assert run_steps(store, everything()) == [
        *(True, False, b"one", None, True, False, ["a/1"], None, []),
    ]
    assert store.calls == [
        *(Call("create", "a/1"), Call("create", "a/1")),
        *(Call("read", "a/1"), Call("read", "a/2")),
        *(Call("size", "a/1"), Call("size", "a/2")),
        *(Call("list", "a"), Call("delete", "a/1"), Call("list", "a")),
    ]


def test_the_named_steps_ask_for_the_same() -> None:
    def steps() -> Steps[tuple[object, ...]]:
        yield from delete("b")
        return (
            (yield from read("a")),
            (yield from exists("a")),
            (yield from list_paths("")),
        )

    store = MemoryStore({"a": b"1", "b": b"2"})
    assert run_steps(store, steps()) == (b"1", True, ["a"])


def test_a_workflow_may_answer_a_storage_error_itself() -> None:
    def steps() -> Steps[str]:
        try:
            yield Read("a")
        except StorageError:
            found = yield Read("a")
            return f"second try: {found!r}"
        return "no error"

    store = FaultyStore(MemoryStore({"a": b"1"}), Fault(FaultMode.FAIL_BEFORE))
    assert run_steps(store, steps()) == "second try: b'1'"


def test_a_storage_error_nobody_answers_comes_out() -> None:
    store = FaultyStore(MemoryStore(), Fault(FaultMode.FAIL_BEFORE, at=3))
    with pytest.raises(StorageError, match="injected"):
        run_steps(store, everything())
    assert len(store.calls) == 3


def test_a_crash_is_not_thrown_into_the_workflow() -> None:
    seen: list[BaseException] = []

    def steps() -> Steps[None]:
        try:
            yield Read("a")
        except Exception as error:  # noqa: BLE001 (what a careless workflow would do)
            seen.append(error)

    store = FaultyStore(MemoryStore(), Fault(FaultMode.CRASH_BEFORE))
    with pytest.raises(CrashError):
        run_steps(store, steps())
    assert seen == []
