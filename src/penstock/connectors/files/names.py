"""The names of everything a files sink writes below its folder. Pure.

    {out}/_staging/{job}/{generation}/{epoch}/{token}-{operator}-{subtask}-{seq}.{extension}
    {out}/_staging/{job}/{generation}/{epoch}/{token}-{operator}-{subtask}-{seq}.claim
    {out}/{column}={value}/…/part-{epoch}-{operator}-{subtask}-{seq}.{extension}
    {out}/_committed/{epoch}-{operator}.json

Spark and other engines that read a whole folder skip names that begin with `_`. A staged name
holds the token of the attempt that wrote it, so no two attempts share one. Final names hold an
epoch, and epochs are never reused.

Folders of partitions are named as Hive and Spark name them: see `partition_folder`. This
module also decides which columns may be partitions, and which rows go to which folder.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.arrow_types import is_held_by_polars
from penstock.core.ids import Epoch, Generation, JobId, OperatorId, TaskInfo, Token
from penstock.errors import ErrorCode, UserError, did_you_mean
from penstock.state.storage.object_store import is_object_path

STAGING = "_staging"
COMMITTED = "_committed"
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
LONGEST_SEGMENT = 255
"""The longest name of a folder on a disk. It holds on all stores, so that output can be moved."""

Partition: TypeAlias = tuple[str | None, ...]
"""The values of the partition columns as text; empty for output without partitions."""

_TOKEN_LENGTH = 32
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_STAGED = re.compile(
    rf"{STAGING}/[^/]+/\d+/(?P<epoch>\d+)/[0-9a-f]{{32}}-(?P<operator>.+)-\d+-\d+\.\w+"
)
_RECORD = re.compile(rf"{COMMITTED}/(?P<epoch>\d{{10}})-(?P<operator>[^/]+)\.json")
_PART = re.compile(r"part-(?P<epoch>\d{10})-")


@dataclass(frozen=True, slots=True)
class PartNames:
    """Names the files of one attempt of one subtask at one epoch."""

    task: TaskInfo
    generation: Generation
    epoch: Epoch
    token: Token
    extension: str

    def of_file(self, seq: int, folder: str) -> tuple[str, str]:
        """Return the staged and the final name of the attempt's file of this number."""
        epoch, subtask = f"{self.epoch:010}", self.task.subtask.index
        who = f"{self.task.operator}-{subtask:03}-{seq:03}.{self.extension}"
        staged = (
            f"{staging_folder(self.task.job)}/{self.generation}/{epoch}/{self.token}-{who}"
        )
        final = f"part-{epoch}-{who}"
        return staged, f"{folder}/{final}" if folder else final


def is_part_of(
    path: str,
    epoch: int,
    operator: str,
    extension: str,
    partition: Mapping[str, str | None],
) -> bool:
    """Tell whether a file of this epoch and sink has this final name, in its folder."""
    folder, _, name = path.rpartition("/")
    pattern = rf"part-{epoch:010}-{re.escape(operator)}-\d{{3,}}-\d{{3,}}\.{extension}"
    return (
        folder == partition_folder(list(partition), tuple(partition.values()))
        and re.fullmatch(pattern, name) is not None
        and is_object_path(path)
    )


def read_part_epoch(path: str) -> int | None:
    """Return the epoch that the name of a sink's file tells; None for other files.

    >>> read_part_epoch("day=mon/part-0000000007-out-000-000-5f.parquet")
    7
    >>> read_part_epoch("part-00000-5f-c000.snappy.parquet") is None
    True
    """
    match = _PART.match(path.rpartition("/")[2])
    return None if match is None else int(match["epoch"])


def staging_folder(job: JobId) -> str:
    """Return the folder that holds what a job has staged."""
    return f"{STAGING}/{job}"


def read_staged_name(path: str) -> tuple[int, str] | None:
    """Return the epoch and the operator a staged file belongs to; None for other objects."""
    match = _STAGED.fullmatch(path)
    return None if match is None else (int(match["epoch"]), match["operator"])


