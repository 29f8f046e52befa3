"""Objects in S3, Google Cloud Storage or Azure Blob Storage, through obstore.

An object is created by one conditional PUT, because a multipart upload is not conditional
on S3; so `create` takes at most 5 GiB. `put` uploads large objects in parts (an upload
that is cut short leaves parts nobody sees: give the bucket a rule that expires them).

obstore repeats a request by itself when the store answers 5xx or drops the connection. So
a `create` may meet its own object and say False, as the contract allows.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from penstock.core.checksum import checksum_of
from penstock.errors import ErrorCode, StorageError, UnknownOutcomeError, UserError
from penstock.state.storage.failures import StorageCall
from penstock.state.storage.object_path import check_path, check_range, folder_start
from penstock.state.storage.object_store import ObjectInfo
from penstock.state.storage.obstore_client import make_client, parse_bucket_url
from penstock.state.storage.obstore_errors import is_missing_bucket, read_failure

_Result = TypeVar("_Result")

_LARGEST_CREATE_BYTES = 5 * 1024**3
_LARGEST_SINGLE_PUT_BYTES = 64 * 1024**2
_PART_BYTES = 16 * 1024**2


class _Runtime:
    """Whether obstore's threads run in this process, or only did in the one it was forked from.

    A call in such a child would wait for those threads for ever.
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
    """An `ObjectStore` below a prefix of a bucket. Threads may share it, and it pickles.

    What is pickled are the URL and the options, with any credentials among them.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """Open `s3://`, `gs://` or `az://` `bucket/prefix`; see `obstore_client` for options."""
        place = parse_bucket_url(url)
        self._url = str(place)
        self._options = dict(options or {})
        self._client = make_client(place, self._options)

    @property
    def url(self) -> str:
        """The bucket and prefix."""
        return self._url

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
                if read_failure(error).status == 416:  # the range begins behind the end
                    return b""
                raise
            return found.to_bytes()

        return self._read(path, part)

    def put(self, path: str, data: bytes) -> None:
        """Write or replace the object, in parts if it is large."""
        call = StorageCall("put", check_path(path), self._url)
        in_parts = len(data) > _LARGEST_SINGLE_PUT_BYTES
        _Runtime.enter()
        try:
            obstore.put(
                self._client, path, data, use_multipart=in_parts, chunk_size=_PART_BYTES
            )
        except (BaseError, OSError) as error:
            raise _refused_or_unanswered(call, error) from error

    def create(self, path: str, data: bytes) -> bool:
        """Write the object if there is none; tell whether this call did."""
        call = StorageCall("create", check_path(path), self._url)
        if len(data) > _LARGEST_CREATE_BYTES:
            raise call.refused(
                f"{len(data)} bytes are more than one request can carry (5 GiB)"
            )
        _Runtime.enter()
        try:
            obstore.put(self._client, path, data, mode="create")
        except (AlreadyExistsError, PreconditionError) as error:
            if not self._was_there(path, error):
                raise call.unanswered(read_failure(error).reason) from error
            return False
        except (BaseError, OSError) as error:
            raise _refused_or_unanswered(call, error) from error
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List the folder, all of it before the first is yielded."""
        start = folder_start(prefix)
        _Runtime.enter()
        try:
            stream = obstore.list(self._client, prefix or None, chunk_size=1000)
            found = [
                ObjectInfo(meta["path"], meta["size"])
                for chunk in stream
                for meta in chunk
                if meta["path"].startswith(start)
            ]
        except (BaseError, OSError) as error:
            raise _refused(StorageCall("list", prefix, self._url), error) from error
        found.sort(key=lambda info: info.path)
        return iter(found)

    def delete(self, path: str) -> None:
        """Remove the object if it is there."""
        call = StorageCall("delete", check_path(path), self._url)
        _Runtime.enter()
        try:
            obstore.delete(self._client, path)
        except FileNotFoundError as error:
            if is_missing_bucket(error):
                raise _refused(call, error) from error
        except (BaseError, OSError) as error:
            raise _refused_or_unanswered(call, error) from error

    def size(self, path: str) -> int | None:
        """Return the size, or None without an object."""
        return self._read(path, lambda: obstore.head(self._client, path)["size"])

    def checksum(self, path: str) -> int | None:
        """Return the checksum, or None without an object."""
        data = self._read(path, lambda: obstore.get(self._client, path).bytes())
        return None if data is None else checksum_of(memoryview(data))

    def copy(self, source: str, target: str) -> bool | None:
        """Let the store copy the object if it finds none at the target; None without one."""
        call = StorageCall("copy", check_path(target), self._url)
        check_path(source)
        if self.size(target) is not None:
            return False
        try:
            obstore.copy(self._client, source, target)
        except FileNotFoundError as error:
            if is_missing_bucket(error):
                raise _refused(call, error) from error
            # Another copy may have been faster, and the source may be gone since.
            return None if self.size(target) is None else False
        except (BaseError, OSError) as error:
            raise _refused_or_unanswered(call, error) from error
        return True

    def __repr__(self) -> str:
        return f"ObstoreStore({self._url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ObstoreStore, (self._url, self._options)

    def _read(self, path: str, request: Callable[[], _Result]) -> _Result | None:
        """Return what the request returns, or None where there is no object."""
        check_path(path)
        _Runtime.enter()
        try:
            return request()
        except FileNotFoundError as error:
            if is_missing_bucket(error):
                raise _refused(StorageCall("read", path, self._url), error) from error
            return None
        except (BaseError, OSError) as error:
            raise _refused(StorageCall("read", path, self._url), error) from error

    def _was_there(self, path: str, error: Exception) -> bool:
        """Tell whether a refused `create` proves that there is an object.

        412 proves it. But S3 also answers 409 while another request for the name is in
        progress, and obstore calls that "already exists" too: then it is looked up.
        """
        if read_failure(error).status == 412:
            return True
        try:
            return self.size(path) is not None
        except StorageError:
            return False


def _refused(call: StorageCall, error: Exception) -> StorageError:
    """Make the error of a call that cannot have changed anything."""
    failure = read_failure(error)
    return call.refused(failure.reason, failure.code)


def _refused_or_unanswered(
    call: StorageCall, error: Exception
) -> StorageError | UnknownOutcomeError:
    """Make the error of a failed write."""
    failure = read_failure(error)
    if failure.certain:
        return call.refused(failure.reason, failure.code)
    return call.unanswered(failure.reason)
