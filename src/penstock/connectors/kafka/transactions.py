"""Commits a shard of an epoch by one transaction, exactly once, whoever else tries at the same time.

    an owner of the transactional.id is kept?   → no call is needed: see below
    else  init_transactions                       ends what others have open, and shuts them out
          read the marker up to the end           only now: nobody else can commit any more
    marker of this epoch, or of a later one?    → committed before: nothing to do
    begin · the marker · all records · commit

A producer that has committed an epoch is kept for the next one, without another
`init_transactions`. That is safe: as long as it is not shut out, nobody else has called
`init_transactions` with this id since it did, so nobody else has committed, and the last marker
is the one it wrote itself. If somebody has, each of its calls fails as fenced, and it is made
anew, by the long way. A producer whose last commit is in doubt is never kept.

| what happens                       | what the next attempt finds                             |
|------------------------------------|----------------------------------------------------------|
| killed before the commit           | an open transaction, which `init_transactions` aborts     |
| killed in the commit               | `init_transactions` waits for its end; the marker decides |
| the answer to the commit is lost   | the same producer asks again; then as above               |
| shut out by another attempt        | waits for the other's marker, then tries again            |

An attempt that was shut out is not in error: another one is at work on the same records. It
gives way for as long as it had worked itself, and longer each time, so that two attempts do not
shut each other out for ever.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.connectors.kafka.client import KafkaClients, Reports, to_error
from penstock.connectors.kafka.markers import MarkerPlace, encode_marker, read_marker
from penstock.connectors.kafka.producing import RecordRefusedError, RecordSender
from penstock.core.clock import new_token
from penstock.errors import ExternalError, PenstockError

_TURNS = 6
_CALL_SECONDS = 30.0
_LEAST_PATIENCE_SECONDS = 0.5
_log = logging.getLogger(__name__)

ReadRecords = Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class ShardCommit:
    """What one transaction is to hold."""

    transactional_id: str
    topic: str
    marker: MarkerPlace
    epoch: int
    is_large: bool
    """Whether it is worth a round trip to find out first that another attempt took over."""


@dataclass(slots=True)
class _Owner:
    """A producer that has called `init_transactions`, and the last epoch it knows of."""

    producer: Any
    committed: int
    is_fresh: bool = True


class _ShutOutError(Exception):
    """Another attempt has called `init_transactions` with the same id."""


class _StaleError(Exception):
    """The same, of a producer that was kept: the other may have committed earlier epochs."""


class ShardTransactions:
    """Carries out commits of shards, and keeps their producers. Used by one thread."""

    def __init__(
        self, clients: KafkaClients, options: Mapping[str, Any], *, timeout_ms: int
    ) -> None:
        self._clients = clients
        self._timeout_s = timeout_ms / 1000
        self._options = {**options, "transaction_timeout_ms": timeout_ms}
        self._kept: dict[str, _Owner] = {}

    def close(self) -> None:
        """Drop the producers that are kept."""
        kept, self._kept = self._kept, {}
        for owner in kept.values():
            _drop(owner.producer)

    def commit(self, asked: ShardCommit, read: ReadRecords) -> int | None:
        """Commit what `read` yields; return how many records, None if it was done before."""
        for turn in range(_TURNS):
            started = time.monotonic()
            try:
                return self._try(asked, read)
            except _StaleError:
                _log.debug("%s was committed elsewhere since", asked.transactional_id)
            except _ShutOutError as error:
                took = time.monotonic() - started
                self._check_length(asked, took, error)
                _log.info(
                    "another attempt took over %s in epoch %s; giving way",
                    asked.transactional_id,
                    asked.epoch,
                )
                patience = max(_LEAST_PATIENCE_SECONDS, took) * 2**turn * _jitter()
                if self._wait_for_marker(asked, patience):
                    return None
        raise ExternalError(
            f"epoch {asked.epoch} could not be committed to {asked.topic!r}: another program "
            f"keeps taking over the transactional.id {asked.transactional_id!r}. Is this job "
            "running twice?",
            topic=asked.topic,
            epoch=asked.epoch,
        )

    def _try(self, asked: ShardCommit, read: ReadRecords) -> int | None:
        owner = self._kept.pop(asked.transactional_id, None) or self._own(asked)
        if owner.committed >= asked.epoch:
            self._keep(asked, owner)
            return None
        try:
            count = self._transact(owner, asked, read)
        except BaseException as error:
            _drop(owner.producer, aborts=True)
            if isinstance(error, _ShutOutError) and not owner.is_fresh:
                raise _StaleError from error
            raise
        owner.committed = asked.epoch
        self._keep(asked, owner)
        return count

    def _keep(self, asked: ShardCommit, owner: _Owner) -> None:
        owner.is_fresh = False
        self._kept[asked.transactional_id] = owner

    def _own(self, asked: ShardCommit) -> _Owner:
        """Shut out everybody else, then find out what they have committed."""
        producer = self._clients.producer(
            Reports(), transactional_id=asked.transactional_id, **self._options
        )
        try:
            self._retried(
                producer.init_transactions,
                f"the transactional.id {asked.transactional_id!r} cannot be taken",
                _CALL_SECONDS * 2,
            )
            committed = read_marker(self._clients, asked.marker, timeout_s=self._timeout_s)
        except BaseException:
            _drop(producer)
            raise
        return _Owner(producer, committed)

    def _transact(self, owner: _Owner, asked: ShardCommit, read: ReadRecords) -> int:
        from confluent_kafka import KafkaException

        producer, marker = owner.producer, asked.marker
        doing = f"epoch {asked.epoch} could not be committed to {asked.topic!r}"
        deadline = time.monotonic() + self._timeout_s
        sender = RecordSender(producer, asked.topic, timeout_s=self._timeout_s)
        try:
            producer.begin_transaction()
            producer.produce(
                marker.topic,
                encode_marker(asked.epoch, asked.topic),
                marker.key,
                partition=marker.partition,
            )
            if asked.is_large and not owner.is_fresh:
                sender.flush()
            count = sender.send(read())
        except (KafkaException, RecordRefusedError) as error:
            raise _failure(error, doing) from error
        try:
            self._retried(
                producer.commit_transaction, doing, max(1.0, deadline - time.monotonic())
            )
        except PenstockError:
            _raise_refusal(sender)  # it says more
            raise
        return count

    def _retried(self, call: Callable[[float], Any], doing: str, seconds: float) -> None:
        """Call until it succeeds, as long as its failures may pass."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + seconds
        while True:
            try:
                call(min(_CALL_SECONDS, seconds))
            except KafkaException as error:
                may_pass = error.args[0].retriable() and time.monotonic() < deadline
                if not may_pass:
                    raise _failure(error, doing) from error
            else:
                return

    def _wait_for_marker(self, asked: ShardCommit, patience_s: float) -> bool:
        """Tell whether the other attempt commits within this time."""
        deadline = time.monotonic() + patience_s
        left = patience_s
        while left > 0:
            try:
                found = read_marker(self._clients, asked.marker, timeout_s=left)
            except ExternalError as error:
                # The other one's transaction is still open, so the end cannot be reached. If
                # it is the broker that does not answer, the next turn says so.
                _log.debug("the marker of epoch %s: %s", asked.epoch, error)
            else:
                if found >= asked.epoch:
                    return True
            left = deadline - time.monotonic()
            time.sleep(max(0.0, min(0.1, left)))
        return False

    def _check_length(self, asked: ShardCommit, took_s: float, error: Exception) -> None:
        """Refuse a transaction that the broker ended because it took too long."""
        if took_s >= self._timeout_s:
            raise ExternalError(
                f"epoch {asked.epoch} could not be committed to {asked.topic!r}: its transaction "
                f"took {took_s:.0f} s and was ended by the broker after transaction_timeout, "
                f"{self._timeout_s:g} s. Raise it (the broker's transaction.max.timeout.ms is "
                "the most), for this epoch; for later ones more shards or smaller epochs help, "
                "too",
                topic=asked.topic,
                epoch=asked.epoch,
            ) from error


