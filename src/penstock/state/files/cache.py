"""Caches of an executor: decoded pieces of state files on disk, and recent values in memory.

`FileCache` keeps pieces of state files as Arrow IPC under one folder. Several processes share
the folder and may be killed at any instant. The cache only holds copies, so losing an entry is
always fine, and returning a wrong one never is. How it works:

- An entry is written under a temporary name and renamed, so a visible entry is complete. No
  entry is ever changed in place, because reading a mapping of a file that shrank is SIGBUS.
- An entry ends in a trailer with its own length, which is compared with the open file's length
  before it is mapped. The trailer also holds the machine's boot id: bytes that were renamed but
  not yet on disk when the machine died come back as zeros, so another boot's entries are
  misses. On a system without a boot id, entries are flushed to disk before the rename.
- The trailer holds checksums of the entry's name and of its content. The content is checked when
  a process first maps an entry: a damaged or exchanged one is a miss.
- If `{uid}` is in the folder's name, it stands for the number of this process's user, and the
  folder is used only if it is this user's own: others may write to the folder around it. It is
  looked at before every write, as somebody may have tidied it away, and entries must be own, too.
- A reader that finds no file has a miss. Removing an entry that a reader has mapped is
  harmless: the mapping keeps the bytes.
- The lock file `lock` orders writers. It holds the bytes in use: raised before an entry appears
  (a crash in between only over-counts) and counted again at every eviction.
- A hit updates the entry's modification time; eviction removes the entries that were not used
  for longest. Entries that `remove` deleted stay counted until then.
- A writer holds a lock on its temporary file, so a temporary file that can be locked has no
  writer and is removed.

`Recent` keeps values in memory while they are used. A cache that is limited by number alone
grows until it is full, hours into a run. `Recent` also drops values that were not used for some
seconds, so its size follows the work. While it is not full, a dropped value is computed again
at most once per 10 s.
"""

import errno
import fcntl
import logging
import math
import mmap
import os
import stat
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import pyarrow as pa

from penstock.core.clock import new_token
from penstock.core.ids import checksum_of
from penstock.state.storage.local_disk import remove_leftover

_LOGGER = logging.getLogger(__name__)
_MAGIC = b"PNSTKC02"
_TRAILER = struct.Struct("<8sQQQQ")
"""The magic, the length of the file, the boot, and the checksums of name and content."""
_UID = "{uid}"
_VERIFIED_ENTRIES = 4_096
_USAGE = struct.Struct("<Q")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ENTRY_SUFFIX = ".arrow"
_TEMPORARY_SUFFIX = ".part"
_EVICT_TO = 0.9
"""Eviction removes a little more than needed, so that not every write scans a full cache."""
_RETRY_AFTER_PUTS = 64
"""How many writes to skip after one failed, before trying the disk again."""


@dataclass(frozen=True, slots=True)
class CacheKey:
    """The key of an entry: one piece of one state file, in one decoded form."""

    checksum: int
    """The checksum of the whole state file: equal contents share entries."""
    segment: int = 0
    form: str = "rows"
    """The decoded form: letters, digits and `-`. Each form of a piece is an entry of its own."""

    @property
    def file_name(self) -> str:
        """The entry's name in the cache folder."""
        return f"{self.checksum:016x}-{self.segment:05d}-{self.form}{_ENTRY_SUFFIX}"


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """The counters of one process since it opened the cache."""

    hits: int = 0
    misses: int = 0
    hit_bytes: int = 0
    written_bytes: int = 0
    evicted_entries: int = 0


