"""Every exception that Penstock raises, grouped by what a handler should do about it.

    PenstockError
    ├── UserError             2  fix the pipeline, the settings or the call
    │   ├── SettingsError        a setting has a value that cannot work
    │   ├── SchemaError          data and declared schema do not fit
    │   └── GraphError           a pipeline's graph cannot run (all problems listed)
    ├── UserCodeError         3  the user's function raised (cause chained)
    ├── ExternalError         4  user code reports that an outside system failed → retry, back off
    ├── FencedError           5  another generation owns the job → stop, never retry
    ├── StorageError          6  I/O failed, outcome known → retry
    ├── UnknownOutcomeError   7  I/O failed, the write may have landed → read back first
    ├── CorruptStateError     8  durable bytes break an invariant → stop, keep files, alert a person
    ├── StateError            9  a table was used or restored in a way its state does not allow
    └── InternalError        10  our bug → stop, report

The number is the exit code of a program that ends with the error (`penstock.main`). A program
that ends with 4, 6 or 7 is worth starting again; the driver has then already tried several
times.

An append-only `ErrorCode` holds the detail; there are no further classes. A message says what
happened, where, and what to do next; `context` holds the same facts for programs. All errors
can be pickled, because an error raised on a worker must reach the driver complete.

Messages reach logs, consoles and bug reports, so no error shows credentials: `hide_secrets` takes
them out of every message, note and context.

`did_you_mean` suggests which known name was probably meant by an unknown one, and
`naming_missing_extras` which extra to install.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, ClassVar

__all__ = [
    "CorruptStateError",
    "ErrorCode",
    "ExternalError",
    "FencedError",
    "GraphError",
    "InternalError",
    "PenstockError",
    "SchemaError",
    "SettingsError",
    "StateError",
    "StorageError",
    "UnknownOutcomeError",
    "UserCodeError",
    "UserError",
]


class ErrorCode(StrEnum):
    """What precisely went wrong. Append-only: programs match on these."""

    INVALID_NAME = "invalid-name"
    INVALID_NUMBER = "invalid-number"
    INVALID_SETTING = "invalid-setting"
    INVALID_URL = "invalid-url"
    SCHEMA_MISMATCH = "schema-mismatch"
    UNSUPPORTED_KEY_TYPE = "unsupported-key-type"
    UNSUPPORTED_VALUE_TYPE = "unsupported-value-type"
    USER_CODE_RAISED = "user-code-raised"
    FENCED = "fenced"
    STORAGE_FAILED = "storage-failed"
    STORAGE_READ_ONLY = "storage-read-only"
    STORAGE_FULL = "storage-full"
    STORAGE_PERMISSION = "storage-permission"
    STORAGE_UNSAFE = "storage-unsafe"
    UNKNOWN_OUTCOME = "unknown-outcome"
    OBJECT_MISSING = "object-missing"
    CHECKSUM_MISMATCH = "checksum-mismatch"
    UNDECODABLE = "undecodable"
    FOREIGN_OBJECT = "foreign-object"
    NEWER_PROTOCOL = "newer-protocol"
    PROTOCOL_VIOLATION = "protocol-violation"
    TABLE_TYPE_MISMATCH = "table-type-mismatch"
    NO_REGISTERED_TABLE = "no-registered-table"
    WRONG_TABLE_KIND = "wrong-table-kind"
    UNSUPPORTED_STATE_VERSION = "unsupported-state-version"
    MIGRATION_FAILED = "migration-failed"
    COMMIT_DATA_ALREADY_SET = "commit-data-already-set"
    NOT_RESTORABLE = "not-restorable"
    JOB_EXISTS = "job-exists"
    KEY_OUT_OF_RANGE = "key-out-of-range"
    INTERNAL = "internal"
    INVALID_GRAPH = "invalid-graph"
    INVALID_CONFIG = "invalid-config"
    UNKNOWN_KIND = "unknown-kind"
    UNKNOWN_OUTPUT = "unknown-output"
    UNKNOWN_SPLIT = "unknown-split"
    UNDECLARED_TIMERS = "undeclared-timers"
    EMITTED_AFTER_CLOSE = "emitted-after-close"
    WATERMARK_WENT_BACK = "watermark-went-back"
    SOURCE_OVERRAN = "source-overran"
    NOT_PICKLABLE = "not-picklable"
    UDF_INVALID = "udf-invalid"
    UDF_TIMED_OUT = "udf-timed-out"
    LIBRARY_MISMATCH = "library-mismatch"
    MISSING_SYMBOL = "missing-symbol"
    EXTERNAL_FAILED = "external-failed"
    TORN_EPOCH = "torn-epoch"
    JOB_FINISHED = "job-finished"
    MISSING_PACKAGE = "missing-package"
    ENGINE_FAILED = "engine-failed"
    ENGINE_MISSING = "engine-missing"
    NOT_UNPICKLABLE = "not-unpicklable"
    NAME_TAKEN = "name-taken"
    PLUGIN_FAILED = "plugin-failed"
    INPUT_CHANGED = "input-changed"
    UNREADABLE_INPUT = "unreadable-input"
    VALUE_OUT_OF_RANGE = "value-out-of-range"
    BROKEN_INPUT = "broken-input"
    ENGINE_GONE = "engine-gone"
    INPUT_LOST = "input-lost"


_URL = re.compile(r"\b(?!file:)[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
_USER_INFO = re.compile(r"://.*@")
_QUERY_VALUE = re.compile(r"([?&;][\w.%-]+=)[^&;]*")
_NAMES = (
    r"(?:password|passwd|pwd|secret|token|sig|signature|credentials?|x-(?:amz|goog)-[\w-]+"
    r"|(?:access|account|api|private|secret)[_-]?key)"
)
"""What the names of secrets end with, in queries, connection strings and configs."""
_ASSIGNED = re.compile(
    rf"({_NAMES}=)(?!=)(\\?[\"'])?(?(2)[^\"'\n]*|[^\s&;,'\")\]}}]*)", re.IGNORECASE
)
_LISTED = re.compile(
    rf"({_NAMES}\\?[\"']: ?\\?[\"']|\bbearer |\bauthorization\W{{1,6}}basic )[^\s\"']+",
    re.IGNORECASE,
)
_NAME = re.compile(rf".*{_NAMES}", re.IGNORECASE)


def hide_secrets(text: str, name: str = "") -> str:
    """Return a text without credentials: of URLs, of connection strings, of values by name.

    Nothing of it is shown if `name`, which it is the value of, is that of a secret.

    >>> hide_secrets("no answer from s3://key:secret@bucket/a")
    'no answer from s3://***@bucket/a'
    >>> hide_secrets("az://box/day-?.csv?sv=2024&sig=abc%3D")
    'az://box/day-?.csv?sv=***&sig=***'
    >>> hide_secrets("no answer: host=db user=me password=secret")
    'no answer: host=db user=me password=***'
    >>> hide_secrets("secret", "db_password")
    '***'
    """
    if name and _NAME.fullmatch(name):
        return "***"
    if "://" in text:
        # A password may hold a slash: everything before the last @ is hidden.
        text = _URL.sub(
            lambda url: _QUERY_VALUE.sub(r"\1***", _USER_INFO.sub("://***@", url[0])), text
        )
    if "=" in text:
        text = _ASSIGNED.sub(r"\1\2***", text)
    return _LISTED.sub(r"\1***", text)


def without_secrets(error: Exception) -> Exception:
    """Return an exception of a client library as the cause of an error may be shown.

    Libraries name endpoints and repeat options. What has no message of its own stays as it is.
    """
    shown = hide_secrets(str(error))
    if shown == str(error):
        return error
    return type(error)(shown).with_traceback(error.__traceback__)


def _writable(text: str) -> str:
    """Return a text that can be encoded: names of files may hold bytes that are no text."""
    return text.encode("utf-8", "backslashreplace").decode()


def _hide(value: object, name: str = "") -> object:
    kind = type(value)  # an enum of text is no text that could hold a secret
    if kind is str:
        return hide_secrets(_writable(str(value)), name)
    if isinstance(value, Mapping):
        return {key: _hide(part, str(key)) for key, part in value.items()}
    if isinstance(value, list | tuple) and kind in (list, tuple):
        return kind(map(_hide, value))
    return value


class PenstockError(Exception):
    """The base of all errors: a message, a code, and named facts."""

    default_code: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    exit_code: ClassVar[int] = 1

    def __init__(
        self, message: str, *, code: ErrorCode | None = None, **context: object
    ) -> None:
        self.message = hide_secrets(_writable(message))
        super().__init__(self.message)
        self.code = code or self.default_code
        self.context = {
            name: _hide(value, name) for name, value in context.items() if value is not None
        }

    def add_note(self, note: str) -> None:
        """Add a note without credentials: tracebacks and rows of user code may hold some."""
        super().add_note(hide_secrets(_writable(note)))

    def __reduce__(self) -> tuple[Any, ...]:
        # Notes are in __dict__, so passing it as the state keeps them.
        return _rebuild, (type(self), self.message, self.code, self.context), self.__dict__


def _rebuild(
    kind: type[PenstockError], message: str, code: ErrorCode, context: dict[str, object]
) -> PenstockError:
    """Rebuild an error from its pickled parts; pickle cannot pass keyword-only arguments."""
    return kind(message, code=code, **context)


class UserError(PenstockError):
    """The call, the pipeline or its settings cannot work; the message says what to change."""

    default_code = ErrorCode.INVALID_NAME
    exit_code = 2


class SettingsError(UserError):
    """A setting has a value that cannot work."""

    default_code = ErrorCode.INVALID_SETTING


class SchemaError(UserError):
    """Data does not fit the schema it was declared with."""

    default_code = ErrorCode.SCHEMA_MISMATCH


class GraphError(UserError):
    """The graph of a pipeline cannot run; the message lists everything that is wrong with it."""

    default_code = ErrorCode.INVALID_GRAPH


class UserCodeError(PenstockError):
    """The user's function raised; the original exception is chained as the cause."""

    default_code = ErrorCode.USER_CODE_RAISED
    exit_code = 3


