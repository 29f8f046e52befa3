"""Which object paths a store accepts: one rule for every implementation.

A path that one store takes and another refuses, or that leads out of the store's root,
would make a checkpoint unportable or unsafe; so all of them ask here first. Pure.
"""

import re
from functools import lru_cache

from penstock.errors import ErrorCode, UserError

# Empty, `.` and `..` segments; separators of other systems; `#`, which the local store
# uses for files still being written; control characters; what UTF-8 cannot encode.
_FORBIDDEN = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)|[\\#\x00-\x1f\x7f\ud800-\udfff]")


@lru_cache(maxsize=8192)
def check_path(path: str) -> str:
    """Return `path` if it can name an object in every store, else raise `UserError`.

    Remembers recent answers: stores call this once per request.
    """
    if _FORBIDDEN.search(path) is not None or len(path.encode()) > 1024:
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
