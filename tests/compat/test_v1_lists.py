"""Lists of committed files of version 1, which have no checksum, are read for ever, and checked."""

import json
import shutil
from pathlib import Path

import pytest

import penstock as pen
from penstock.connectors.files.committed import decode_list
from penstock.errors import CorruptStateError
from tests.compat.write_pipeline_v1_checkpoint import FOLDER

LISTS = sorted(FOLDER.glob("outputs/*/_committed/*.json"))


def test_every_list_of_version_1_passes_all_checks_and_counts_its_rows() -> None:
    assert len(LISTS) > 10
    for path in LISTS:
        data = path.read_bytes()
        members = json.loads(data)
        assert members["version"] == 1
        assert "checksum" not in members
        record = decode_list(data, f"_committed/{path.name}", "file:///out")
        assert (record.epoch, record.rows) == (members["epoch"], members["rows"])
    for out in {path.parents[1] for path in LISTS}:
        listed = sum(json.loads(path.read_bytes())["rows"] for path in out.rglob("*.json"))
        assert pen.read_committed(out).num_rows == listed


def test_a_list_of_version_1_that_was_copied_or_edited_is_refused(tmp_path: Path) -> None:
    source = LISTS[0].parents[1]
    for number, (name, old, new) in enumerate(
        [
            ("0000000099", b"", b""),
            ("0000000001", b'"rows": 1', b'"rows": 9'),
            ("0000000001", b'"epoch": 1', b'"epoch": 2'),
        ]
    ):
        out = Path(shutil.copytree(source, tmp_path / str(number)))
        first = out / "_committed" / LISTS[0].name
        target = first.with_name(f"{name}{first.name[10:]}")
        target.write_bytes(first.read_bytes().replace(old, new))
        with pytest.raises(CorruptStateError, match=name):
            pen.read_committed(out)
