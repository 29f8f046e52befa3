import pytest

from penstock.core.ids import JobId
from penstock.state.protocol import paths
from tests.builders.protocol import JOB, OPERATOR, TABLE, a_ref, a_token

REF = a_ref(42, generation=3)
SLOT = "job/generations/3/checkpoints/0000000042"


def test_every_object_of_a_job_has_the_documented_name() -> None:
    token = a_token()
    file = paths.table_checkpoint_path(REF, OPERATOR, TABLE, 7, token)
    assert paths.claim_path(JOB, 3) == "job/generations/3/claim"
    assert paths.left_path(JOB, 3) == "job/generations/3/left"
    assert paths.checkpoint_folder(REF) == SLOT
    assert paths.manifest_path(REF) == f"{SLOT}/manifest.pb"
    assert paths.marker_path(REF) == f"{SLOT}/committed"
    assert paths.metadata_path(REF, OPERATOR, 7) == f"{SLOT}/operator-counter-7.metadata"
    assert file == f"{SLOT}/counter/counts-007-{token}.parquet"
    assert paths.epoch_record_path(JOB, 42) == "job/epochs/0000000042.record"
    assert paths.retention_path(JOB, 42) == "job/retention/0000000042.record"


def test_parts_and_compactions_of_one_attempt_have_names_of_their_own() -> None:
    token = a_token()
    names = {
        paths.table_checkpoint_path(
            REF, OPERATOR, TABLE, 0, token, compacted=compacted, part=part
        )
        for compacted in (False, True)
        for part in (0, 1)
    }
    assert len(names) == 4


def test_an_object_in_a_slot_is_recognised() -> None:
    slot = paths.slot_of(f"{SLOT}/counter/counts-000-x.parquet")
    assert slot is not None
    assert slot.ref == REF
    assert slot.rest == "counter/counts-000-x.parquet"


@pytest.mark.parametrize(
    "path",
    [
        "job/generations/3/claim",
        "job/generations/3/left",
        "job/epochs/0000000042.record",
        "job/generations/3/checkpoints/42/manifest.pb",
        "job/generations/03/checkpoints/0000000042/manifest.pb",
        "job/generations/0/checkpoints/0000000042/manifest.pb",
        "job/generations/3/checkpoints/0000000000/manifest.pb",
        "job/generations/\u0663/checkpoints/0000000042/manifest.pb",
        "-job/generations/3/checkpoints/0000000042/manifest.pb",
        "deep/job/generations/3/checkpoints/0000000042/manifest.pb",
        "job/generations/3/checkpoints/0000000042",
        "notes.txt",
    ],
)
def test_what_is_not_exactly_in_a_slot_is_not_ours_to_delete(path: str) -> None:
    assert paths.slot_of(path) is None


def test_numbers_are_read_back_from_records() -> None:
    assert paths.number_of(paths.epoch_record_path(JOB, 42)) == 42
    assert paths.number_of(paths.retention_path(JOB, 7)) == 7
    assert paths.number_of("job/epochs/42.record") is None
    assert paths.number_of("job/other/0000000042.record") is None


def test_folders_contain_what_they_are_listed_for() -> None:
    job = JobId("job")
    assert SLOT.startswith(paths.generations_folder(job) + "/")
    assert paths.epoch_record_path(job, 1).startswith(paths.epochs_folder(job) + "/")
    assert paths.retention_path(job, 1).startswith(paths.retention_folder(job) + "/")
