"""What a failed storage call tells its caller: the two kinds of error and their words.

    StorageError         nothing was changed; the code says what to do about it
    UnknownOutcomeError  a write may have landed, or may land later

Stores decide which of the two it is; this file makes them read alike. Pure.
"""

from dataclasses import dataclass

from penstock.errors import ErrorCode, StorageError, UnknownOutcomeError

_ADVICE = {
    ErrorCode.STORAGE_FAILED: "Check that the store can be reached, then run again.",
    ErrorCode.STORAGE_PERMISSION: (
        "Give this process the right to read, write, list and delete there, or check its "
        "credentials."
    ),
    ErrorCode.STORAGE_READ_ONLY: "Make the store writable or choose another one.",
    ErrorCode.STORAGE_FULL: (
        "Free space or raise the quota, then run again; what was stored before is intact."
    ),
    ErrorCode.STORAGE_UNSAFE: "Choose a store that can create an object atomically.",
}


@dataclass(frozen=True, slots=True)
class StorageCall:
    """One call to a store: what an error about it must name."""

    verb: str
    """What was tried, as in "could not <verb> <path>"."""
    path: str
    url: str

    def refused(
        self, reason: str, code: ErrorCode = ErrorCode.STORAGE_FAILED
    ) -> StorageError:
        """Make the error of a call that certainly changed nothing."""
        return StorageError(
            f"could not {self.verb} {self.path!r} in {self.url}: {reason}. Nothing was "
            f"changed. {_ADVICE[code]}",
            code=code,
            path=self.path,
            url=self.url,
        )

    def unanswered(self, reason: str) -> UnknownOutcomeError:
        """Make the error of a write that may have landed or may still land."""
        return UnknownOutcomeError(
            f"no certain answer to {self.verb} {self.path!r} in {self.url}: {reason}. It may "
            "have landed or may still land; read it back before deciding anything.",
            path=self.path,
            url=self.url,
        )