class FileCache:
    """Immutable record batches under one folder, shared by processes, limited in size.

    Threads may share it. It never raises errors of the disk: a cache that cannot write logs
    one warning and is then only slow.
    """

    def __init__(
        self, root: Path, limit_bytes: int, *, boot_id_path: Path = _BOOT_ID
    ) -> None:
        self.root = Path(str(root).replace(_UID, str(os.getuid())))
        self.limit_bytes = limit_bytes
        self._must_be_own = _UID in str(root)
        self._was_own = False
        self._verified: Recent[str, tuple[int, int]] = Recent(
            _VERIFIED_ENTRIES, seconds=math.inf
        )
        """Number and length of the files whose content was checked in this process."""
        self._guard = threading.Lock()
        self._counts = dict.fromkeys(CacheStatistics.__dataclass_fields__, 0)
        self._warned = False
        self._puts_to_skip = 0
        self._boot = _read_boot(boot_id_path)

    def statistics(self) -> CacheStatistics:
        """Return the current counters of this object."""
        with self._guard:
            return CacheStatistics(**self._counts)

    def get(self, key: CacheKey) -> pa.RecordBatch | None:
        """Map an entry without copying it; return None if there is no complete one of this boot."""
        batch = self.peek(key)
        if batch is None:
            self._count(misses=1)
        else:
            self._count(hits=1, hit_bytes=batch.nbytes)
        return batch

    def peek(self, key: CacheKey) -> pa.RecordBatch | None:
        """Map an entry without counting it as a lookup."""
        path = self.root / key.file_name
        mapping = self._map(path) if self._is_usable() else None
        if mapping is None:
            return None
        end = len(mapping) - _TRAILER.size
        try:
            with pa.ipc.open_file(pa.py_buffer(mapping), footer_offset=end) as reader:
                return reader.get_batch(0)
        except (pa.ArrowException, OSError) as error:
            _LOGGER.debug("dropped the unreadable cache entry %s: %s", path, error)
            _remove(path)
            return None

    def _map(self, path: Path) -> mmap.mmap | None:
        """Map a file if it is an entry of this boot and name, whole and as it was written."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            found = os.fstat(descriptor)
            if self._must_be_own and found.st_uid != os.getuid():
                return None
            size, end = found.st_size, found.st_size - _TRAILER.size
            trailer = os.pread(descriptor, _TRAILER.size, end) if end > 0 else b""
            # Only a complete entry of this boot and name ends in a trailer that begins so.
            if trailer[:-8] != self._trailer(path.name, size, content=0)[:-8]:
                _remove(path)
                return None
            mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
            identity = (found.st_ino, size)
            if self._verified.get(path.name) != identity:
                if _checksum_of(mapping, end).to_bytes(8, "little") != trailer[-8:]:
                    _LOGGER.warning("dropped the damaged cache entry %s", path)
                    _remove(path)
                    return None
                self._verified.put(path.name, identity)
            _touch(descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return mapping

    def holds(self, key: CacheKey) -> bool:
        """Tell whether the entry's file exists, without counting it as a lookup."""
        return self._is_usable() and os.access(self.root / key.file_name, os.F_OK)

    def put(self, key: CacheKey, batch: pa.RecordBatch) -> None:
        """Store a batch under `key`. An existing entry stays, because it holds the same rows."""
        with self._guard:
            if self._puts_to_skip:
                self._puts_to_skip -= 1
                return
        target = self.root / key.file_name
        size = pa.ipc.get_record_batch_size(batch)
        if size > self.limit_bytes or os.access(target, os.F_OK):
            return
        if not self._is_usable(to_write=True):
            return
        try:
            self._write(target, batch)
        except OSError as error:
            with self._guard:
                self._puts_to_skip = _RETRY_AFTER_PUTS
            self._warn(
                "the state cache at %s cannot be written (%s); going on without caching. Free "
                "space there or set another cache folder to get its speed back",
                error,
            )

    def remove(self, key: CacheKey) -> bool:
        """Remove an entry that will hardly be needed again; tell whether there was one."""
        return self.holds(key) and _remove(self.root / key.file_name)

    def _is_usable(self, *, to_write: bool = False) -> bool:
        """Return whether the folder can be trusted; for reads it is looked at once."""
        if not self._must_be_own or (self._was_own and not to_write):
            return True
        problem = find_folder_problem(self.root)
        self._was_own = problem is None
        if problem is None:
            return True
        self._warn(
            "the state cache at %s is not used, because %s; going on without caching. Remove it, "
            "or set PENSTOCK_CACHE_ROOT to a folder of your own",
            problem,
        )
        return False

    def _warn(self, text: str, reason: object) -> None:
        """Log a warning about the folder, once."""
        with self._guard:
            warned, self._warned = self._warned, True
        if not warned:
            _LOGGER.warning(text, self.root, reason)

    def _trailer(self, name: str, size: int, content: int) -> bytes:
        return _TRAILER.pack(_MAGIC, size, self._boot, checksum_of(name.encode()), content)

    def _write(self, target: Path, batch: pa.RecordBatch) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        temporary = self.root / f"{new_token()}{_TEMPORARY_SUFFIX}"
        with temporary.open("x+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                _reserve(file.fileno(), pa.ipc.get_record_batch_size(batch))
                with pa.ipc.new_file(pa.PythonFile(file, mode="w"), batch.schema) as writer:
                    writer.write_batch(batch)
                end = file.tell()
                size = end + _TRAILER.size
                file.flush()
                with mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ) as written:
                    content = _checksum_of(written, end)
                file.write(self._trailer(target.name, size, content))
                # More may have been reserved than was written: the trailer must be the end.
                file.truncate()
                file.flush()
                if not self._boot:
                    os.fsync(file.fileno())
                self._publish(temporary, target, size)
            except BaseException:
                _remove(temporary)
                raise

    def _publish(self, temporary: Path, target: Path, size: int) -> None:
        """Make room, count the bytes, then rename the entry: in this order, under the lock."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        lock = os.open(self.root / "lock", flags, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            raw = os.pread(lock, _USAGE.size, 0)
            used = int(_USAGE.unpack(raw)[0]) if len(raw) == _USAGE.size else None
            if used is None or used + size > self.limit_bytes:
                used = self._evict(target_bytes=int(self.limit_bytes * _EVICT_TO) - size)
            if used + size > self.limit_bytes or os.access(target, os.F_OK):
                _remove(temporary)
                os.pwrite(lock, _USAGE.pack(used), 0)
                return
            os.pwrite(lock, _USAGE.pack(used + size), 0)
            temporary.rename(target)
        finally:
            os.close(lock)
        self._count(written_bytes=size)

    def _evict(self, target_bytes: int) -> int:
        """Remove the least recently used entries down to `target_bytes`; return the bytes left."""
        entries = []
        with os.scandir(self.root) as found:
            for item in found:
                if item.name.endswith(_TEMPORARY_SUFFIX):
                    remove_leftover(Path(item.path))
                elif item.name.endswith(_ENTRY_SUFFIX):
                    try:
                        status = item.stat()
                    except FileNotFoundError:
                        continue
                    entries.append((status.st_mtime_ns, item.path, status.st_size))
        used = sum(size for _, _, size in entries)
        for _, path, size in sorted(entries):
            if used <= target_bytes:
                break
            if _remove(Path(path)):
                used -= size
                self._count(evicted_entries=1)
        return used

    def _count(self, **amounts: int) -> None:
        with self._guard:
            for name, amount in amounts.items():
                self._counts[name] += amount


def find_folder_problem(folder: Path) -> str | None:
    """Make a folder that only this user can write to; return why it is not one, or None.

    For folders in places where others may write too, such as the temporary folder.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        return error.strerror or type(error).__name__
    if not stat.S_ISDIR(found.st_mode):
        return "it is a link or a file, which perhaps belongs to somebody else"
    if found.st_uid != os.getuid():
        return "it belongs to somebody else"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write to it"
    return None


