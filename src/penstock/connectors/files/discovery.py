"""Finds the files that a path or glob names, on any store, and checks that they stay the same.

| pattern         | names                                                             |
|-----------------|-------------------------------------------------------------------|
| `a/b.csv`       | that file; if it is a folder, all files below it                  |
| `a/`            | all files below that folder                                       |
| `*`, `?`, `[…]` | any characters, one, one of a set (`[!…]`: none of it); never `/` |
| `**`            | any number of folders                                             |

Wildcards and sets do not match a leading `.` or `_`, neither of files nor of folders: such
names are for what is not, or not yet, data. A store is opened at the folder before the first
wildcard, and files are named by their path below it. A file that the pattern names, but whose
name is no object path, is refused: it would be left out otherwise.

The identity of a file is its path below the root. Below another root the same path is another
file, which would be skipped as already read; with another root or pattern the same file may
have another path, and would be read twice. So root and pattern are kept as the offset of a
split, and must not change, unless the user says that the files have moved.

The names of files that were read stay in the state as long as the files are there, and longer:
`GoneFiles` has the rule by which they are forgotten.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

from penstock.errors import ErrorCode, UserError
from penstock.operators.splits import SplitState
from penstock.state.storage.local_disk import LocalStore
from penstock.state.storage.object_store import ObjectInfo, ObjectStore, is_object_path
from penstock.state.storage.urls import absolute_url

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)(//[^/]*)?(.*)", re.DOTALL)
_WILD = re.compile(r"[*?[]")
_VISIBLE = r"(?![._])"
_FOLDERS = rf"(?:{_VISIBLE}[^/]+/)*"
_ANY_FILE = rf"{_FOLDERS}{_VISIBLE}[^/]+"
_SHOWN_NAMES = 3


@dataclass(frozen=True, slots=True)
class FilePattern:
    """A store and the pattern of the files in it. Plain data, made by `parse_pattern`."""

    root: str
    """The URL of the store."""
    pattern: str
    """Relative to the root."""

    def __str__(self) -> str:
        is_quoted = self.root.startswith("file:")
        pattern = self.pattern.replace("%", "%25") if is_quoted else self.pattern
        return f"{self.root.rstrip('/')}/{pattern}"

    def has_folder(self) -> bool:
        """Return whether the root folder exists; a store without it looks like an empty one."""
        scheme, _, path = self.root.partition("://")
        return scheme != "file" or Path(unquote(path)).is_dir()

    def list_files(self, store: ObjectStore) -> list[ObjectInfo]:
        """Return all files that the pattern names, in order of path."""
        folder, is_wild = self.pattern, _WILD.search(self.pattern) is not None
        if is_wild:
            segments = self.pattern.split("/")
            folder = "/".join(segments[: _static_count(segments)])
        else:
            self._refuse_names([self.pattern])
        matches = re.compile(to_regex(self.pattern)).fullmatch
        list_all = store.list_files if isinstance(store, LocalStore) else store.list
        found = [info for info in list_all(folder) if matches(info.path)]
        self._refuse_names(info.path for info in found)
        if not is_wild:
            size_bytes = store.size(self.pattern)
            if size_bytes is not None:
                found.append(ObjectInfo(self.pattern, size_bytes))
        return sorted(found, key=lambda info: info.path)

    def _refuse_names(self, paths: Iterable[str]) -> None:
        """Raise if a file has a name that is no object path, and so cannot be read."""
        refused = [path for path in paths if not is_object_path(path)]
        if not refused:
            return
        shown = ", ".join(map(repr, refused[:_SHOWN_NAMES]))
        more = len(refused) - _SHOWN_NAMES
        if more > 0:
            shown += f" and {more} more"
        raise UserError(
            f"{self} names files that cannot be read because of their names: {shown}. Rename "
            "them: names are UTF-8 without '#', '\\' and control characters, paths at most "
            "1024 bytes long. Or begin the names with '_', to have the files passed over",
            code=ErrorCode.INVALID_NAME,
            path=repr(refused[0]),
        )


def parse_pattern(path: str) -> FilePattern:
    """Split a path or URL into the store to open and the pattern of names in it.

    A relative path is made absolute, because a worker may have another working folder.

    >>> parse_pattern("s3://lake/bids/2026-*/part-?.parquet")
    FilePattern(root='s3://lake/bids', pattern='2026-*/part-?.parquet')
    """
    match = _URL.fullmatch(path)
    scheme, authority, rest = match.groups() if match else ("", None, path)
    segments = rest.split("/")
    if not rest.strip("/") and not authority:
        raise UserError(
            f"{path!r} names no files: give a path or a glob, such as 'bids/*.parquet'",
            code=ErrorCode.INVALID_URL,
        )
    if segments[-1] == "":
        segments[-1] = "**"
    if scheme.lower() == "memory:":
        # The first segment is the name of a store in memory.
        name = authority or segments[0]
        return FilePattern(f"memory:{name.removeprefix('//')}", "/".join(segments[1:]))
    count = _static_count(segments)
    root = "/".join(segments[:count])
    if not root:
        root = "/" if count else ("" if authority else ".")
    pattern = "/".join(segments[count:])
    if scheme.lower() == "file:":
        pattern = unquote(pattern)
    url = absolute_url(f"{scheme}{authority or ''}{root}")
    return FilePattern(url.rstrip("/"), pattern)


def to_regex(pattern: str) -> str:
    """Return the regular expression that a path must match as a whole."""
    if _WILD.search(pattern) is None:
        return rf"{re.escape(pattern)}(?:/{_ANY_FILE})?"
    *folders, last = pattern.split("/")
    parts = [
        _FOLDERS if segment == "**" else f"{_segment_regex(segment)}/"
        for segment in folders
    ]
    return "".join(parts) + (_ANY_FILE if last == "**" else _segment_regex(last))


def _segment_regex(segment: str) -> str:
    found = _VISIBLE if segment[:1] in ("*", "?", "[") else ""
    index = 0
    while index < len(segment):
        character = segment[index]
        end = segment.find("]", index + 2) if character == "[" else -1
        if end > 0:
            members = segment[index + 1 : end]
            negation = "^" if members[:1] == "!" else ""
            escaped = re.sub(r"([\\\[\]^&~|])", r"\\\1", members[len(negation) :])
            found += f"[{negation}{escaped}]"
            index = end
        else:
            found += {"*": "[^/]*", "?": "[^/]"}.get(character) or re.escape(character)
        index += 1
    return found


def _static_count(segments: list[str]) -> int:
    """Return how many leading segments are folders without wildcards."""
    for index, segment in enumerate(segments[:-1]):
        if _WILD.search(segment):
            return index
    return len(segments) - 1


LISTING = "#listing"
"""The split whose offset is the pattern and the list of files; no object path holds a `#`."""
ORIGIN = "#origin"
"""The split whose offset is the root and the pattern. Older checkpoints do not have it."""


def find_moved_root(files: FilePattern, moved_from: str) -> str:
    """Return the root that files had before they moved; below it their paths were the same."""
    before = parse_pattern(moved_from)
    if before.pattern != files.pattern:
        raise UserError(
            f"files that have moved keep their paths below the folder: {str(files)!r} names "
            f"{files.pattern!r} below it, and moved_from names {before.pattern!r}. Pass the "
            "path that named them before, with another folder and otherwise as it is now",
            code=ErrorCode.INVALID_CONFIG,
        )
    return before.root


def check_origin(
    known: Mapping[str, SplitState], files: FilePattern, moved_root: str | None
) -> None:
    """Refuse to go on with other files than those that the job began with."""
    # Older checkpoints do not have the origin: it is taken to be unchanged.
    before = files
    if ORIGIN in known:
        before = FilePattern(*known[ORIGIN].offset)
    elif LISTING in known:
        before = FilePattern(files.root, known[LISTING].offset[0])
    if before == files:
        return
    # A folder that was replaced by a link to its new place is still the same.
    root = absolute_url(before.root)
    if before.pattern == files.pattern and root in (files.root, moved_root):
        return
    advice = "Name the same files as before, or start the job anew"
    if before.pattern == files.pattern:
        advice += f". If they are the same and have moved, pass moved_from={str(before)!r}"
    raise UserError(
        f"the job has begun to read the files {before} and now names {files}. Files are known "
        "by their paths below the folder: others of the same path would not be read, or those "
        f"that were read would be read again. {advice}",
        code=ErrorCode.INVALID_CONFIG,
        path=str(files),
    )


DEFAULT_REMEMBER_MICROS = 7 * 86_400_000_000
"""A week."""
_GONE_FOR_MICROS = 3_600_000_000
"""How long a file must be missed before its name is forgotten: an hour."""
_LOOK_MICROS = 600_000_000
"""How often all known names are looked through: every ten minutes."""
_MAX_ASKED = 100
"""How many files the store is asked for after a listing, besides as many as came with it."""
_MAX_FORGOTTEN = 10_000
"""How many names an epoch forgets."""


class GoneFiles:
    """Decides which names of read files are forgotten. The driver has one per source.

    A name that is forgotten is free: a file that comes under it is read. So no file must be
    forgotten that is still there, or may come back by itself:

    - A listing may lack files that are there. The store is asked for each file by name.
    - A folder whose disk is not mounted is empty. Listings without any file do not count.
    - A file may be moved away and back. It must have been read some days ago (`remember`), and
      missed by all listings of the last hour. This time begins anew with every driver.
    - The latest event time of the source is known by its split, which is kept.
    - A list of the first epoch names its files for good.

    There may be a million names, and a listing every second: a listing is only compared with
    the names that are missed, and which others it lacks is seen now and then.
    """

    def __init__(self, remember_micros: int) -> None:
        self._remember_micros = remember_micros
        self._looked_at_micros: int | None = None
        self._missed_since: dict[str, int] = {}
        self._ripe: list[str] = []
        """Missed files for which the store is still to be asked, the next one last."""
        self._gone: set[str] = set()
        """Those of the missed files that the store does not have either."""

    def note(
        self,
        known: Mapping[str, SplitState],
        listed: Collection[str],
        store: ObjectStore,
        now_micros: int,
    ) -> None:
        """Note which files a listing lacks, and ask the store for those that may be forgotten."""
        if not listed:
            return
        for name in listed:
            self._missed_since.pop(name, None)
        self._gone.difference_update(listed)
        last = self._looked_at_micros
        if last is None or not last <= now_micros < last + _LOOK_MICROS:
            self._look_through(known, frozenset(listed), now_micros)
        come = sum(name not in known for name in listed)
        for _ in range(min(len(self._ripe), _MAX_ASKED + come)):
            name = self._ripe.pop()
            if name not in self._missed_since:
                continue
            if store.size(name) is None:
                self._gone.add(name)
            else:
                self._missed_since[name] = now_micros

    def find_forgotten(self, known: Mapping[str, SplitState]) -> tuple[str, ...]:
        """Return the names that the next epoch forgets."""
        return tuple(islice(sorted(self._gone & known.keys()), _MAX_FORGOTTEN))

    def _look_through(
        self, known: Mapping[str, SplitState], listed: Set[str], now_micros: int
    ) -> None:
        self._looked_at_micros = now_micros
        since, kept = self._missed_since, _kept_names(known)
        self._missed_since = {
            name: since.get(name, now_micros)
            for name, state in known.items()
            if state.ended and name not in listed and name not in kept
        }
        self._gone.intersection_update(self._missed_since)
        ripe = (
            name
            for name in self._missed_since
            if name not in self._gone and self._is_ripe(name, known[name], now_micros)
        )
        self._ripe = sorted(ripe, reverse=True)

    def _is_ripe(self, name: str, state: SplitState, now_micros: int) -> bool:
        read_at = state.last_active_micros
        return (
            read_at is not None
            and now_micros - read_at >= self._remember_micros
            and now_micros - self._missed_since[name] >= _GONE_FOR_MICROS
        )


def _kept_names(known: Mapping[str, SplitState]) -> set[str]:
    """Return the splits that are never forgotten."""
    kept = {LISTING, ORIGIN}
    if LISTING in known:
        kept.update(path for path, _ in known[LISTING].offset[1])
    times = ((s.max_event_time_micros, n) for n, s in known.items())
    kept.add(max(((t, n) for t, n in times if t is not None), default=(0, ORIGIN))[1])
    return kept
