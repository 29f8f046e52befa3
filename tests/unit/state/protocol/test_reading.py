import pytest

from penstock.core.ids import Epoch
from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.protocol import codec, paths
from penstock.state.protocol.reading import (
    find_newest_claim,
    is_fenced,
    read_claim,
    read_epoch_record,
    read_identity,
    read_manifest,
    read_newest_record,
    read_status,
    unless_fenced,
)
from penstock.state.protocol.records import Committing, Fenced, Ready, Unacknowledged
from penstock.state.protocol.steps import Steps
from penstock.state.storage.create import run_steps
from penstock.state.storage.memory import MemoryStore
from tests.builders.protocol import (
    JOB,
    OTHER_JOB,
    Sleeper,
    a_claim,
    a_manifest,
    a_marker,
    a_record,
    a_ref,
    an_actor,
)


def claims(count: int) -> MemoryStore:
    return MemoryStore(
        {
            paths.claim_path(JOB, number): codec.encode(a_claim(number))
            for number in range(1, count + 1)
        }
    )


def records(count: int) -> MemoryStore:
    return MemoryStore(
        {
            paths.epoch_record_path(JOB, number): codec.encode(a_record(number))
            for number in range(1, count + 1)
        }
    )


def test_what_is_not_there_is_none() -> None:
    store = MemoryStore()
    assert run_steps(store, read_claim(JOB, 1)) is None
    assert run_steps(store, read_identity(JOB)) is None
    assert run_steps(store, find_newest_claim(JOB)) is None
    assert run_steps(store, read_epoch_record(JOB, 1)) is None
    assert run_steps(store, read_manifest(a_ref(1))) is None
    assert run_steps(store, read_newest_record(an_actor(), first=Epoch(1))) is None


def test_a_driver_is_fenced_by_the_next_claim_and_not_by_its_own() -> None:
    store = claims(3)
    assert run_steps(store, find_newest_claim(JOB)) == 3
    assert run_steps(store, is_fenced(a_claim(2)))
    assert not run_steps(store, is_fenced(a_claim(3)))


@pytest.mark.parametrize("wrong", [a_claim(2), a_claim(1, job=OTHER_JOB)])
def test_a_claim_in_anothers_place_is_refused(wrong: object) -> None:
    assert isinstance(wrong, type(a_claim()))
    path = paths.claim_path(JOB, 1)
    store = MemoryStore({path: codec.encode(wrong)})
    with pytest.raises(CorruptStateError, match=f"{path}.*holds the claim of") as caught:
        run_steps(store, read_claim(JOB, 1))
    assert caught.value.code is ErrorCode.FOREIGN_OBJECT


@pytest.mark.parametrize("wrong", [a_record(2), a_record(1, job=OTHER_JOB)])
def test_an_epoch_record_in_anothers_place_is_refused(wrong: object) -> None:
    assert isinstance(wrong, type(a_record()))
    path = paths.epoch_record_path(JOB, 1)
    store = MemoryStore({path: codec.encode(wrong)})
    with pytest.raises(CorruptStateError, match=f"{path}.*holds the record of"):
        run_steps(store, read_epoch_record(JOB, 1))


def test_a_manifest_in_anothers_place_is_refused() -> None:
    path = paths.manifest_path(a_ref(1))
    store = MemoryStore({path: codec.encode(a_manifest(2))})
    with pytest.raises(CorruptStateError, match=f"{path}.*holds the manifest of"):
        run_steps(store, read_manifest(a_ref(1)))


def test_any_readable_claim_tells_what_all_say_alike() -> None:
    store = claims(3)
    store.put(paths.claim_path(JOB, 1), b"garbage")
    assert run_steps(store, read_identity(JOB)) == a_claim(3)


def test_a_job_whose_only_claim_is_damaged_has_no_identity() -> None:
    store = claims(1)
    store.put(paths.claim_path(JOB, 1), b"garbage")
    with pytest.raises(CorruptStateError):
        run_steps(store, read_identity(JOB))


def test_the_newest_record_is_read() -> None:
    found = run_steps(records(11), read_newest_record(an_actor(), first=Epoch(1)))
    assert found == a_record(11)


def test_a_newest_record_thinned_out_before_it_was_read_is_searched_again() -> None:
    store = records(6)
    search = Sleeper(store, read_newest_record(an_actor(), first=Epoch(1)))
    path = paths.epoch_record_path(JOB, 6)
    search.sleep_before(lambda request: type(request).__name__ == "Read")
    for number in range(7, 11):
        store.create(
            paths.epoch_record_path(JOB, number),
            codec.encode(a_record(number)),
        )
    store.delete(path)
    assert search.wake() == a_record(10)


def test_a_status_is_read_from_manifest_record_and_marker() -> None:
    ref = a_ref(1)
    manifest, record = a_manifest(1, needs_commit=True), a_record(1)
    store = MemoryStore({paths.manifest_path(ref): codec.encode(manifest)})
    assert run_steps(store, read_status(ref, None)) == Unacknowledged()
    assert run_steps(store, read_status(ref, record)) == Committing(manifest, record)
    store.create(paths.marker_path(ref), codec.encode(a_marker(1)))
    assert run_steps(store, read_status(ref, record)) == Ready(manifest)


def test_a_marker_in_anothers_place_is_refused() -> None:
    ref = a_ref(1)
    store = MemoryStore(
        {
            paths.manifest_path(ref): codec.encode(a_manifest(1, needs_commit=True)),
            paths.marker_path(ref): codec.encode(a_marker(2)),
        }
    )
    with pytest.raises(CorruptStateError, match="holds the committed marker of"):
        run_steps(store, read_status(ref, a_record(1)))


def test_no_marker_is_looked_for_where_nothing_commits() -> None:
    ref = a_ref(1)
    manifest = a_manifest(1)
    store = MemoryStore({paths.manifest_path(ref): codec.encode(manifest)})
    store.put(paths.marker_path(ref), b"garbage")
    assert run_steps(store, read_status(ref, a_record(1))) == Ready(manifest)


def failing() -> Steps[int]:
    yield from read_claim(JOB, 9)
    raise CorruptStateError("something is missing")


def test_what_a_replaced_driver_misses_is_no_corruption() -> None:
    claim = a_claim(1)
    assert run_steps(claims(2), unless_fenced(claim, failing())) == Fenced(claim.generation)
    with pytest.raises(CorruptStateError):
        run_steps(claims(1), unless_fenced(claim, failing()))
