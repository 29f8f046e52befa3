"""How a URL names a store: the one way everything else opens one.

| URL                                | store                                             |
|------------------------------------|---------------------------------------------------|
| `file:///folder`, `file:folder`    | that folder of this machine, made if missing      |
| `folder`, `./folder`, `~/folder`   | the same, without `%` escapes                     |
| `memory:name`                      | shared by all of this process who use the name    |
| `memory:`                          | a new private one                                 |
| `s3://bucket/prefix`               | Amazon S3 and what speaks its protocol            |
| `gs://bucket/prefix`               | Google Cloud Storage                              |
| `az://container/prefix`            | Azure Blob Storage; option `account_name`         |
"""

import re
from pathlib import Path
from typing import Any
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


def open_store(url: str, **options: Any) -> ObjectStore:
    """Open the store a URL names; the options depend on its kind.

    Folders take `durable=False` (do not flush to the disk), buckets what `obstore_client`
    lists, `memory:` none. The store pickles, so it can be sent to workers; a `memory:` one
    stays in its process. A relative path means this process's working folder, now.

    >>> store = open_store("memory:doctest-of-open-store")
    >>> store.create("a/b", b"first"), store.create("a/b", b"second")
    (True, False)
    >>> open_store("memory:doctest-of-open-store").read("a/b")
    b'first'
    """
    match = _SCHEME.fullmatch(url)
    if match is None:
        return _open_folder(url, options)
    scheme, rest = match[1].lower(), match[2]
    match scheme:
        case "file":
            return _open_folder(_folder_of(rest), options)
        case "memory":
            return _open_memory(rest, options)
        case "s3" | "gs" | "az":
            # obstore starts threads of its own; whoever never opens a bucket does without.
            from penstock.state.storage.obstore import ObstoreStore

            return ObstoreStore(f"{scheme}:{rest}", options)
        case _:
            raise UserError(
                f"{scheme}: is not a kind of store: {_ALLOWED}; a path that holds a ':' "
                "must start with './' or '/'",
                code=ErrorCode.INVALID_URL,
            )


def absolute_url(url: str) -> str:
    """Return a URL that names the same store whatever the working folder is; opens nothing.

    >>> absolute_url("s3://bucket/out"), absolute_url("file:///out/day=1")
    ('s3://bucket/out', 'file:///out/day%3D1')
    """
    match = _SCHEME.fullmatch(url)
    if match is None:
        path = url
    elif match[1].lower() == "file":
        path = _folder_of(match[2])
    else:
        return url
    if not path or "\0" in path:
        raise UserError(f"{path!r} names no store: {_ALLOWED}", code=ErrorCode.INVALID_URL)
    return Path(path).expanduser().resolve().as_uri()


def _folder_of(rest: str) -> str:
    """Return the path in a `file:` URL, whose host can only be this machine."""
    match = _FILE.fullmatch(rest)
    if match is None:
        raise UserError(
            "this file: URL does not name a folder of this machine: use file:///folder, "
            "without a host, '?' or '#'",
            code=ErrorCode.INVALID_URL,
        )
    return unquote(match[1])


def _open_folder(path: str, options: dict[str, Any]) -> LocalStore:
    """Open a local folder; a '~' at the start is the user's home."""
    if not path or "\0" in path:
        raise UserError(f"{path!r} names no store: {_ALLOWED}", code=ErrorCode.INVALID_URL)
    durable = options.pop("durable", True)
    _refuse_options(f"the folder {path}", options)
    return LocalStore(Path(path).expanduser(), durable=durable)


def _open_memory(name: str, options: dict[str, Any]) -> MemoryStore:
    """Open a store in memory: a shared one if it has a name."""
    _refuse_options("a memory: store", options)
    name = name.removeprefix("//").rstrip("/")
    if _MEMORY.fullmatch(name) is None:
        raise UserError(
            f"{name!r} cannot name a memory: store: use letters, digits, '_', '.' and '-'",
            code=ErrorCode.INVALID_URL,
        )
    return shared_memory_store(name) if name else MemoryStore()


def _refuse_options(what: str, options: dict[str, Any]) -> None:
    """Raise for options that are left over: a misspelt one would be ignored otherwise."""
    if options:
        raise SettingsError(
            f"{what} does not take the options {sorted(options)}; remove them",
            options=sorted(options),
        )
