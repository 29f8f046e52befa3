"""Fetches shared libraries, verifies their sha256 before they are loaded, and caches them.

A library is kept under its hash in a folder of this machine's cache: every version has a path
of its own, because loaders identify libraries by path. A file appears there by a rename, so it
is complete; every process verifies it again before it is used.
"""

import ctypes
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.core import settings
from penstock.core.clock import new_token
from penstock.errors import ErrorCode, UserError
from penstock.state.files.cache import find_folder_problem
from penstock.state.storage.urls import expand_home, open_store

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_FOLDER = "dylibs"


def load_dylib(
    url: str,
    sha256: str,
    *,
    options: Mapping[str, Any] | None = None,
    cache_root: Path | None = None,
) -> Path:
    """Return the path of a local copy of a library that has this hash.

    `url` is a path, or names an object in a store that `open_store` opens with `options`. The
    copy is fetched if there is none, or if it is damaged.
    """
    if _SHA256.fullmatch(sha256) is None:
        raise UserError(
            f"{sha256!r} is not the sha256 of the library {url}: expected 64 lower-case hex "
            "digits, as `sha256sum` prints them",
            code=ErrorCode.LIBRARY_MISMATCH,
            url=url,
        )
    folder = _folder_in(cache_root)
    target = folder / f"{sha256}{Path(url).suffix}"
    if not _is_intact(target, sha256):
        data = _fetch(url, options or {})
        found = hashlib.sha256(data).hexdigest()
        if found != sha256:
            raise UserError(
                f"the library {url} is not the one that was declared: its sha256 is {found}, "
                f"expected {sha256}. It was not loaded. Upload the right file, or declare the "
                "new hash if the change is wanted",
                code=ErrorCode.LIBRARY_MISMATCH,
                url=url,
                found=found,
                expected=sha256,
            )
        _keep(target, data)
    return target


@cache
def open_dylib(path: Path) -> ctypes.CDLL:
    """Load a verified library into this process, once."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise UserError(
            f"the library {path.name} cannot be loaded here: {error}. Build it for this "
            "operating system and processor",
            code=ErrorCode.LIBRARY_MISMATCH,
        ) from error


def _folder_in(cache_root: Path | None) -> Path:
    configured = settings.current().cache_root
    if cache_root is None and configured is not None:
        cache_root = Path(configured)
    if cache_root is None:
        # Other users may write to the temporary folder too: this folder must be this user's.
        folder = Path(tempfile.gettempdir()) / f"penstock-{_FOLDER}-{os.getuid()}"
        problem = find_folder_problem(folder)
        if problem is not None:
            raise UserError(
                f"libraries cannot be kept in {folder}: {problem}. Set PENSTOCK_CACHE_ROOT to "
                "a folder of your own",
                code=ErrorCode.INVALID_SETTING,
            )
        return folder
    folder = cache_root / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return folder


_verified: dict[Path, tuple[int, int, int]] = {}
"""The files verified in this process: inode, size and time of change by path."""


def _is_intact(path: Path, sha256: str) -> bool:
    try:
        found = path.stat()
        identity = (found.st_ino, found.st_size, found.st_mtime_ns)
        if _verified.get(path) == identity:
            return True
        data = path.read_bytes()
    except FileNotFoundError:
        return False
    if hashlib.sha256(data).hexdigest() != sha256:
        return False
    _verified[path] = identity
    return True


def _keep(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".{target.name}.{new_token()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _fetch(url: str, options: Mapping[str, Any]) -> bytes:
    is_path = _SCHEME.match(url) is None
    if is_path or url.startswith("file:"):
        path = expand_home(url if is_path else unquote(urlsplit(url).path))
        data = path.read_bytes() if path.is_file() else None
    else:
        folder, _, name = url.rpartition("/")
        data = open_store(folder, **options).read(name) if folder and name else None
    if data is None:
        raise UserError(
            f"there is no library {url}: upload it, or correct the path",
            code=ErrorCode.OBJECT_MISSING,
            url=url,
        )
    return data
