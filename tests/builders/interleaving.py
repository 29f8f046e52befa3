"""Stopping a workflow in front of a chosen storage call, so that others can act meanwhile."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from penstock.errors import PenstockError
from penstock.state.protocol.steps import Create, Delete, Request, Steps
from penstock.state.storage.create import carry_out
from penstock.state.storage.object_store import ObjectStore

T = TypeVar("T")


class Sleeper(Generic[T]):
    """A process in the middle of a workflow: runs until told to sleep, and wakes later."""

    def __init__(self, store: ObjectStore, steps: Steps[T]) -> None:
        self._store = store
        self._steps = steps
        self._next: Request = next(steps)

    def sleep_before(self, wanted: Callable[[Request], bool]) -> Request:
        """Run on until the next request is a wanted one, and stop in front of it."""
        while not wanted(self._next):
            self._next = self._answer()
        return self._next

    def wake(self) -> T:
        """Run to the end."""
        try:
            while True:
                self._next = self._answer()
        except StopIteration as finished:
            result: T = finished.value
            return result

    def _answer(self) -> Any:
        try:
            answer = carry_out(self._store, self._next)
        except PenstockError as error:
            return self._steps.throw(error)
        return self._steps.send(answer)


def creating(part: str) -> Callable[[Request], bool]:
    """Match the create of an object whose path contains `part`."""
    return lambda request: isinstance(request, Create) and part in request.path


def deleting(part: str = "") -> Callable[[Request], bool]:
    """Match the deletion of an object whose path contains `part`."""
    return lambda request: isinstance(request, Delete) and part in request.path


def asking(part: str) -> Callable[[Request], bool]:
    """Match any request for an object whose path contains `part`."""
    return lambda request: part in getattr(request, "path", "")
