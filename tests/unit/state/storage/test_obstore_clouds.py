"""Google and Azure through a scripted server: their own ways to say the same things."""

import json
from collections.abc import Callable, Iterator

import pytest

from penstock.errors import ErrorCode, StorageError, UnknownOutcomeError
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store
from tests.unit.state.storage.scripted_server import (
    Script,
    azure_batch,
    s3_error,
    scripted_server,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Script]:
    with scripted_server() as script:
        yield script


@pytest.fixture
def script(server: Script) -> Script:
    server.clear()
    return server


def google(script: Script) -> ObjectStore:
    account = {
        "gcs_base_url": script.endpoint,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    return open_store(
        "gs://bucket/some",
        service_account_key=json.dumps(account),
        allow_http=True,
        max_retries=0,
    )


def azure(script: Script) -> ObjectStore:
    return open_store(
        "az://container/some",
        account_name="account",
        account_key="Zm9yLXRlc3Rz",
        endpoint=script.endpoint,
        allow_http=True,
        max_retries=0,
    )


CLOUDS = pytest.mark.parametrize("cloud", [google, azure])


@CLOUDS
def test_create_is_conditional_and_tells_who_wrote(
    script: Script, cloud: Callable[[Script], ObjectStore]
) -> None:
    store = cloud(script)
    script.answers = [
        (201, ""),
        (412, ""),
        (409, s3_error("BlobAlreadyExists")),
        (200, "x"),
    ]
    assert store.create("a/b", b"x") is True
    assert store.create("a/b", b"x") is False
    assert store.create("a/b", b"x") is False
    assert [request.split()[0] for request in script.requests] == [
        "PUT",
        "PUT",
        "PUT",
        "HEAD",
    ]
    conditions = [
        name for name in script.headers[0] if name.startswith(("if-", "x-goog-if"))
    ]
    assert conditions in (["if-none-match"], ["x-goog-if-generation-match"])


@CLOUDS
def test_a_conflict_without_an_object_is_of_unknown_outcome(
    script: Script, cloud: Callable[[Script], ObjectStore]
) -> None:
    script.answers = [(409, s3_error("LeaseIdMissing")), (404, "")]
    with pytest.raises(UnknownOutcomeError, match="LeaseIdMissing"):
        cloud(script).create("a/b", b"x")


@CLOUDS
def test_refusals_and_doubts_are_told_apart(
    script: Script, cloud: Callable[[Script], ObjectStore]
) -> None:
    script.answers = [(403, ""), (500, ""), (503, "")]
    with pytest.raises(StorageError) as caught:
        cloud(script).put("a/b", b"x")
    assert caught.value.code is ErrorCode.STORAGE_PERMISSION
    with pytest.raises(UnknownOutcomeError):
        cloud(script).put("a/b", b"x")
    with pytest.raises(StorageError):
        cloud(script).read("a/b")


@CLOUDS
def test_absence_is_a_value(script: Script, cloud: Callable[[Script], ObjectStore]) -> None:
    script.answers = [(404, ""), (404, ""), (416, "")]
    assert cloud(script).read("a/b") is None
    assert cloud(script).size("a/b") is None
    assert cloud(script).read_range("a/b", 50, 1) == b""


@CLOUDS
def test_deleting_an_absent_object_is_fine(
    script: Script, cloud: Callable[[Script], ObjectStore]
) -> None:
    is_azure = cloud is azure
    script.answers = [(202, azure_batch("404 Not Found")) if is_azure else (404, "")]
    cloud(script).delete("a/b")
    assert len(script.requests) == 1


@CLOUDS
def test_a_failed_delete_may_have_happened(
    script: Script, cloud: Callable[[Script], ObjectStore]
) -> None:
    is_azure = cloud is azure
    script.answers = [(202, azure_batch("500 Oops")) if is_azure else (500, "")]
    with pytest.raises(UnknownOutcomeError, match="delete 'a/b'"):
        cloud(script).delete("a/b")
