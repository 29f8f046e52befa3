"""What is read out of obstore's messages that no test server can provoke."""

from penstock.errors import ErrorCode
from penstock.state.storage.obstore_errors import is_missing_bucket, read_failure


def test_missing_credentials_are_certain_even_after_retries() -> None:
    for request in (
        "Error performing PUT http://169.254.169.254/latest/api/token",
        "Error performing token request: Error performing GET http://169.254.169.254/x?a=b",
    ):
        failure = read_failure(
            Exception(
                f"Generic S3 error: {request} in 9s, after 10 retries, max_retries: 10, "
                "retry_timeout: 180s  - HTTP error: error sending request\n\n"
                "Debug source:\nGeneric {\n  retries: 10,\n }"
            )
        )
        assert failure.certain
        assert failure.code is ErrorCode.STORAGE_PERMISSION
        assert failure.reason == "no valid credentials were found"


def test_words_nobody_knows_are_uncertain_and_shown_without_addresses() -> None:
    failure = read_failure(
        Exception("Generic S3 error: odd thing at https://user:secret@host/x?sig=abc now")
    )
    assert not failure.certain
    assert failure.status is None
    assert failure.reason == "Generic S3 error: odd thing at … now"
    assert failure.code is ErrorCode.STORAGE_FAILED


def test_a_full_store_is_named_where_the_store_says_so() -> None:
    answer = "x - Server returned non-2xx status code:"
    for text in (
        f"{answer} 507 Insufficient Storage: ",
        f"{answer} 403 Forbidden: <Code>QuotaExceeded</Code>",
        f"{answer} 400 Bad Request: <Code>XMinioStorageFull</Code>",
    ):
        assert read_failure(Exception(text)).code is ErrorCode.STORAGE_FULL


def test_a_missing_bucket_is_told_from_a_missing_object_in_every_cloud() -> None:
    for text in (
        "<Code>NoSuchBucket</Code>",
        "<Code>ContainerNotFound</Code>",
        "The specified bucket does not exist.",
    ):
        assert is_missing_bucket(Exception(text))
    assert not is_missing_bucket(Exception("<Code>NoSuchKey</Code>"))
