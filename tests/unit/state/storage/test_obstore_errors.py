"""What a bucket's bad answers mean: nothing changed, or nobody knows."""

import os
import socket
from collections.abc import Callable, Iterator

import pytest

from penstock.errors import (
    ErrorCode,
    PenstockError,
    StorageError,
    UnknownOutcomeError,
    UserError,
)
from penstock.state.storage.obstore import ObstoreStore
from tests.unit.state.storage.scripted_server import (
    Answer,
    Script,
    s3_error,
    scripted_server,
)

WRITES: dict[str, Callable[[ObstoreStore], object]] = {
    "put": lambda store: store.put("a/b", b"x"),
    "create": lambda store: store.create("a/b", b"x"),
    "delete": lambda store: store.delete("a/b"),
}
READS: dict[str, Callable[[ObstoreStore], object]] = {
    "read": lambda store: store.read("a/b"),
    "read_range": lambda store: store.read_range("a/b", 0, 5),
    "size": lambda store: store.size("a/b"),
    "checksum": lambda store: store.checksum("a/b"),
    "list": lambda store: list(store.list("a/b")),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Script]:
    with scripted_server() as script:
        yield script


@pytest.fixture
def script(server: Script) -> Script:
    server.clear()
    return server


def a_store(script: Script, **options: object) -> ObstoreStore:
    return ObstoreStore("s3://bucket/some/prefix", script.options(**options))


def error_of(call: Callable[[], object]) -> PenstockError:
    with pytest.raises((StorageError, UnknownOutcomeError)) as caught:
        call()
    error = caught.value
    assert isinstance(error, StorageError | UnknownOutcomeError)
    assert error.__cause__ is not None
    assert "'a/b' in s3://bucket/some/prefix" in error.message
    assert "do-not-tell" not in error.message
    assert "AKIAEXAMPLE" not in error.message
    assert "127.0.0.1" not in error.message
    return error


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (
            (403, s3_error("AccessDenied")),
            ErrorCode.STORAGE_PERMISSION,
            "403 Forbidden (Acc",
        ),
        ((401, s3_error("Who")), ErrorCode.STORAGE_PERMISSION, "401 Unauthorized (Who)"),
        ((404, s3_error("NoSuchBucket")), ErrorCode.STORAGE_FAILED, "(NoSuchBucket)"),
        ((400, s3_error("EntityTooLarge")), ErrorCode.STORAGE_FAILED, "(EntityTooLarge)"),
        ((429, ""), ErrorCode.STORAGE_FAILED, "429 Too Many Requests"),
        ((301, ""), ErrorCode.STORAGE_FAILED, "region is probably wrong"),
    ],
)
def test_a_write_refused_at_once_changed_nothing(
    script: Script, write: str, answer: Answer, code: ErrorCode, words: str
) -> None:
    script.answers = [answer]
    error = error_of(lambda: WRITES[write](a_store(script)))
    assert isinstance(error, StorageError)
    assert error.code is code
    assert words in error.message
    assert "Nothing was changed" in error.message
    assert len(script.requests) == 1


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((500, s3_error("InternalError")), "500 Internal Server Error (InternalError)"),
        ((503, s3_error("SlowDown")), "503 Service Unavailable (SlowDown)"),
        ((507, ""), "507 Insufficient Storage"),
        ((408, ""), "408 Request Timeout"),
        ("reset", "the connection broke"),
        ("close", "the connection broke"),
    ],
)
def test_a_write_without_a_certain_answer_is_of_unknown_outcome(
    script: Script, write: str, answer: Answer, words: str
) -> None:
    script.answers = [answer]
    error = error_of(lambda: WRITES[write](a_store(script)))
    assert isinstance(error, UnknownOutcomeError)
    assert error.code is ErrorCode.UNKNOWN_OUTCOME
    assert words in error.message
    assert "read it back" in error.message


@pytest.mark.parametrize("write", WRITES)
def test_a_write_that_times_out_is_of_unknown_outcome(script: Script, write: str) -> None:
    script.answers = ["silence"]
    error = error_of(lambda: WRITES[write](a_store(script, timeout="50ms")))
    assert isinstance(error, UnknownOutcomeError)
    assert "did not answer in time" in error.message


@pytest.mark.parametrize("write", WRITES)
def test_after_a_retry_a_refusal_says_nothing_about_the_first_request(
    script: Script, write: str
) -> None:
    script.answers = [(500, ""), (403, s3_error("AccessDenied"))]
    error = error_of(lambda: WRITES[write](a_store(script, max_retries=3)))
    assert isinstance(error, UnknownOutcomeError)
    assert len(script.requests) == 2


