"""How a URL names a store: the only place that opens stores by URL.

| URL                                | store                                             |
|------------------------------------|---------------------------------------------------|
| `file:///folder`, `file:folder`    | that folder of this machine, made when written to |
| `folder`, `./folder`, `~/folder`   | the same, without `%` escapes; also as a `Path`   |
| `memory:name`                      | shared in this process by all that use the name   |
| `memory:`                          | a new private one                                 |
| `s3://bucket/prefix`               | Amazon S3 and stores with its protocol            |
| `gs://bucket/prefix`               | Google Cloud Storage                              |
| `az://container/prefix`            | Azure Blob Storage; option `account_name`         |
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

from penstock.errors import ErrorCode, SettingsError, UserError
from penstock.state.storage.local_disk import LocalStore
from penstock.state.storage.memory import MemoryStore, shared_memory_store
from penstock.state.storage.object_store import ObjectStore

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_FILE = re.compile(r"(?://(?:localhost)?(?=/[^/]))?(?!//)([^?#]+)")
_MEMORY = re.compile(r"[A-Za-z0-9_.-]*")

_ALLOWED = (
    "use a path, file:///folder, memory:name, s3://bucket/prefix, gs://bucket/prefix or "
    "az://container/prefix"
)


StorePlace: TypeAlias = str | PathLike[str] | ObjectStore
"""What names a store to users: a URL, a path, or an open store."""


def to_store(place: StorePlace, **options: Any) -> ObjectStore:
    """Return the store that was given, or open the one that a URL or path names."""
    if isinstance(place, str | PathLike):
        return open_store(place, **options)
    if isinstance(place, ObjectStore):
        _refuse_options("an open store", options)
        return place
    raise UserError(
        f"{place!r} names no store: {_ALLOWED}, or give an open store",
        code=ErrorCode.INVALID_URL,
    )


def to_options(given: Any) -> dict[str, Any]:
    """Return the `store_options` that a user gave; None is none."""
    if given is None:
        return {}
    if isinstance(given, Mapping) and all(isinstance(name, str) for name in given):
        return dict(given)
    raise UserError(  # without them: they may be secrets
        "store_options are no options by name: write store_options={'endpoint': 'https://…', …}",
        code=ErrorCode.INVALID_CONFIG,
    )


def to_url(place: str | PathLike[str]) -> str:
    """Return the text of a URL or path; a `Path` is never taken for a URL.

    >>> to_url("s3://bucket"), to_url(Path("a/b")), to_url(Path("s3:odd"))
    ('s3://bucket', 'a/b', './s3:odd')
    """
    text: object = place
    with suppress(TypeError):  # for callers without types
        text = fspath(place)
    if isinstance(text, str):
        is_path = not isinstance(place, str)
        return f"./{text}" if is_path and _SCHEME.fullmatch(text) else text
    raise UserError(f"{place!r} names no store: {_ALLOWED}", code=ErrorCode.INVALID_URL)


def open_store(url: str | PathLike[str], **options: Any) -> ObjectStore:
    """Open the store that a URL names; the options depend on its kind.

    Folders take `durable=False` (do not flush to the disk), buckets the options that the
    module `obstore` lists, and `memory:` none. The store can be pickled and sent to workers,
    except a `memory:` one. A relative path is resolved against the current working folder.

    >>> store = open_store("memory:doctest-of-open-store")
    >>> store.create("a/b", b"first"), store.create("a/b", b"second")
    (True, False)
    >>> open_store("memory:doctest-of-open-store").read("a/b")
    b'first'
    """
    url = to_url(url)
    path = _folder_path(url)
    if path is not None:
        durable = options.pop("durable", True)
        _refuse_options(f"the folder {path}", options)
        return LocalStore(path, durable=durable)
    scheme, _, rest = url.partition(":")
    match scheme.lower():
        case "memory":
            _refuse_options("a memory: store", options)
            name = rest.removeprefix("//").rstrip("/")
            if _MEMORY.fullmatch(name) is None:
                raise UserError(
                    f"{name!r} cannot name a memory: store: use letters, digits, '_', '.' "
                    "and '-'",
                    code=ErrorCode.INVALID_URL,
                )
            return shared_memory_store(name) if name else MemoryStore()
        case "s3" | "gs" | "az" as bucket:
            # obstore starts threads of its own, which a job without buckets does not need.
            from penstock.state.storage.obstore import ObstoreStore

            return ObstoreStore(f"{bucket}:{rest}", options)
        case other:
            raise UserError(
                f"{other}: is not a kind of store: {_ALLOWED}; a path that holds a ':' "
                "must start with './' or '/'",
                code=ErrorCode.INVALID_URL,
            )


def absolute_url(url: str) -> str:
    """Return a URL that names the same store in every working folder; opens nothing.

    >>> absolute_url("s3://bucket/out"), absolute_url("file:///out/day=1")
    ('s3://bucket/out', 'file:///out/day%3D1')
    """
    path = _folder_path(url)
    return url if path is None else path.resolve().as_uri()


def _folder_path(url: str) -> Path | None:
    """Return the local folder that a URL or a plain path names; None for another store.

    A '~' at the start is the user's home. The host of a `file:` URL can only be this machine.
    """
    match = _SCHEME.fullmatch(url)
    path = url
    if match is not None:
        if match[1].lower() != "file":
            return None
        folder = _FILE.fullmatch(match[2])
        if folder is None:
            raise UserError(
                "this file: URL does not name a folder of this machine: use file:///folder, "
                "without a host, '?' or '#'",
                code=ErrorCode.INVALID_URL,
            )
        path = unquote(folder[1])
    if not path or "\0" in path:
        raise UserError(f"{path!r} names no store: {_ALLOWED}", code=ErrorCode.INVALID_URL)
    return expand_home(path)


def expand_home(path: str) -> Path:
    """Return a path with the home folder in the place of a '~' at its start."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"{path!r} begins with the home folder of a user that this machine does not know: "
            "write the folder out, or begin with './' if its name has a '~'",
            code=ErrorCode.INVALID_URL,
        ) from error


def _refuse_options(what: str, options: dict[str, Any]) -> None:
    """Raise for unknown options: a misspelt one would otherwise be ignored."""
    if options:
        raise SettingsError(
            f"{what} does not take the options {sorted(options)}; remove them",
            options=sorted(options),
        )
