"""Which object paths a store accepts: one rule for every implementation.

A path that one store takes and another refuses, or that leads out of the store's root,
would make a checkpoint unportable or unsafe; so all of them ask here first. Pure.
"""

import re
from functools import lru_cache

from penstock.errors import ErrorCode, UserError

# Empty, `.` and `..` segments; separators of other systems; `#`, which the local store
# uses for what is not an object; control characters; what UTF-8 cannot encode.
_FORBIDDEN = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)|[\\#\x00-\x1f\x7f\ud800-\udfff]")


def is_object_path(path: str) -> bool:
    """Tell whether `path` can name an object in every store."""
    return _FORBIDDEN.search(path) is None and len(path.encode()) <= 1024


@lru_cache(maxsize=8192)
def check_path(path: str) -> str:
    """Return `path` if it can name an object in every store, else raise `UserError`.

    Remembers recent answers: stores call this once per request.
    """
    if not is_object_path(path):
        raise UserError(
            f"{path!r} is not a valid object path: use at most 1024 bytes of segments "
            "joined by single '/', none of them '.' or '..', without '\\', '#' or control "
            "characters",
            code=ErrorCode.INVALID_NAME,
            path=path,
        )
    return path


def folder_start(prefix: str) -> str:
    """Return what every path below the folder `prefix` starts with; '' is the whole store.

    The separator is part of it, so that the folder `a` does not contain `ab/c`.
    """
    return f"{check_path(prefix)}/" if prefix else ""


def check_range(start: int, length: int) -> None:
    """Raise `UserError` for a byte range no object can have."""
    if start < 0 or length < 0:
        raise UserError(
            f"a byte range cannot start at {start} and be {length} bytes long: neither may "
            "be negative",
            code=ErrorCode.INVALID_NUMBER,
        )
