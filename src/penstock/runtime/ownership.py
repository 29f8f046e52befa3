"""Ownership: what a driver sees that was replaced, and how it finds out.

Most of the protocol says `Fenced` by itself. But a replaced driver may notice it first by
what is gone: its successor collects checkpoints that the sleeper was about to read. Missing
objects are damage only as long as nobody newer owns the job.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.core.ids import JobId
from penstock.errors import CorruptStateError, FencedError
from penstock.state.checkpoints.job_checkpoints import JobCheckpoints
from penstock.state.protocol.records import ClaimRecord
from penstock.state.protocol.status import Fenced


def fenced_error(job: JobId, fenced: Fenced) -> FencedError:
    """Return the error of a driver that was replaced."""
    return FencedError(
        f"generation {fenced.generation} of job {job!r} was replaced: a newer driver has "
        "claimed the job. This one stops for good and changes nothing more",
        job=str(job),
        generation=int(fenced.generation),
    )


def check_ownership(checkpoints: JobCheckpoints, claim: ClaimRecord) -> None:
    """Raise `FencedError` if a newer driver has claimed the job."""
    if checkpoints.is_fenced(claim):
        raise fenced_error(claim.job, Fenced(claim.generation))


@contextmanager
def damage_while_owned(checkpoints: JobCheckpoints, claim: ClaimRecord) -> Iterator[None]:
    """Let damage pass for damage only while nobody else owns the job."""
    try:
        yield
    except CorruptStateError as error:
        if checkpoints.is_fenced(claim):
            raise fenced_error(claim.job, Fenced(claim.generation)) from error
        raise