class ExternalError(PenstockError):
    """An outside system failed. Sources, sinks and user code raise it to have the epoch retried."""

    default_code = ErrorCode.EXTERNAL_FAILED
    exit_code = 4


class FencedError(PenstockError):
    """Another generation owns the job. A driver that gets this error stops for good."""

    default_code = ErrorCode.FENCED
    exit_code = 5


class StorageError(PenstockError):
    """A storage call failed and certainly changed nothing. It may be retried."""

    default_code = ErrorCode.STORAGE_FAILED
    exit_code = 6


class UnknownOutcomeError(PenstockError):
    """A write failed without an answer: it may have landed, or may still land later."""

    default_code = ErrorCode.UNKNOWN_OUTCOME
    exit_code = 7


class CorruptStateError(PenstockError):
    """Durable bytes break an invariant. Nothing is repaired and nothing is deleted."""

    default_code = ErrorCode.UNDECODABLE
    exit_code = 8


class StateError(PenstockError):
    """State cannot be used this way: unknown table, wrong kind, version or migration."""

    default_code = ErrorCode.NO_REGISTERED_TABLE
    exit_code = 9


class InternalError(PenstockError):
    """Penstock contradicted itself: a bug worth reporting."""

    exit_code = 10


_MOST_NAMES = 50


