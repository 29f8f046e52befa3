"""Signals as a program in a terminal has them: whoever starts the tests may ignore some."""

import signal
import threading
from collections.abc import Iterator

import pytest

from penstock.runtime.driver.signals import STOP_SIGNALS


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    """Let no signal be ignored: a shell without job control starts its background jobs so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, usual)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
