"""The client library of Delta tables: loads it when it is needed, its options and its errors.

The only place that imports it. What it raises is translated by what the user can do about it: what
may pass is an `ExternalError`, after which the driver tries again.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from penstock.errors import (
    ErrorCode,
    ExternalError,
    PenstockError,
    SchemaError,
    UserError,
    naming_missing_extras,
)

_REFUSED = re.compile(
    r"AccessDenied|Forbidden|access key|status(?: code)?:? 40[13]\b|InvalidAccessKeyId|SignatureDoesNotMatch|Permission|"
    r"Unauthorized|Unauthenticated",
    re.IGNORECASE,
)
_PASSING = re.compile(
    r"object.?store|connect|timed? ?out|reset|dns|\b5\d\d\b|Generic (S3|GCS|Azure)",
    re.IGNORECASE,
)
"""What the client says about failures of the store, after which another try may succeed."""
NO_VERSION = re.compile(r"end version|Invalid table version", re.IGNORECASE)
_COLOURS = re.compile(r"\x1b\[\d*m")
_STACK = re.compile(r"\n *\d+: .*", re.DOTALL)
_LONGEST_TEXT = 400
_NO_BUCKET = re.compile(r"NoSuchBucket|bucket does not exist", re.IGNORECASE)


def library() -> Any:
    """Return the client library, or say which extra brings it."""
    with naming_missing_extras():
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction

        return deltalake


def shown_error(error: Exception) -> str:
    """Return what the client says, in one line: without colours, arrows and its own stack."""
    text = _STACK.sub("", _COLOURS.sub("", str(error)))
    lines = [line.strip(" \u21b3") for line in text.splitlines()]
    return ": ".join(line for line in lines if line)[:_LONGEST_TEXT] or type(error).__name__


def translate(what: str, error: Exception) -> PenstockError:
    """Return the client's exception as an error of ours, by what the user can do about it."""
    text, client = shown_error(error), library()
    if isinstance(error, client.exceptions.DeltaProtocolError):
        return UserError(
            f"{what}: {text}. The table needs what the client library cannot do: upgrade "
            "deltalake, or drop the table's feature",
            code=ErrorCode.UNREADABLE_INPUT,
        )
    if isinstance(error, client.exceptions.SchemaMismatchError):
        return SchemaError(f"{what}: {text}")
    if isinstance(error, PermissionError) or _REFUSED.search(str(error)):
        return UserError(
            f"{what}: {text}. Give this process the right to read and write there, or check "
            "its credentials in the environment or in store_options=",
            code=ErrorCode.STORAGE_PERMISSION,
        )
    if _NO_BUCKET.search(str(error)):
        return UserError(
            f"{what}: {text}. Correct the URL, or create the bucket",
            code=ErrorCode.INVALID_URL,
        )
    if isinstance(error, OSError) or _PASSING.search(str(error)):
        return ExternalError(f"{what}: {text}")
    return UserError(
        f"{what}: {text}. Its log is damaged, or needs what the client library cannot do: try to "
        "read the table with another program, or upgrade deltalake",
        code=ErrorCode.UNREADABLE_INPUT,
    )


def to_client_options(url: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a store as the client takes them: the same names, values as text."""
    found = {}
    for name, value in options.items():
        if name == "durable":
            continue  # of local folders: the client writes log entries as it does
        if callable(value):
            raise UserError(
                f"store_options[{name!r}] is a function, which the client of Delta tables does "
                "not take: give credentials by the environment",
                code=ErrorCode.INVALID_CONFIG,
            )
        if name == "path_style":
            name, value = "virtual_hosted_style_request", not value  # noqa: PLW2901 (the pair as it is passed on)
        if isinstance(value, timedelta):
            value = f"{value.total_seconds():g}s"  # noqa: PLW2901 (the pair as it is passed on)
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    if url.startswith("s3:"):
        # Without it commits of two writers at one time could overwrite each other.
        found.setdefault("conditional_put", "etag")
    return found
