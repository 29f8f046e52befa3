"""Clients of Kafka whose calls go through a function of the test, with a real broker behind them."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from penstock.connectors.kafka.client import KafkaClients, Reports

CHANGES = (
    *("init_transactions", "begin_transaction", "commit_transaction", "abort_transaction"),
    *("produce", "produce_batch", "flush", "create_topics", "create_partitions"),
)
"""The calls of a sink that change something."""
READS = ("get_watermark_offsets", "list_topics", "describe_configs", "list_offsets")
"""The calls that ask for something."""
ANSWERED_LATER = ("create_topics", "create_partitions", "describe_configs", "list_offsets")
"""Calls that return a future of each thing asked for: they only send."""
ANSWERS = tuple(f"{name}.result" for name in ANSWERED_LATER)
"""Waiting for such an answer. A harm befalls the first time that somebody waits for it."""
MARKER_READS = ("consumer.poll",)
"""How the reader of markers gets them. Other clients have calls of that name, too."""

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
        return _Watched(kind.__name__.lower(), made, self._make, self._names)


class _Watched:
    def __init__(
        self, kind: str, client: Any, make: MakeCall, names: Collection[str]
    ) -> None:
        self._kind, self._client, self._make, self._names = kind, client, make, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        known = next((n for n in (name, f"{self._kind}.{name}") if n in self._names), None)
        if f"{name}.result" in self._names:
            found = self._with_answers(f"{name}.result", found)
        if known is None:
            return found
        return lambda *args, **options: self._make(known, lambda: found(*args, **options))

    def _with_answers(self, name: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any, **options: Any) -> dict[Any, _WatchedAnswer]:
            futures = ask(*args, **options)
            return {key: _WatchedAnswer(name, f, self._make) for key, f in futures.items()}

        return asked

    def __len__(self) -> int:
        return len(self._client)


class _WatchedAnswer:
    def __init__(self, name: str, future: Any, make: MakeCall) -> None:
        self._name, self._future, self._make = name, future, make
        self._is_met = False

    def result(self, timeout: float | None = None) -> Any:
        if self._is_met:
            return self._future.result(timeout)
        self._is_met = True
        return self._make(self._name, lambda: self._future.result(timeout))
