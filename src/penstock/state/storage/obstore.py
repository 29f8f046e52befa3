"""Objects in S3, Google Cloud Storage or Azure Blob Storage, through obstore.

An object is created by one conditional PUT, because a multipart upload is not conditional on
S3; so `create` takes at most 5 GiB. `put` uploads large objects in parts. An interrupted
upload leaves parts that no request shows: give the bucket a rule that expires them.

obstore itself repeats a request when the store answers 5xx or drops the connection. So a
`create` may find its own object and return False, as the contract allows. It does not repeat a
listing, or the reading of an error, that breaks off in the middle: this module repeats reads.

Credentials come from the environment as obstore documents (`AWS_*`, `GOOGLE_*`, `AZURE_*`),
or from options; never from the URL, because messages show it.

Options, all of them optional:

    endpoint, region, access_key_id, …  obstore's configuration of the store
    allow_http, timeout, proxy_url, …   obstore's client options
    max_retries, retry_timeout          how often and for how long to retry
    path_style=True                     S3: the bucket goes into the path, not the host
    credential_provider                 a callable; workers need one that can be pickled

A value may be a `Secret`, which is read when a store is opened.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store

from penstock.core.ids import checksum_of
from penstock.core.secrets import resolve_secrets
from penstock.errors import (
    ErrorCode,
    SettingsError,
    StorageError,
    UserError,
    without_secrets,
)
from penstock.state.storage.object_store import (
    ObjectInfo,
    StorageCall,
    check_path,
    check_range,
    folder_start,
)
from penstock.state.storage.obstore_errors import is_missing_bucket, read_failure

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

_URL = re.compile(r"((?:s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._$-]*)((?:/[^?#@]*)?)", re.DOTALL)

_ADDRESS = re.compile(r"https?://[^\s\\\"<>^`{|}]+")

_SECRET = re.compile(
    "key|secret|token|password|credential|sas|signature|endpoint|proxy|headers",
    re.IGNORECASE,
)
"""Options whose values are not shown."""

_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
_CLIENTS: dict[str, Callable[..., "Client"]] = {
    "s3": S3Store,
    "gs": GCSStore,
    "az": AzureStore,
}
_RETRY_OPTIONS = frozenset({"max_retries", "retry_timeout"})

# obstore's default of 30 seconds for a whole request is too short for one big upload.
_DEFAULT_TIMEOUT = timedelta(minutes=5)


def _make_client(url: str, options: Mapping[str, Any]) -> "Client":
    """Build the client. No request is sent, so a wrong bucket or key is not noticed here."""
    scheme, _, place = url.partition("://")
    bucket, _, prefix = place.partition("/")
    _check_addresses(url, options)
    config = dict(options)
    arguments: dict[str, Any] = {
        "prefix": prefix or None,
        "client_options": {"timeout": _DEFAULT_TIMEOUT} | _take(config, _CLIENT_OPTIONS),
        "retry_config": _take(config, _RETRY_OPTIONS),
        "credential_provider": config.pop("credential_provider", None),
    }
    if scheme == "s3":
        if "path_style" in config:
            config["virtual_hosted_style_request"] = not config.pop("path_style")
        # Not every S3-compatible store has the bulk call that obstore would use for one object.
        config.setdefault("disable_bulk_delete", True)
    try:
        return _CLIENTS[scheme](bucket, config=config, **arguments)
    except (BaseError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        for name, value in options.items():
            if _SECRET.search(name) and str(value):
                reason = reason.replace(str(value), "***")
        raise SettingsError(
            f"cannot open {url} with the options {sorted(options)}: {reason}. Correct the "
            "option or the environment variable of that name",
            url=url,
        ) from None  # obstore quotes the value that it cannot take, which may be a secret


def _check_addresses(url: str, options: Mapping[str, Any]) -> None:
    """Refuse an address that obstore would accept and panic at in the first request."""
    for name, value in options.items():
        if "endpoint" in name.lower() and isinstance(value, str) and not _is_address(value):
            raise SettingsError(
                f"cannot open {url}: the option {name!r} is not of the form "
                "https://host:port or http://host:port",
                url=url,
            )


def _is_address(value: str) -> bool:
    try:
        urlsplit(value).port  # noqa: B018 (raises if it is none)
    except ValueError:
        return False
    return _ADDRESS.fullmatch(value) is not None


def _take(options: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """Remove and return the options of these names."""
    return {name: options.pop(name) for name in names & options.keys()}


_Result = TypeVar("_Result")

_LARGEST_CREATE_BYTES = 5 * 1024**3
_LARGEST_SINGLE_PUT_BYTES = 64 * 1024**2
_PART_BYTES = 16 * 1024**2
_READ_ATTEMPTS = 3
"""How often a read is made whose answer breaks off."""


class _Runtime:
    """Whether obstore's threads run in this process, or only in the one it was forked from.

    A call in such a forked process would wait for those threads for ever.
    """

    used = False
    stranded = False

    @classmethod
    def after_fork(cls) -> None:
        cls.stranded = cls.used

    @classmethod
    def enter(cls) -> None:
        cls.used = True
        if cls.stranded:
            raise UserError(
                "this process was forked from one that had used remote storage, and the "
                "storage library cannot work in it; start processes with 'spawn' or "
                "'forkserver'",
                code=ErrorCode.STORAGE_FAILED,
            )


os.register_at_fork(after_in_child=_Runtime.after_fork)


class ObstoreStore:
    """An `ObjectStore` below a prefix of a bucket. Threads may share it; it can be pickled.

    The pickle holds the URL and the options as they were given: a secret as the reference.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """Open `s3://`, `gs://` or `az://` `bucket/prefix`; the module docs list the options."""
        match = _URL.fullmatch(url)
        if match is None:
            scheme = url.partition(":")[0]
            # The URL is not repeated in the message: it may hold a password.
            raise UserError(
                f"this {scheme}: URL is not of the form {scheme}://<bucket>/<prefix>: pass "
                "credentials by environment or options, not in the URL, and no '?' or '#' "
                "part",
                code=ErrorCode.INVALID_URL,
            )
        place, prefix = match[1], match[2].strip("/")
        self.url = f"{place}/{check_path(prefix)}" if prefix else place
        self._options = dict(options or {})
        self._client = _make_client(self.url, resolve_secrets(self._options))

    def read(self, path: str) -> bytes | None:
        """Return the whole object, or None."""
        return self._read(path, lambda: obstore.get(self._client, path).bytes().to_bytes())

    def read_range(self, path: str, start: int, length: int) -> bytes | None:
        """Return the part of the object that lies in the range, or None without an object."""
        check_range(start, length)
        if length == 0:
            return None if self.size(path) is None else b""

        def part() -> bytes:
            try:
                found = obstore.get_range(self._client, path, start=start, length=length)
            except BaseError as error:
                if read_failure(error).status == 416:  # the range begins after the end
                    return b""
                raise
            return found.to_bytes()

        return self._read(path, part)

    def put(self, path: str, data: bytes) -> None:
        """Write or replace the object, in parts if it is large."""
        call = StorageCall("put", check_path(path), self.url)
        in_parts = len(data) > _LARGEST_SINGLE_PUT_BYTES
        with _request(call, is_write=True):
            obstore.put(
                self._client, path, data, use_multipart=in_parts, chunk_size=_PART_BYTES
            )

    def create(self, path: str, data: bytes) -> bool:
        """Write the object if there is none; tell whether this call did."""
        call = StorageCall("create", check_path(path), self.url)
        if len(data) > _LARGEST_CREATE_BYTES:
            raise call.refused(
                f"{len(data)} bytes are more than one request can carry (5 GiB)"
            )
        try:
            with _request(call, AlreadyExistsError, PreconditionError, is_write=True):
                obstore.put(self._client, path, data, mode="create")
        except (AlreadyExistsError, PreconditionError) as error:
            # 412 proves that an object exists. S3 also answers 409 while another request for
            # the name is in progress, and obstore reports that as "already exists", too.
            failure = read_failure(error)
            if failure.status != 412 and not self._is_there(path):
                raise call.unanswered(failure.reason) from without_secrets(error)
            return False
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List the folder completely before the first object is yielded."""
        start = folder_start(prefix)
        with _request(StorageCall("list", prefix, self.url), is_write=False):
            found = _insist(
                lambda: [
                    ObjectInfo(meta["path"], meta["size"])
                    for chunk in obstore.list(self._client, prefix or None, chunk_size=1000)
                    for meta in chunk
                    if meta["path"].startswith(start)
                ]
            )
        return iter(sorted(found, key=attrgetter("path")))

    def folders(self, prefix: str) -> Iterator[str]:
        """Name the folders; the store leaves out what lies in them."""
        start = folder_start(prefix)
        with _request(StorageCall("list", prefix, self.url), is_write=False):
            found = _insist(
                lambda: obstore.list_with_delimiter(self._client, prefix or None)[
                    "common_prefixes"
                ]
            )
        below = (path.rstrip("/") for path in found)
        return iter(sorted(path[len(start) :] for path in below if path.startswith(start)))

    def delete(self, path: str) -> None:
        """Remove the object if it is there."""
        call = StorageCall("delete", check_path(path), self.url)
        with suppress(FileNotFoundError), _request(call, FileNotFoundError, is_write=True):
            obstore.delete(self._client, path)

    def size(self, path: str) -> int | None:
        """Return the size, or None without an object."""
        return self._read(path, lambda: obstore.head(self._client, path)["size"])

    def checksum(self, path: str) -> int | None:
        """Return the checksum, or None without an object."""
        data = self._read(path, lambda: obstore.get(self._client, path).bytes())
        return None if data is None else checksum_of(memoryview(data))

    def copy(self, source: str, target: str) -> bool | None:
        """Copy the object inside the store if there is no target; None without a source."""
        call = StorageCall("copy", check_path(target), self.url)
        check_path(source)
        if self.size(target) is not None:
            return False
        try:
            with _request(call, FileNotFoundError, is_write=True):
                obstore.copy(self._client, source, target)
        except FileNotFoundError:
            # Another call may have copied the object first, and the source deleted since.
            return None if self.size(target) is None else False
        return True

    def __repr__(self) -> str:
        return f"ObstoreStore({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ObstoreStore, (self.url, self._options)

    def _is_there(self, path: str) -> bool:
        try:
            return self.size(path) is not None
        except StorageError:
            return False

    def _read(self, path: str, request: Callable[[], _Result]) -> _Result | None:
        """Return the result of a request, or None if there is no object."""
        call = StorageCall("read", check_path(path), self.url)
        with suppress(FileNotFoundError), _request(call, FileNotFoundError, is_write=False):
            return _insist(request)
        return None


def _insist(read: Callable[[], _Result]) -> _Result:
    """Return the result of a read; one whose answer broke off is made again."""
    for _ in range(_READ_ATTEMPTS - 1):
        try:
            return read()
        except BaseError as error:
            if not read_failure(error).is_broken_off:
                raise
    return read()


@contextmanager
def _request(
    call: StorageCall, *answers: type[Exception], is_write: bool
) -> Iterator[None]:
    """Turn exceptions of a request into errors of Penstock, by whether it may have landed.

    Exceptions in `answers` pass, because they only mean that the object is absent or exists.
    A missing bucket is an error all the same.
    """
    _Runtime.enter()
    try:
        yield
    except (BaseError, OSError) as error:
        is_answer = isinstance(error, answers)
        if is_answer and not is_missing_bucket(error):
            raise
        failure = read_failure(error)
        cause = without_secrets(error)
        if is_write and not is_answer and not failure.certain:
            raise call.unanswered(failure.reason) from cause
        raise call.refused(failure.reason, failure.code) from cause
