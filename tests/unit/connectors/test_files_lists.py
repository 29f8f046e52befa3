"""The lists of committed files are believed only as they were written, under their own names."""

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.connectors.files.committed import (
    VERSION,
    committed_files,
    decode_list,
    encode_list,
    read_committed,
    schema_text,
)
from penstock.errors import CorruptStateError, ErrorCode, PenstockError, StateError
from penstock.state.storage.memory import MemoryStore
from penstock.testing import OperatorHarness
from tests.builders.files_job import as_list_of_version_1, paths_in, sink_on
from tests.builders.graphs import schema_of

FIRST, SECOND = "_committed/0000000001-operator.json", "_committed/0000000002-operator.json"
DAYS = schema_of(n=pa.int64(), day=pa.string())
Members = dict[str, Any]


def an_output() -> MemoryStore:
    """Return an output of two epochs of two files each."""
    store = MemoryStore()
    spec, registry = sink_on(lambda _url: store, partition_by=["day"], format="jsonl")
    with OperatorHarness(spec, DAYS, registry=registry) as sink:
        for start in (0, 10):
            sink.push([{"n": n, "day": f"d{n % 2}"} for n in range(start, start + 4)])
            sink.barrier()
            sink.commit()
    return store


def read_list(store: MemoryStore, path: str = SECOND) -> bytes:
    data = store.read(path)
    assert data is not None
    return data


def rows_in(store: MemoryStore) -> list[Members]:
    rows: list[Members] = read_committed(store).to_pylist()
    return rows


def test_a_list_is_json_that_ends_with_the_checksum_of_what_is_before_it() -> None:
    store = an_output()
    members = json.loads(read_list(store))
    assert members["version"] == 2
    assert list(members)[-1] == "checksum"
    assert [file.row_count for file in committed_files(store)] == [2, 2, 2, 2]
    assert len(rows_in(store)) == 8


def test_a_list_copied_under_the_name_of_another_epoch_is_refused() -> None:
    for name in ("_committed/0000000003-operator.json", "_committed/0000000002-other.json"):
        for form in (bytes, as_list_of_version_1):
            store = an_output()
            store.put(name, form(read_list(store)))
            with pytest.raises(CorruptStateError, match="under another name") as caught:
                read_committed(store)
            assert caught.value.code is ErrorCode.FOREIGN_OBJECT
            assert caught.value.context["path"] == name


def test_a_list_in_the_place_of_another_one_is_refused() -> None:
    store = an_output()
    store.put(SECOND, read_list(store, FIRST))
    with pytest.raises(CorruptStateError, match=r"epoch 1 .* under another name"):
        committed_files(store)


def test_every_byte_of_a_list_counts() -> None:
    data = read_list(an_output())
    draw = random.Random(17)
    for position in range(len(data)):
        for other in {draw.randrange(256), data[position] ^ 1, data[position] ^ 32, 0xFF}:
            if other != data[position]:
                mutated = data[:position] + bytes([other]) + data[position + 1 :]
                with pytest.raises(CorruptStateError):
                    decode_list(mutated, SECOND, "memory:")


@pytest.mark.parametrize("form", [bytes, as_list_of_version_1], ids=["new", "old"])
def test_a_list_that_is_cut_off_or_grown_is_refused(form: Callable[[bytes], bytes]) -> None:
    data = form(read_list(an_output()))
    whole = decode_list(data, SECOND, "memory:")
    for mutated in [
        *(data[:length] for length in range(len(data))),
        *(data[length:] for length in range(1, len(data))),
        data + b"x",
        data + data,
        bytes(len(data)),
        b"[" * 5_000,
    ]:
        with pytest.raises(CorruptStateError):
            decode_list(mutated, SECOND, "memory:")
    assert decode_list(data, SECOND, "memory:") == whole


def _set(**members: Any) -> Callable[[Members], None]:
    return lambda found: found.update(members)


def _set_file(**members: Any) -> Callable[[Members], None]:
    return lambda found: found["files"][0].update(members)