def merged_path(staged: str, token: Token) -> str:
    """Return the name under which an attempt stages a file merged of this one and others."""
    folder, _, name = staged.rpartition("/")
    return f"{folder}/{token}{name[_TOKEN_LENGTH:]}"


def claim_path(staged: str) -> str:
    """Return the name of the object that says which attempt's merged file counts."""
    return f"{staged.rpartition('.')[0]}.claim"


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
    """Return why a file of this partition cannot be named `path` in every store, or None."""
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


_ALLOWED = (
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_decimal,
)
_ROW = "row"


def find_partition_problems(columns: Sequence[str], schema: pa.Schema) -> list[str]:
    """Return everything that is wrong with partitioning rows of this schema by `columns`."""
    problems = []
    for column in columns:
        if column not in schema.names:
            hint = did_you_mean(column, set(schema.names))
            problems.append(f"partition_by names {column!r}, which is no column{hint}")
        elif not (
            any(is_allowed(schema.field(column).type) for is_allowed in _ALLOWED)
            and is_held_by_polars(schema.field(column).type)
        ):
            problems.append(
                f"partition_by names {column!r} of type {schema.field(column).type}: use "
                "text, whole numbers, booleans, dates, timestamps (of a zone by name, if any) "
                "or decimals of 38 digits"
            )
    if len(set(columns)) < len(columns):
        problems.append(f"partition_by names a column twice: {', '.join(columns)}")
    if schema.names and set(schema.names) <= set(columns):
        problems.append("partition_by names all columns: a file needs one at least")
    return problems


def split_rows(
    batch: pa.RecordBatch, columns: Sequence[str]
) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """Yield the rows of each partition, in their order, without the partition columns.

    Partitions come in the order of their first rows. The loop is over partitions, not rows.
    Raises `UserError` for a value that cannot be read back from the name of its folder.
    """
    if not columns:
        yield (), batch
        return
    rest = batch.drop_columns(list(columns))
    values = [batch.column(column) for column in columns]
    names = [str(index) for index in range(len(columns))]
    keys = pl.DataFrame(pa.Table.from_arrays(values, names)).with_row_index(_ROW)
    groups = keys.group_by(names, maintain_order=True).agg(_ROW)
    rows = groups[_ROW]
    firsts: Any = pa.array(rows.list.first().to_numpy(), pa.int64())
    texts = [
        _to_text(column, value.take(firsts))
        for column, value in zip(columns, values, strict=True)
    ]
    whole = len(rows) == 1
    for index, partition in enumerate(zip(*texts, strict=True)):
        yield partition, rest if whole else rest.take(pa.array(rows[index].to_numpy()))


def add_partition(
    table: pa.Table, columns: Sequence[str], partition: Partition, schema: pa.Schema
) -> pa.Table:
    """Return rows of one partition with the partition columns back, in their places and types."""
    for column, value in zip(columns, partition, strict=True):
        value_array = _from_text([value], schema.field(column).type)
        filled = value_array.take(np.zeros(table.num_rows, np.int64))
        table = table.append_column(column, filled)
    return table.select(schema.names)


def _to_text(column: str, values: Any) -> list[str | None]:
    """Return values as text that `_from_text` understands."""
    texts: list[str | None] = pc.cast(values, pa.string()).to_pylist()
    if not _is_readable(texts, values):
        odd = next(
            text
            for index, text in enumerate(texts)
            if not _is_readable([text], values[index : index + 1])
        )
        raise UserError(
            f"partition_by names {column!r}, which holds a value of type {values.type} that no "
            f"folder's name can tell: as text it is {odd!r}. Change it "
            "before the sink, or partition by another column",
            code=ErrorCode.VALUE_OUT_OF_RANGE,
            column=column,
        )
    return texts


def _is_readable(texts: list[str | None], values: Any) -> bool:
    try:
        return bool(_from_text(texts, values.type).equals(values))
    except pa.ArrowInvalid:
        return False


def _from_text(texts: list[str | None], kind: pa.DataType) -> Any:
    return pc.cast(pa.array(texts, pa.string()), kind)
