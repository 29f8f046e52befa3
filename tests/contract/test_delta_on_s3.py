"""Delta tables on a real S3 server: options are shared with stores, and commits do not overwrite."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import penstock as pen
from penstock.connectors.delta.actions import AddedFile
from penstock.connectors.delta.marks import Mark
from penstock.connectors.delta.table import CommitOutcome, DeltaTables
from penstock.core.clock import new_token
from penstock.errors import PenstockError, UserError
from scripts.servers.fault_proxy import FaultPlan, FaultProxy
from scripts.servers.s3 import BUCKET, S3Server
from tests.builders.lives import a_job_of
from tests.builders.profile import by_profile

WRITERS = 4
COMMITS = by_profile(default=3, ci=5, nightly=50)
EPOCHS = by_profile(default=6, ci=10, nightly=200)


def a_place(server: S3Server) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Return a new folder of the bucket, our options, and the client's for reading back."""
    options = server.options()
    client = {
        "endpoint": options["endpoint"],
        "region": options["region"],
        "access_key_id": options["access_key_id"],
        "secret_access_key": options["secret_access_key"],
        "allow_http": "true",
        "virtual_hosted_style_request": "false",
        "conditional_put": "etag",
    }
    return f"s3://{BUCKET}/delta-{new_token()}", options, client


def test_rows_go_to_a_table_on_s3_and_come_back(
    s3_server: S3Server, tmp_path: Path
) -> None:
    url, options, client = a_place(s3_server)
    rows = [{"n": n, "day": f"d{n % 2}"} for n in range(20)]
    pipeline = pen.Pipeline("to-s3")
    sink = pen.delta(url, partition_by="day", store_options=options)
    pipeline.read("rows", pen.list_source(rows, splits=2)).write("out", sink)
    pipeline.run_in_process(str(tmp_path / "checkpoints"))
    table = DeltaTable(url, storage_options=client)
    assert table.to_pyarrow_table().sort_by("n").to_pylist() == rows
    back, out = pen.Pipeline("from-s3"), pen.list_sink(f"s3-{new_token()}")
    back.read("rows", pen.delta(url, store_options=options)).write("out", out)
    back.run_in_process(str(tmp_path / "checkpoints"))
    assert sorted(out.rows(), key=lambda row: row["n"]) == rows


def test_a_changelog_is_merged_on_s3(s3_server: S3Server, tmp_path: Path) -> None:
    url, options, client = a_place(s3_server)
    pipeline = pen.Pipeline("counts")
    words = pipeline.read("words", pen.list_source([{"word": w} for w in "abca"]))
    counts = words.key_by("word").aggregate("count", n=pen.count())
    counts.write("out", pen.delta(url, store_options=options))
    pipeline.run_in_process(str(tmp_path / "checkpoints"))
    found = DeltaTable(url, storage_options=client).to_pyarrow_table().to_pylist()
    assert {row["word"]: row["n"] for row in found} == {"a": 2, "b": 1, "c": 1}


def test_commits_of_several_writers_at_once_all_count_and_those_of_one_app_once(
    s3_server: S3Server,
) -> None:
    url, options, client = a_place(s3_server)
    write_deltalake(url, pa.table({"n": [0]}), storage_options=client)

    def commit(app: str, epoch: int, number: int) -> CommitOutcome | None:
        table = DeltaTables(url, options).open()
        assert table is not None
        if (table.recorded_epoch(app) or 0) >= epoch:
            return None
        # The file is not read in this test, so it need not be there.
        file = AddedFile(f"{app}-{epoch}-{number}.parquet", 1)
        return table.commit([file], (), [Mark(app, epoch)])

    def write(number: int) -> None:
        for epoch in range(1, COMMITS + 1):
            for app in (f"own-{number}", "shared"):
                while commit(app, epoch, number) is CommitOutcome.CONFLICT:
                    pass

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    files = DeltaTable(url, storage_options=client).file_uris()
    names = [path.rpartition("/")[2] for path in files]
    own = [name for name in names if name.startswith("own-")]
    shared = [name.rsplit("-", 1)[0] for name in names if name.startswith("shared-")]
    assert len(own) == len(set(own)) == WRITERS * COMMITS
    assert sorted(shared) == sorted(f"shared-{epoch}" for epoch in range(1, COMMITS + 1))


def test_a_wrong_key_and_a_wrong_bucket_are_named(s3_server: S3Server) -> None:
    url, options, _ = a_place(s3_server)
    with pytest.raises(UserError, match="check its credentials"):
        pen.delta(url, store_options={**options, "access_key_id": "wrong"}).source_spec()
    nowhere = url.replace(BUCKET, "no-such-bucket-here", 1)
    with pytest.raises(PenstockError):
        pen.delta(nowhere, store_options=options).source_spec()


@pytest.mark.slow
def test_tables_behind_a_line_that_breaks_have_every_row_once(s3_server: S3Server) -> None:
    url, _, client = a_place(s3_server)
    rows = [{"n": n, "key": n % 3} for n in range(4 * EPOCHS)]
    plan = FaultPlan(seed=7, rate=0.03, latency_seconds=0.0)
    with FaultProxy(s3_server.port, plan) as line:
        options = s3_server.options(line.endpoint)
        pipeline = pen.Pipeline("breaking", parallelism=2)
        read = pipeline.read("rows", pen.list_source(rows))
        read.write("rows-out", pen.delta(f"{url}/rows", store_options=options))
        counted = read.key_by("key").aggregate("count", n=pen.count())
        counted.write("counts-out", pen.delta(f"{url}/counts", store_options=options))
        status = a_job_of(pipeline, 4).run()
        assert status.phase is pen.JobPhase.FINISHED
        assert line.traffic.faults
    numbers = DeltaTable(f"{url}/rows", storage_options=client).to_pyarrow_table()
    assert sorted(row["n"] for row in numbers.to_pylist()) == list(range(len(rows)))
    counts = DeltaTable(f"{url}/counts", storage_options=client).to_pyarrow_table()
    found = {row["key"]: row["n"] for row in counts.to_pylist()}
    assert found == {key: len(range(key, len(rows), 3)) for key in range(3)}
