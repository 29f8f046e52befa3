"""The start-up probe: refuse a store that would lose checkpoints later.

The protocol rests on two promises of the store: `create` fails on an existing object, and
a read sees every write answered before it. A store that silently lacks one of them works
until two drivers meet; so it is asked before the job starts: eleven small requests.
"""

from contextlib import suppress

from penstock.core.ids import Token
from penstock.errors import ErrorCode, PenstockError, StorageError, UnknownOutcomeError
from penstock.state.storage.object_store import ObjectStore


def probe_store(store: ObjectStore, prefix: str, token: Token) -> None:
    """Return if the store keeps its promises below the folder `prefix`, else raise.

    A store that breaks one raises `StorageError` with code STORAGE_UNSAFE, which says which
    one. A store that merely refuses (no permission, full, read-only) raises its own error.
    The token must be new: it names the probe's object, which is gone afterwards unless
    the store cannot delete or the process dies.
    """
    path = f"{prefix}/probe-{token}" if prefix else f"probe-{token}"
    try:
        _probe(store, path)
    except UnknownOutcomeError as error:
        raise _unsafe(
            store, path, "it gave no certain answer to a small write, even after retries"
        ) from error
    except StorageError as error:
        error.add_note(f"This happened while {store.url} was probed before the start.")
        raise
    finally:
        with suppress(PenstockError):
            store.delete(path)


def _probe(store: ObjectStore, path: str) -> None:
    first, second, third = b"first", b"second, longer", b"3"

    def require(promise_kept: bool, otherwise: str) -> None:  # noqa: FBT001 - reads as a sentence
        if not promise_kept:
            raise _unsafe(store, path, otherwise)

    require(store.read(path) is None, "it returned an object that was never written")
    # False may be the answer to the library's own repeated request; then the bytes are ours.
    require(
        store.create(path, first) or store.read(path) == first,
        "it would not create an object under a new name",
    )
    require(store.read(path) == first, "a read did not see an object just created")
    require(
        store.size(path) == len(first), "it told a wrong size of an object just created"
    )
    require(
        not store.create(path, second),
        "its create-if-absent claimed to have written over an existing object",
    )
    require(store.read(path) == first, "its create-if-absent wrote over an existing object")
    store.put(path, third)
    require(store.read(path) == third, "a read did not see an object just replaced")
    store.delete(path)
    require(store.read(path) is None, "a read still saw an object just deleted")


def _unsafe(store: ObjectStore, path: str, behaviour: str) -> StorageError:
    return StorageError(
        f"{store.url} is not safe to keep checkpoints in: {behaviour} (tried with {path!r}). "
        "Use a store with strong consistency and an atomic create-if-absent: a local disk, "
        "S3, GCS, Azure, or a server that honours 'If-None-Match: *'; bypass caches in "
        "between",
        code=ErrorCode.STORAGE_UNSAFE,
        url=store.url,
        path=path,
    )
