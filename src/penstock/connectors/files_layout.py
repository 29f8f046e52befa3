"""The names of everything a files sink writes below its folder. Pure.

    {out}/_staging/{job}/{generation}/{epoch}/{token}-{operator}-{subtask}-{seq}.{extension}
    {out}/{column}={value}/…/part-{epoch}-{operator}-{subtask}-{seq}.{extension}
    {out}/_committed/{epoch}-{operator}.json

Names that begin with `_` are passed over by Spark and others who read a whole folder. A
staged name holds the token of the attempt that wrote it, so no two attempts share one. Final
names hold an epoch, and epochs are never reused.

Folders of partitions are named as Hive and Spark name them: see `partition_folder`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.ids import Epoch, Generation, JobId, OperatorId, TaskInfo, Token
from penstock.state.storage.object_path import is_object_path

STAGING = "_staging"
COMMITTED = "_committed"
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
LONGEST_SEGMENT = 255
"""How many bytes a folder's name may have on a disk; kept everywhere, so output can be moved."""

Partition: TypeAlias = tuple[str | None, ...]
"""The values of the partition columns as text; empty for output without partitions."""

_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_STAGED = re.compile(
    rf"{STAGING}/[^/]+/\d+/(?P<epoch>\d+)/[0-9a-f]{{32}}-(?P<operator>.+)-\d+-\d+\.\w+"
)
_RECORD = re.compile(rf"{COMMITTED}/(?P<epoch>\d{{10}})-(?P<operator>[^/]+)\.json")


@dataclass(frozen=True, slots=True)
class PartNames:
    """Names the files of one attempt of one subtask at one epoch."""

    task: TaskInfo
    generation: Generation
    epoch: Epoch
    token: Token
    extension: str

    def staged(self, seq: int) -> str:
        """Return where the attempt puts its file of this number."""
        folder = f"{staging_folder(self.task.job)}/{self.generation}/{self.epoch:010}"
        return f"{folder}/{self.token}-{self._who(seq)}"

    def final(self, seq: int, folder: str) -> str:
        """Return what the file is called once it is committed."""
        name = f"part-{self.epoch:010}-{self._who(seq)}"
        return f"{folder}/{name}" if folder else name

    def _who(self, seq: int) -> str:
        subtask = self.task.subtask.index
        return f"{self.task.operator}-{subtask:03}-{seq:03}.{self.extension}"


def staging_folder(job: JobId) -> str:
    """Return the folder that holds what a job has staged."""
    return f"{STAGING}/{job}"


def read_staged_name(path: str) -> tuple[int, str] | None:
    """Return the epoch and the operator a staged file belongs to; None for other objects."""
    match = _STAGED.fullmatch(path)
    return None if match is None else (int(match["epoch"]), match["operator"])


def record_path(epoch: Epoch, operator: OperatorId) -> str:
    """Return the name of the list of an epoch's files."""
    return f"{COMMITTED}/{epoch:010}-{operator}.json"


def read_record_name(path: str) -> tuple[int, str] | None:
    """Return the epoch and the operator of a list; None for other objects."""
    match = _RECORD.fullmatch(path)
    return None if match is None else (int(match["epoch"]), match["operator"])


def partition_folder(columns: Sequence[str], partition: Partition) -> str:
    """Return the folder of a partition, without a `/` at its end.

    Null and the empty text share one folder, as they do in Hive.

    >>> partition_folder(["day", "shop"], ("2026-01-01", "a/b"))
    'day=2026-01-01/shop=a%2Fb'
    >>> partition_folder(["day"], (None,))
    'day=__HIVE_DEFAULT_PARTITION__'
    """
    return "/".join(
        f"{_escape(column)}={_escape(value) if value else NULL_PARTITION}"
        for column, value in zip(columns, partition, strict=True)
    )


def find_name_problem(
    columns: Sequence[str], partition: Partition, path: str
) -> str | None:
    """Say why a file of this partition could not be called `path` in every store, or None."""
    for column, value in zip(columns, partition, strict=True):
        size_bytes = len(partition_folder([column], (value,)).encode())
        if size_bytes > LONGEST_SEGMENT:
            return (
                f"the value {_shorten(value)} of column {column!r} makes a folder name of "
                f"{size_bytes} bytes, and {LONGEST_SEGMENT} is the most"
            )
    if is_object_path(path):
        return None
    values = ", ".join(
        f"{column!r} = {_shorten(value)}"
        for column, value in zip(columns, partition, strict=True)
    )
    return f"the values {values} make a path of {len(path.encode())} bytes, and 1024 is the most"


def _shorten(value: str | None) -> str:
    return repr(value if value is None or len(value) <= 40 else f"{value[:40]}…")


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