@pytest.mark.parametrize("write", WRITES)
def test_a_write_that_found_no_server_changed_nothing(script: Script, write: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        error = error_of(lambda: WRITES[write](a_store(script, endpoint=endpoint)))
    assert isinstance(error, StorageError)
    assert "no connection to the store" in error.message


def test_an_http_address_without_allow_http_is_explained(script: Script) -> None:
    error = error_of(lambda: a_store(script, allow_http=False).put("a/b", b"x"))
    assert isinstance(error, StorageError)
    assert "allow_http is not set" in error.message
    assert script.requests == []


@pytest.mark.parametrize(
    "path",
    [
        "Error performing token request",
        "status code: 403 Forbidden",
        "Server returned non-2xx status code: 403 Forbidden",
        "redirect without LOCATION",
        "retries: 0,",
        "kind: Connect",
    ],
)
def test_no_name_of_an_object_can_make_an_uncertain_answer_look_certain(
    script: Script, path: str
) -> None:
    script.answers = [(500, ""), (500, "")]
    for write in (a_store(script).put, a_store(script).create):
        with pytest.raises(UnknownOutcomeError):
            write(path, b"x")


def test_412_means_that_the_object_exists(script: Script) -> None:
    script.answers = [(412, s3_error("PreconditionFailed"))]
    assert a_store(script).create("a/b", b"x") is False
    assert script.requests == ["PUT /bucket/some/prefix/a/b"]


def test_409_means_that_the_object_exists_only_if_it_can_be_seen(script: Script) -> None:
    script.answers = [(409, s3_error("ConditionalRequestConflict")), (200, "there")]
    assert a_store(script).create("a/b", b"x") is False
    assert script.requests[1] == "HEAD /bucket/some/prefix/a/b"


@pytest.mark.parametrize("look_up", [(404, ""), (500, ""), "reset"])
def test_409_for_an_object_nobody_sees_is_of_unknown_outcome(
    script: Script, look_up: Answer
) -> None:
    script.answers = [(409, s3_error("ConditionalRequestConflict")), look_up]
    error = error_of(lambda: a_store(script).create("a/b", b"x"))
    assert isinstance(error, UnknownOutcomeError)
    assert "409 Conflict (ConditionalRequestConflict)" in error.message


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((403, ""), ErrorCode.STORAGE_PERMISSION),
        ((401, ""), ErrorCode.STORAGE_PERMISSION),
        ((500, ""), ErrorCode.STORAGE_FAILED),
        ("reset", ErrorCode.STORAGE_FAILED),
        ("close", ErrorCode.STORAGE_FAILED),
    ],
)
def test_a_failed_read_changed_nothing(
    script: Script, read: str, answer: Answer, code: ErrorCode
) -> None:
    script.answers = [answer]
    error = error_of(lambda: READS[read](a_store(script)))
    assert isinstance(error, StorageError)
    assert error.code is code


@pytest.mark.parametrize("read", ["read", "read_range", "checksum"])
def test_a_missing_bucket_is_not_mistaken_for_a_missing_object(
    script: Script, read: str
) -> None:
    script.answers = [(404, s3_error("NoSuchBucket"))]
    error = error_of(lambda: READS[read](a_store(script)))
    assert isinstance(error, StorageError)
    assert "NoSuchBucket" in error.message


def test_a_read_is_tried_again_by_itself(script: Script) -> None:
    script.answers = [(503, ""), "reset", (200, "here")]
    assert a_store(script, max_retries=5).read("a/b") == b"here"


# The answer to HEAD, which `size` sends, has no body that could break off.
@pytest.mark.parametrize("read", [name for name in READS if name != "size"])
def test_a_read_whose_answer_broke_off_is_made_again(script: Script, read: str) -> None:
    script.answers = ["half", "half", (403, "")]
    error = error_of(lambda: READS[read](a_store(script)))
    assert error.code is ErrorCode.STORAGE_PERMISSION
    script.clear()
    script.answers = ["half", "half", "half"]
    error = error_of(lambda: READS[read](a_store(script)))
    assert "the connection broke" in error.message
    assert len(script.requests) == 3


@pytest.mark.parametrize("write", WRITES)
def test_a_write_whose_answer_broke_off_is_of_unknown_outcome(
    script: Script, write: str
) -> None:
    script.answers = ["half"]
    assert isinstance(error_of(lambda: WRITES[write](a_store(script))), UnknownOutcomeError)
    assert len(script.requests) == 1


def test_one_object_is_deleted_by_the_call_every_server_has(script: Script) -> None:
    a_store(script).delete("a/b")
    assert script.requests == ["DELETE /bucket/some/prefix/a/b"]


def test_more_than_5_gib_cannot_be_created_and_nothing_is_sent(script: Script) -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 5 * 1024**3 + 1

    with pytest.raises(StorageError, match=r"'a/b'.*5 GiB"):
        a_store(script).create("a/b", Huge())
    assert script.requests == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only some systems fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_gets_an_error_instead_of_waiting_for_ever(script: Script) -> None:
    store = a_store(script)
    store.put("a", b"x")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            store.read("a")
        except UserError as error:
            os.write(writer, error.message.encode())
        finally:
            os._exit(0)
    os.close(writer)
    said = os.read(reader, 10_000).decode()
    os.close(reader)
    os.waitpid(child, 0)
    assert "'spawn' or 'forkserver'" in said
    assert store.read("a") == b""