def _checksum_of(mapping: mmap.mmap, end: int) -> int:
    # A view that outlives this call would keep the mapping from being closed.
    with memoryview(mapping) as whole, whole[:end] as content:
        return checksum_of(content)


def _read_boot(path: Path) -> int:
    """Return a number for this boot of the machine, or 0 if the system has no boot id."""
    try:
        return checksum_of(path.read_bytes()) or 1
    except OSError:
        return 0


def _reserve(descriptor: int, size: int) -> None:
    """Reserve the disk space at once: writing into it costs a third less than growing a file.

    Only a full disk is an error, because not every system can reserve space.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise


def _touch(descriptor: int) -> None:
    """Mark an entry as just used; a disk that cannot be written has no eviction order to keep."""
    try:
        os.utime(descriptor)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EPERM, errno.EACCES):
            raise


def _remove(path: Path) -> bool:
    """Remove a file; return False if it cannot be removed. A missing file is fine."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _LOGGER.debug("cannot remove %s from the state cache: %s", path, error)
        return False
    return True


K = TypeVar("K")
V = TypeVar("V")

_SECONDS = 10.0


class Recent(Generic[K, V]):
    """Values used in the current or the last turn; using a value moves it to the current turn.

    A turn ends after some seconds or when it holds `limit` values. Threads may share it
    without a lock: a race can only lose a value.
    """

    def __init__(
        self,
        limit: int,
        *,
        seconds: float = _SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._seconds = seconds
        self._now = now
        self._current: dict[K, V] = {}
        self._last: dict[K, V] = {}
        self._ends = now() + seconds

    def __len__(self) -> int:
        return len(self._current.keys() | self._last.keys())

    def get(self, key: K) -> V | None:
        """Return a value and mark it as used."""
        value = self._current.get(key)
        if value is None:
            value = self._last.get(key)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: K, value: V) -> V:
        """Keep a value."""
        now = self._now()
        if now >= self._ends or len(self._current) >= self._limit:
            self._last = self._current
            self._current = {}
            self._ends = now + self._seconds
        self._current[key] = value
        return value
