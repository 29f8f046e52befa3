"""What obstore's exceptions mean: refused, or of unknown outcome, and why.

Pure. Most failures of obstore differ only in the text of their exceptions; this is the only
place that reads the text. `tests/unit/.../test_obstore_errors.py` checks the texts of the
installed obstore (0.12) against a scripted server.

A write has certainly changed nothing only if its *first and only* request was refused or
could not be sent. After a retry the last answer says nothing about the requests before it:

| answer to a write                       | no retry before it | after a retry |
|-----------------------------------------|--------------------|---------------|
| 3xx, 4xx except 408 and 409             | refused            | unknown       |
| no connection, bad scheme               | refused            | unknown       |
| no credentials: nothing was ever sent   | refused            | refused       |
| 408, 409, 5xx, timeout, connection lost | unknown            | unknown       |
"""

import re
from dataclasses import dataclass

from penstock.errors import ErrorCode

_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3}) ?([A-Za-z ]*)")
_NO_RETRY = re.compile(r"\sretries: 0,\n")
_STORE_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_TRANSPORT = re.compile(r"HttpError \{\s*kind: (\w+)")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist")
_FULL = {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"}
_ADDRESS = re.compile(r"https?://\S+")
# Before its first request the client fetches credentials from a service of the machine.
_NO_CREDENTIALS = re.compile(
    r"Generic \w+ error: Error performing (?:token request|\w+ http://169\.254\.169\.254)"
)

_TRANSPORT_REASONS = {
    "Connect": "no connection to the store",
    "Timeout": "the store did not answer in time",
    "Interrupted": "the connection broke",
    "Request": "the connection broke",
    "Decode": "the answer could not be understood",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """The meaning of one failed request."""

    reason: str
    """The text for the message, without addresses and credentials."""
    status: int | None
    """The HTTP status of the last answer, if there was one."""
    certain: bool
    """Whether the request has certainly changed nothing."""
    code: ErrorCode
    is_broken_off: bool
    """Whether the store answered and the connection broke before the end of the answer."""


def read_failure(error: Exception) -> Failure:
    """Return the meaning of an exception of obstore.

    A failure is certain only if its text proves it: an unfamiliar text means "unknown".
    """
    text = str(error)
    # The `Debug source` part repeats the message with all its details.
    line = text.partition("\n\nDebug source")[0]
    found = _STATUS.search(line)
    status = int(found[1]) if found else None
    transport = _TRANSPORT.search(text)
    kind = transport[1] if transport else None
    no_credentials = _NO_CREDENTIALS.match(line) is not None
    was_refused = (
        (status is not None and 300 <= status < 500 and status not in {408, 409})
        or kind == "Connect"
        or "kind: Builder" in text
        or "redirect without LOCATION" in line
    )
    return Failure(
        reason=_reason(line, text, status=found, kind=kind, no_credentials=no_credentials),
        status=status,
        certain=no_credentials or (was_refused and _NO_RETRY.search(text) is not None),
        code=_code(status, line, no_credentials=no_credentials),
        is_broken_off="HTTP error: request or response body error" in line,
    )


def is_missing_bucket(error: Exception) -> bool:
    """Tell whether "not found" is about the bucket or container, not the object."""
    return _NO_BUCKET.search(str(error)) is not None


def _code(status: int | None, line: str, *, no_credentials: bool) -> ErrorCode:
    store_code = _STORE_CODE.search(line)
    if status == 507 or (store_code is not None and store_code[1] in _FULL):
        return ErrorCode.STORAGE_FULL
    if status in {401, 403} or no_credentials:
        return ErrorCode.STORAGE_PERMISSION
    return ErrorCode.STORAGE_FAILED


def _reason(
    line: str,
    text: str,
    *,
    status: re.Match[str] | None,
    kind: str | None,
    no_credentials: bool,
) -> str:
    if no_credentials:
        return "no valid credentials were found"
    if "kind: Builder" in text:
        return "the address is http: and allow_http is not set"
    if status is not None:
        store_code = _STORE_CODE.search(line)
        named = f" ({store_code[1]})" if store_code else ""
        return f"the store answered {status[1]} {status[2].strip()}{named}".rstrip()
    if kind in _TRANSPORT_REASONS:
        return _TRANSPORT_REASONS[kind]
    if "redirect without LOCATION" in line:
        return "the store redirected the request elsewhere: the region is probably wrong"
    return _ADDRESS.sub("…", line)[:300]
