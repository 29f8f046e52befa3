"""Clients of Kafka whose calls go through a function of the test, with a real broker behind them."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from penstock.connectors.kafka.client import KafkaClients, Reports

CHANGES = (
    *("init_transactions", "begin_transaction", "commit_transaction", "abort_transaction"),
    *("produce", "produce_batch", "flush", "create_topics", "create_partitions"),
)
"""The calls of a sink that change something."""
READS = ("get_watermark_offsets", "list_topics", "describe_configs")
"""The calls that ask for something."""

MakeCall: TypeAlias = Callable[[str, Callable[[], Any]], Any]
"""Gets the name of a call and the call itself, and makes it, or not."""


class WatchedClients(KafkaClients):
    """Makes clients of which some calls are made by a function of the test."""

    __slots__ = ("_make", "_names")
    _make: MakeCall
    _names: Collection[str]

    def __init__(
        self, servers: str, make: MakeCall, names: Collection[str] = (*CHANGES, *READS)
    ) -> None:
        super().__init__(servers)
        object.__setattr__(self, "_make", make)
        object.__setattr__(self, "_names", names)

    def _made(
        self,
        what: str,
        kind: Any,
        options: Mapping[str, Any],
        on_report: Reports | None,
        tuned: Mapping[str, Any] | None = None,
    ) -> Any:
        made = super()._made(what, kind, options, on_report, tuned)
        return _Watched(made, self._make, self._names)


class _Watched:
    def __init__(self, client: Any, make: MakeCall, names: Collection[str]) -> None:
        self._client, self._make, self._names = client, make, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name not in self._names:
            return found
        return lambda *args, **options: self._make(name, lambda: found(*args, **options))

    def __len__(self) -> int:
        return len(self._client)
