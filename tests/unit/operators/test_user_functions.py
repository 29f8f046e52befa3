import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import UserFunction
from penstock.operators.user_functions import name_of, pickle_function, unpickle_function


def double(value: int) -> int:
    return 2 * value


class Holder:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def call(self) -> None: ...


class Slotted:
    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_a_function_survives_with_its_name() -> None:
    packed = pickle_function(double)
    assert packed.name == "double"
    assert unpickle_function(packed)(21) == 42


def test_a_closure_is_copied_as_it_was_when_pickled() -> None:
    captured = [1]
    packed = pickle_function(lambda: list(captured))
    captured.append(2)
    assert unpickle_function(packed)() == [1]


def test_a_state_class_that_was_used_before_can_be_pickled() -> None:
    @dataclass
    class Counted:
        count: int

    assert msgspec.json.decode(b'{"count": 1}', type=Counted) == Counted(1)
    copied = unpickle_function(pickle_function(lambda: Counted(2)))()
    assert msgspec.json.encode(copied) == msgspec.json.encode(Counted(2))


def test_a_given_name_wins() -> None:
    assert pickle_function(double, "twice").name == "twice"


def test_names_are_those_people_know() -> None:
    def inner() -> None: ...

    assert name_of(inner) == "inner"
    assert name_of(partial(double, 1)) == "double"
    assert name_of(Holder(1)) == "Holder"
    assert name_of(lambda: None) == "<lambda>"


def _fails(obj: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        pickle_function(obj, "mine")
    assert caught.value.code is ErrorCode.NOT_PICKLABLE
    assert "'mine'" in caught.value.message
    assert caught.value.__cause__ is not None
    return caught.value


def test_the_closure_variable_that_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()
    assert "closure variable 'lock' of type lock" in _fails(lambda: lock).message


def test_the_attribute_that_cannot_be_pickled_is_named() -> None:
    held = Holder({"deep": Holder(threading.Lock())})
    message = _fails(held).message
    assert "attribute 'inner' → item 'deep' → attribute 'inner' of type lock" in message


def test_a_slot_that_cannot_be_pickled_is_named() -> None:
    assert "attribute 'lock' of type lock" in _fails(Slotted()).message


def test_a_method_names_the_attribute_of_its_object() -> None:
    message = _fails(Holder(threading.Lock()).call).message
    assert "its object → attribute 'inner' of type lock" in message


def test_a_default_value_that_cannot_be_pickled_is_named() -> None:
    def with_default(first: Any = threading.Lock(), *, lock: Any = None) -> None: ...  # noqa: B008

    def with_keyword(*, lock: Any = threading.Lock()) -> None: ...  # noqa: B008

    assert "default value 0" in _fails(with_default).message
    assert "default value of 'lock'" in _fails(with_keyword).message


def test_an_item_that_cannot_be_pickled_is_named() -> None:
    assert "item 1 of type lock" in _fails([1, threading.Lock()]).message


def test_what_cannot_be_found_is_not_guessed() -> None:
    assert "it cannot be pickled" in _fails(threading.Lock()).message


def test_a_module_that_a_worker_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("def found(): return 1\n")
    script = (
        "import sys, only_here\n"
        "from penstock.operators.user_functions import pickle_function\n"
        "sys.stdout.buffer.write(pickle_function(only_here.found).pickled)\n"
    )
    environment = {"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"}
    pickled = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, env=environment
    ).stdout
    with pytest.raises(UserError, match=r"no module 'only_here'\. Install it") as caught:
        unpickle_function(UserFunction("found", pickled))
    assert caught.value.code is ErrorCode.MISSING_PACKAGE
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_function_that_a_newer_module_lacks_is_explained() -> None:
    pickled = pickle_function(json.dumps).pickled.replace(b"dumps", b"dumpz")
    with pytest.raises(UserError, match="another version of the module"):
        unpickle_function(UserFunction("dumps", pickled))


def test_damaged_bytes_are_explained() -> None:
    with pytest.raises(UserError, match="Pickle it again"):
        unpickle_function(UserFunction("f", b"\x80\x05garbage"))
