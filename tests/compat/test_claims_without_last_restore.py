"""Claims that do not say what was last restored are read, and such a job is restored once more."""

from penstock.core.ids import Epoch, Generation, JobId, Token
from penstock.state.proto import state_pb2 as pb
from penstock.state.protocol import codec
from penstock.state.protocol.records import CheckpointRef, ClaimRecord

REF = CheckpointRef(JobId("job"), Generation(1), Epoch(2))
STORED = pb.ClaimRecord(
    job_id="job",
    generation=3,
    owner_token="0" * 32,
    created_at_micros=7,
    first_epoch=1,
    restore=pb.CheckpointRef(job_id="job", generation=1, epoch=2),
)


def test_a_claim_of_an_older_version_has_no_last_restore_but_its_own() -> None:
    claim = codec.decode(ClaimRecord, codec.seal(STORED), "job/generations/3/claim")
    assert claim.restored is None
    assert claim.last_restore == REF
    plain = pb.ClaimRecord()
    plain.CopyFrom(STORED)
    plain.ClearField("restore")
    old = codec.decode(ClaimRecord, codec.seal(plain), "job/generations/3/claim")
    assert old.last_restore is None


def test_a_claim_without_a_restore_before_it_has_the_bytes_it_always_had() -> None:
    claim = ClaimRecord(
        JobId("job"), Generation(3), Token("0" * 32), 7, Epoch(1), None, REF, None
    )
    assert codec.encode(claim) == codec.seal(STORED)
