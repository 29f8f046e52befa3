"""Stops a job on a signal: after a checkpoint at the first one, at once at the second.

The signals are those by which terminals and supervisors end programs: SIGINT (Ctrl-C), SIGTERM
and SIGHUP (the terminal was closed). One that the process ignores stays ignored: `nohup` asks
for that. Only the main thread can get signals, so a job in another thread is stopped by its
own methods only.

A handler runs in the main thread between any two instructions, which may hold a lock. So it
only counts, and puts the signal into a queue. A thread takes it from there, and may wait, log
and call Spark. Where even this does not end the main thread, a later signal raises `StoppedNow`
in it:

| signal | what it does |
|---|---|
| first | calls `first` of the newest `direct` |
| second | calls `again` of the newest `direct` |
| number `raises_at` and later | raises `StoppedNow` in the main thread |

A signal may be received by any thread, or just before the main thread begins to wait. Neither
ends the wait, and the handler runs when it ends. So whoever waits in the main thread waits by
`wait_attentively`: for a short while, again and again.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import Any

_log = logging.getLogger(__name__)

STOP_SIGNALS = tuple(
    signal.Signals[name]
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if name in signal.Signals.__members__
)
_ON_SPARK_RAISES_AT = 3
_LOOK_SECONDS = 0.5
"""How long it may take until a signal is noticed."""


class StoppedNow(BaseException):
    """Ends what the main thread does. It is no `Exception`, so that user code lets it pass."""


def wait_attentively(wait: Callable[[float], bool], seconds: float | None = None) -> bool:
    """Wait until `wait`, which gets a limit in seconds, says that what it waits for has come.

    Return whether it came. Without a limit the wait has no end.
    """
    ends_at = None if seconds is None else time.monotonic() + seconds
    while True:
        left = _LOOK_SECONDS if ends_at is None else ends_at - time.monotonic()
        if wait(min(_LOOK_SECONDS, max(0.0, left))):
            return True
        if left <= 0:
            return False


def _nothing() -> None:
    """Stand in until somebody says what stops the job."""


class StopSignals:
    """The signals that one run of a job gets. They count from `listening` on.

    signals = StopSignals("shop")
    with signals.listening():
        …                                    signals are counted
        signals.direct(stop_soon, stop_now)   what they do, also for those that came before
    """

    def __init__(self, job: str, *, raises_at: int = _ON_SPARK_RAISES_AT) -> None:
        self._job = job
        self._raises_at = raises_at
        self._came = 0
        self._acted = 0
        self._queue: SimpleQueue[signal.Signals | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._first: Callable[[], None] = _nothing
        self._again: Callable[[], None] = _nothing
        self._says = "stops"

    @property
    def has_come(self) -> bool:
        """Return whether there was a signal."""
        return self._came > 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals while the body runs; what handled them before does so again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        listener = threading.Thread(
            target=self._listen, name="penstock-signals", daemon=True
        )
        listener.start()
        before: dict[signal.Signals, Any] = {}
        try:
            for number in STOP_SIGNALS:
                # None is a handler that was not installed by Python and cannot be put back.
                if signal.getsignal(number) not in {signal.SIG_IGN, None}:
                    before[number] = signal.signal(number, self._handle)
            yield
        except StoppedNow:
            # Raised where nothing was left to stop.
            raise KeyboardInterrupt from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._queue.put(None)

    def direct(
        self,
        first: Callable[[], None],
        again: Callable[[], None],
        says: str = "stops after a checkpoint; once more stops it at once",
    ) -> None:
        """Say what signals do from here on; what came before is made up for at once.

        `says` is what the first one tells the user that the job does.
        """
        with self._lock:
            self._first, self._again, self._says = first, again, says
            if self._acted >= 1:
                first()
            if self._acted >= 2:
                again()

    @contextmanager
    def redirected(self) -> Iterator[None]:
        """Let the body `direct` signals elsewhere; afterwards they do what they did before."""
        before = self._first, self._again, self._says
        try:
            yield
        finally:
            self.direct(*before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._came += 1
        self._queue.put(signal.Signals(number))
        if self._came >= self._raises_at:
            raise StoppedNow

    def _listen(self) -> None:
        while (number := self._queue.get()) is not None:
            with self._lock:
                self._acted += 1
                is_first = self._acted == 1
                _log.warning(
                    "%s: job %r %s",
                    number.name,
                    self._job,
                    self._says if is_first else "stops at once",
                )
                (self._first if is_first else self._again)()
