"""Carry out a workflow's storage requests against an object store, one after the other."""

from typing import TypeVar, assert_never

from penstock.errors import PenstockError
from penstock.state.protocol.steps import (
    Create,
    Delete,
    Exists,
    ListPaths,
    Read,
    Request,
    Steps,
)
from penstock.state.storage.object_store import ObjectStore

T = TypeVar("T")


def run_steps(store: ObjectStore, steps: Steps[T]) -> T:
    """Run a workflow to its result; a storage error is thrown into it first."""
    try:
        request = next(steps)
        while True:
            try:
                answer = carry_out(store, request)
            except PenstockError as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as finished:
        result: T = finished.value
        return result


def carry_out(store: ObjectStore, request: Request) -> object:
    """Make the one storage call a request stands for."""
    match request:
        case Read(path):
            return store.read(path)
        case Exists(path):
            return store.size(path) is not None
        case Create(path, data):
            return store.create(path, data)
        case Delete(path):
            store.delete(path)
            return None
        case ListPaths(prefix):
            return [info.path for info in store.list(prefix)]
        case _:
            assert_never(request)