EDITS: dict[str, Callable[[Members], Any]] = {
    "a total of rows": _set(rows=5),
    "a total of bytes": _set(bytes=1),
    "the rows of a file": _set_file(rows=99),
    "the bytes of a file": _set_file(bytes=99),
    "rows below zero": lambda found: (
        found["files"][0].update(rows=-2),
        found["files"][1].update(rows=6),
    ),
    "rows of two files exchanged": lambda found: (
        found["files"][0].update(rows=3),
        found["files"][1].update(rows=1),
    ),
    "a checksum of a file": _set_file(checksum="0" * 16),
    "a checksum that is none": _set_file(checksum="yes"),
    "a file dropped": lambda found: found["files"].pop(),
    "a file twice": lambda found: found["files"].append(found["files"][0]),
    "files in each other's place": lambda found: (
        found["files"][0].update(path=found["files"][1]["path"]),
    ),
    "a path of another epoch": lambda found: found["files"][0].update(
        path=found["files"][0]["path"].replace("part-0000000002", "part-0000000001")
    ),
    "a path of another sink": lambda found: found["files"][0].update(
        path=found["files"][0]["path"].replace("operator", "other")
    ),
    "a path in another folder": lambda found: found["files"][0].update(
        path="day=d9/" + found["files"][0]["path"].partition("/")[2]
    ),
    "a path that leads out": lambda found: found["files"][0].update(
        path="../" + found["files"][0]["path"]
    ),
    "a path of another format": lambda found: found["files"][0].update(
        path=found["files"][0]["path"].replace("jsonl", "parquet")
    ),
    "another format": _set(format="parquet"),
    "an unknown format": _set(format="avro"),
    "a partition value": _set_file(partition=["d7"]),
    "a partition value too many": _set_file(partition=["d0", "d1"]),
    "no partition value": _set_file(partition=[]),
    "other partition columns": _set(partition_by=["n"]),
    "partition columns that do not exist": _set(partition_by=["nope"]),
    "another epoch": _set(epoch=1),
    "an epoch below zero": _set(epoch=-2),
    "another sink": _set(operator="other"),
    "a hash of the schema": _set(schema_hash="0" * 16),
    "a schema that is no base64": _set(schema="!"),
    "a schema that is cut off": lambda found: found.update(schema=found["schema"][:40]),
    "an empty schema": _set(schema=""),
    "another schema": _set(schema=schema_text(pa.schema([("n", pa.int64())]))),
    "abandoned epochs of the future": _set(abandoned=[[1, 9]]),
    "abandoned epochs backwards": _set(abandoned=[[2, 1]]),
    "abandoned epochs of another form": _set(abandoned=[[1]]),
    "a version of none": _set(version=0),
    "a version to come": _set(version=3),
    "a member of another type": _set(rows="8"),
    "a number too large": _set(rows=10**30),
    "a member dropped": lambda found: found.pop("files"),
    "null": _set(files=None),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
@pytest.mark.parametrize("form", [bytes, as_list_of_version_1], ids=["new", "old"])
def test_an_edited_list_is_refused_whether_it_has_a_checksum_or_not(
    form: Callable[[bytes], bytes], edit: Callable[[Members], Any]
) -> None:
    store = an_output()
    members = json.loads(form(read_list(store)))
    edit(members)
    store.put(SECOND, json.dumps(members, indent=1).encode())
    with pytest.raises(CorruptStateError) as caught:
        read_committed(store)
    assert "0000000002-operator" in str(caught.value.context["path"])


def test_a_list_without_its_checksum_is_refused() -> None:
    store = an_output()
    members = json.loads(read_list(store))
    del members["checksum"]
    store.put(SECOND, json.dumps(members, indent=1).encode())
    with pytest.raises(CorruptStateError, match="has lost its checksum"):
        read_committed(store)


def test_whatever_happens_to_a_list_without_a_checksum_no_other_rows_are_returned() -> None:
    store = an_output()
    data, rows = as_list_of_version_1(read_list(store)), rows_in(store)
    draw = random.Random(23)
    refused = 0
    for _ in range(3_000):
        mutated = bytearray(data)
        for _ in range(draw.choice([1, 1, 2, 8])):
            mutated[draw.randrange(len(data))] = draw.randrange(256)
        store.put(SECOND, bytes(mutated))
        try:
            found = rows_in(store)
        except CorruptStateError:
            refused += 1
        else:
            assert found == rows
    assert refused > 2_000


def test_a_damaged_list_stops_the_commit_of_its_epoch_and_stays_as_it_is() -> None:
    store = MemoryStore()
    spec, registry = sink_on(lambda _url: store)
    with OperatorHarness(spec, DAYS, registry=registry) as sink:
        sink.push([{"n": 1, "day": "d1"}])
        sink.barrier()
        sink.commit()
        damaged = read_list(store, FIRST).replace(b'"rows": 1', b'"rows": 2')
        store.put(FIRST, damaged)
        with pytest.raises(CorruptStateError, match="does not match its checksum"):
            sink.commit(1)
    assert read_list(store, FIRST) == damaged


def test_a_list_of_the_old_form_is_the_list_of_its_epoch_when_that_is_committed_again() -> (
    None
):
    store = MemoryStore()
    spec, registry = sink_on(lambda _url: store)
    with OperatorHarness(spec, DAYS, registry=registry) as sink:
        sink.push([{"n": 1, "day": "d1"}])
        sink.barrier()
        sink.commit()
        old = as_list_of_version_1(read_list(store, FIRST))
        store.put(FIRST, old)
        sink.commit(1)
    assert read_list(store, FIRST) == old
    assert rows_in(store) == [{"n": 1, "day": "d1"}]
    assert paths_in(store, "_staging") == []


def test_a_list_of_a_version_to_come_says_to_upgrade() -> None:
    store = an_output()
    found = decode_list(read_list(store), SECOND, "memory:")
    newer = msgspec.structs.replace(found, version=VERSION + 1)
    store.put(SECOND, encode_list(newer))
    with pytest.raises(StateError, match="upgrade Penstock") as caught:
        read_committed(store)
    assert isinstance(caught.value, PenstockError)
    assert caught.value.code is ErrorCode.NEWER_PROTOCOL
