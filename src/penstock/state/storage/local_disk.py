"""Objects as files below one folder of this machine, durable when a call returns.

How it works: an object is written whole to a staging file, which is flushed to the disk and
only then gets its name: by `link` if the object must not exist yet (the one call that is
atomic and fails on an existing name), or by `rename` if it may. Then the folder is flushed.
So a killed process leaves no half object, and after a power cut no acknowledged object is
lost and no name is without its bytes. (obstore's local store is not used because it does not
flush.)

    {root}/#staging/{token}   being written; no object path holds a `#`, no listing shows it
    {root}/{path}             whole objects

A writer holds a lock on its staging file. A staging file that no process has locked is a
leftover of a dead process: the first write of each store removes it. Who only reads makes,
changes and removes nothing, not even the folder. Staging never leads through a link, and only
regular files with a token as their name are taken for leftovers. Folders that become empty are
removed.

An object `a` and an object `a/b` cannot both exist here, as they could in S3. Deletes are
not flushed: after a power cut a deleted object may be back.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from penstock.core.clock import new_token
from penstock.core.ids import checksum_of
from penstock.errors import ErrorCode, StorageError, UnknownOutcomeError, UserError
from penstock.state.storage.object_store import (
    ObjectInfo,
    StorageCall,
    check_path,
    check_range,
    folder_start,
    is_object_path,
)


@contextmanager
def staged_file(folder: Path, data: bytes, *, durable: bool) -> Iterator[Path]:
    """Hold `data` in a new file of `folder`, flushed if `durable`; remove it on leaving."""
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        path = folder / new_token()
        file = path.open("xb")
        with suppress(
            OSError
        ):  # on a file system without locks no file counts as a leftover
            fcntl.flock(file, fcntl.LOCK_EX)
        # Between open and lock, `remove_leftover` may have removed the file.
        if os.fstat(file.fileno()).st_nlink:
            break
        file.close()
    try:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())
        yield path
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            file.close()


def remove_leftover(path: Path) -> None:
    """Remove a staging file unless a process has locked it; a file that stays does no harm.

    Links and whatever else is no regular file are left alone: they were not made by a writer.
    """
    with suppress(OSError):
        # O_NONBLOCK: opening a named pipe would wait for its other end.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(handle).st_mode):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        finally:
            os.close(handle)


_Taken = TypeVar("_Taken")

_STAGING = "#staging"
_TOKEN = re.compile(r"[0-9a-f]{32}")

_FOLDER_RACES = 100
"""How often another process may remove the folder of a write before the write fails."""

_CODES = {
    errno.EACCES: ErrorCode.STORAGE_PERMISSION,
    errno.EPERM: ErrorCode.STORAGE_PERMISSION,
    errno.EROFS: ErrorCode.STORAGE_READ_ONLY,
    errno.ENOSPC: ErrorCode.STORAGE_FULL,
    errno.EDQUOT: ErrorCode.STORAGE_FULL,
    errno.ENOTSUP: ErrorCode.STORAGE_UNSAFE,
    errno.ENOSYS: ErrorCode.STORAGE_UNSAFE,
}

_CERTAIN = _CODES.keys() | {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.ENAMETOOLONG,
    errno.EXDEV,
    errno.EMLINK,
    errno.ELOOP,
}
"""Errors after which the file system has certainly changed nothing."""


class LocalStore:
    """An `ObjectStore` in a folder. Several processes of one machine may share it."""

    def __init__(self, root: Path, *, durable: bool = True) -> None:
        """Open the folder `root`; the first write makes it if it is missing.

        Without `durable` nothing is flushed: this is fast, and writes are still atomic if a
        process dies, but not if the machine does.
        """
        self._root = root.resolve()
        self.url = self._root.as_uri()
        self._staging = self._root / _STAGING
        self._durable = durable
        self._has_written = False
        try:
            places = (self._root, *self._root.parents)
            found = next(place for place in places if place.exists())
        except OSError as error:
            raise _refused(StorageCall("open", ".", self.url), error) from error
        if not found.is_dir():
            raise self._not_a_folder()

    def read(self, path: str) -> bytes | None:
        """Return the whole file, or None."""
        return self._read(path, lambda file: file.read())

    def read_range(self, path: str, start: int, length: int) -> bytes | None:
        """Return the part of the file that lies in the range, or None without a file."""
        check_range(start, length)

        def part(file: BinaryIO) -> bytes:
            file.seek(start)
            # A read of n bytes allocates n bytes first, however small the file is.
            return file.read(max(0, min(length, _size_of(file) - start)))

        return self._read(path, part)

    def put(self, path: str, data: bytes) -> None:
        """Write or replace the file."""
        self._write(StorageCall("put", check_path(path), self.url), data, os.replace)

    def create(self, path: str, data: bytes) -> bool:
        """Write the file if there is none; tell whether this call did."""
        return self._write(StorageCall("create", check_path(path), self.url), data, os.link)

    def list(
        self, prefix: str, *, is_listed: Callable[[str], bool] = is_object_path
    ) -> Iterator[ObjectInfo]:
        """List the folder; files that appear or disappear meanwhile may be missed.

        Files that no object path can name are no objects. A link to another folder of this
        store is skipped, because its files are listed under their own names.
        """
        start = folder_start(prefix)
        try:
            seen = frozenset({self._root})
            found = sorted(_files_below(self._root / start, start, is_listed, seen))
        except OSError as error:
            raise _refused(StorageCall("list", prefix, self.url), error) from error
        return (ObjectInfo(path, size_bytes) for path, size_bytes in found)

    def list_files(self, prefix: str) -> Iterator[ObjectInfo]:
        """List also files that no object path can name, for a source that reads other files.

        Other calls refuse such names. Bytes of a name that are no UTF-8 are escaped as Python
        does (surrogateescape).
        """
        return self.list(prefix, is_listed=lambda name: name != _STAGING)

    def folders(self, prefix: str) -> Iterator[str]:
        """Name the folders that hold a file at any depth: an empty one is no part of a path."""
        folder, seen = self._root / folder_start(prefix), frozenset({self._root})
        try:
            names = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
            found = sorted(
                name
                for name in names
                if is_object_path(name)
                and any(_files_below(folder / name, "", is_object_path, seen))
            )
        except (FileNotFoundError, NotADirectoryError):
            return iter(())
        except OSError as error:
            raise _refused(StorageCall("list", prefix, self.url), error) from error
        return iter(found)

    def delete(self, path: str) -> None:
        """Remove the file, and every folder above it that becomes empty."""
        call = StorageCall("delete", check_path(path), self.url)
        file = self._root / path
        try:
            file.unlink()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return
        except OSError as error:
            raise _refused_or_unanswered(call, error) from error
        with suppress(OSError):
            for folder in file.parents:
                if folder == self._root:
                    break
                folder.rmdir()

    def size(self, path: str) -> int | None:
        """Return the size of the file, or None."""
        return self._read(path, _size_of)

    def checksum(self, path: str) -> int | None:
        """Return the checksum of the file, or None."""
        return self._read(path, lambda file: checksum_of(file.read()))

    def copy(self, source: str, target: str) -> bool | None:
        """Link the file to a second name. This is safe because no file is changed in place."""
        call = StorageCall("copy", check_path(target), self.url)
        original = self._root / check_path(source)
        try:
            if original.is_file():
                return self._publish(call, original, os.link)
            if (self._root / target).is_dir():
                raise call.refused("a folder of that name exists")
            return False if (self._root / target).exists() else None
        except OSError as error:
            raise _refused(call, error) from error

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(LocalStore, self._root, durable=self._durable), ()

    def _not_a_folder(self) -> UserError:
        return UserError(
            f"{self.url} is not a folder; choose a folder for the store or remove the file "
            "of that name",
            code=ErrorCode.INVALID_URL,
            url=self.url,
        )

    def _read(self, path: str, take: Callable[[BinaryIO], _Taken]) -> _Taken | None:
        """Return what `take` reads from the file; None if it is missing or a folder."""
        try:
            with (self._root / check_path(path)).open("rb") as file:
                return take(file)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise _refused(StorageCall("read", path, self.url), error) from error

    def _write(
        self, call: StorageCall, data: bytes, publish: Callable[[Path, Path], None]
    ) -> bool:
        """Stage `data` and name it with `publish`; return False if the name is taken."""
        try:
            self._prepare_staging()
            with staged_file(self._staging, data, durable=self._durable) as staged:
                return self._publish(call, staged, publish)
        except OSError as error:
            raise _refused(call, error) from error

    def _prepare_staging(self) -> None:
        """Refuse a staging folder that leads elsewhere; before the first write, clear it."""
        try:
            found = self._staging.lstat().st_mode
        except FileNotFoundError:
            found = None
        if found is not None and not stat.S_ISDIR(found):
            # No retry would help.
            raise UserError(
                f"{_STAGING!r} of {self.url} is not a folder but a link or a file, and writes "
                "would go elsewhere: remove it. Nothing was changed",
                code=ErrorCode.INVALID_URL,
                url=self.url,
            )
        if self._has_written:
            return
        if found is None:
            self._make_folder(self._root)
        else:
            for path in self._staging.iterdir():
                if _TOKEN.fullmatch(path.name):
                    remove_leftover(path)
        self._has_written = True

    def _publish(
        self, call: StorageCall, file: Path, publish: Callable[[Path, Path], None]
    ) -> bool:
        """Give a whole file its name; make folders that are missing or were just removed."""
        target = self._root / call.path
        for _ in range(_FOLDER_RACES):
            try:
                publish(file, target)
            except FileNotFoundError:
                self._make_folder(target.parent)
            except FileExistsError as error:
                if target.is_dir():
                    raise call.refused("a folder of that name exists") from error
                return False
            except OSError as error:
                raise _refused_or_unanswered(call, error) from error
            else:
                break
        else:
            raise call.refused("its folder is removed as often as it is made")
        try:
            self._flush_folder(target.parent)
        except OSError as error:
            raise call.unanswered(_reason(error)) from error
        return True

    def _make_folder(self, folder: Path) -> None:
        """Make the folder and those above it; another process may remove them at once."""
        try:
            folder.mkdir()
        except FileExistsError:
            return
        except FileNotFoundError:
            self._make_folder(folder.parent)
            with suppress(FileExistsError, FileNotFoundError):
                folder.mkdir()
        self._flush_folder(folder.parent)

    def _flush_folder(self, folder: Path) -> None:
        """Make the folder's names durable; a folder that was removed needs no flush."""
        if not self._durable:
            return
        with suppress(FileNotFoundError):
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _size_of(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _files_below(
    folder: Path, start: str, is_listed: Callable[[str], bool], seen: frozenset[Path]
) -> Iterator[tuple[str, int]]:
    """Yield path and size of every file below `folder`; all their paths begin with `start`.

    Files and folders whose names are not listed are skipped. A link is skipped if it leads
    below or above a folder `seen` on the way: the first would list files twice, the second
    would not end.
    """
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if not is_listed(entry.name):
            continue
        path = start + entry.name
        if entry.is_dir():
            below, known = folder / entry.name, seen
            if entry.is_symlink():
                target = below.resolve()
                if any(
                    target.is_relative_to(place) or place.is_relative_to(target)
                    for place in seen
                ):
                    continue
                known = seen | {target}
            yield from _files_below(below, f"{path}/", is_listed, known)
            continue
        with suppress(FileNotFoundError):
            yield path, entry.stat().st_size


def _reason(error: OSError) -> str:
    """Return the text of an error without the path, which the message names already."""
    return error.strerror or type(error).__name__


def _refused(call: StorageCall, error: OSError) -> StorageError:
    """Return the error of a call that failed before it could change anything."""
    code = _CODES.get(error.errno or 0, ErrorCode.STORAGE_FAILED)
    return call.refused(_reason(error), code)


def _refused_or_unanswered(
    call: StorageCall, error: OSError
) -> StorageError | UnknownOutcomeError:
    """Return the error of a call that changes a name; not every answer is certain."""
    is_certain = error.errno in _CERTAIN
    return _refused(call, error) if is_certain else call.unanswered(_reason(error))