def did_you_mean(unknown: str, known: Iterable[str]) -> str:
    """Return a clause that names the closest of the `known`, or the first 50 if none is close.

    The clause starts with a separator, because it follows "… is unknown".
    """
    choices = sorted(known)
    closest = get_close_matches(unknown, choices, n=1)
    if closest:
        return f"; did you mean {closest[0]!r}?"
    if not choices:
        return "; there are none"
    shown = ", ".join(map(repr, choices[:_MOST_NAMES]))
    more = len(choices) - _MOST_NAMES
    return f"; known are {shown}" + (f" and {more} more" if more > 0 else "")


_EXTRAS = {
    "pyspark": "spark",
    "py4j": "spark",
    "pandas": "spark",
    "confluent_kafka": "kafka",
    "grpc": "connect",
    "deltalake": "delta",
    "hypothesis": "testing",
    "pytest": "testing",
}
"""Packages that not everybody needs, and the extra of Penstock that brings each."""


@contextmanager
def naming_missing_extras() -> Iterator[None]:
    """Make the import in the block, if it lacks a package, say which extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise UserError(
            f"{package} is not installed: pip install 'penstock[{_EXTRAS[package]}]'. Where "
            "the cluster brings its own Spark, use the Python that it comes with",
            code=ErrorCode.ENGINE_MISSING,
            package=package,
        ) from error