def _failure(error: Exception, doing: str) -> Exception:
    if _is_fatal(error):
        return _ShutOutError(str(error))
    return (
        error.to_error()
        if isinstance(error, RecordRefusedError)
        else to_error(error, doing)
    )


def _raise_refusal(sender: RecordSender) -> None:
    try:
        sender.check()
    except RecordRefusedError as error:
        raise error.to_error() from error


def _is_fatal(error: BaseException | None) -> bool:
    """Tell whether a producer cannot be used again, as when another one has its id."""
    reason: Any = error.args[0] if error is not None and error.args else None
    if not hasattr(reason, "fatal"):
        return False
    return bool(reason.fatal()) or reason.name() in (
        "_FENCED",
        "PRODUCER_FENCED",
        "_FATAL",
        "_PURGE_QUEUE",
        "_PURGE_INFLIGHT",
        "INVALID_PRODUCER_EPOCH",
        "INVALID_PRODUCER_ID_MAPPING",
        "UNKNOWN_PRODUCER_ID",
    )


def _drop(producer: Any, *, aborts: bool = False) -> None:
    """Let go of a producer, at once; an open transaction is aborted if the broker answers."""
    from confluent_kafka import KafkaException

    try:
        if aborts:
            producer.abort_transaction(5.0)
        producer.purge()
    except KafkaException as error:
        # The next owner's init_transactions aborts it.
        _log.debug("a transaction was left open: %s", error)


def _jitter() -> float:
    """Return 0.75 to 1.25, at random, so that two attempts do not stay in step."""
    return 0.75 + int(new_token()[:4], 16) / 0x20000
