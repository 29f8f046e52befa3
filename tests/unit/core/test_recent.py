"""Recent values: kept while they are used, forgotten after a while and by number."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from penstock.state.files.cache import Recent


class Seconds:
    """A monotonic clock moved by hand."""

    def __init__(self) -> None:
        self.value = 0.0

    def __call__(self) -> float:
        return self.value


def test_a_value_that_is_used_stays() -> None:
    now = Seconds()
    recent: Recent[str, int] = Recent(100, seconds=10, now=now)
    recent.put("used", 1)
    recent.put("unused", 2)
    for _ in range(5):
        now.value += 10
        recent.put(f"other {now.value}", 3)
        assert recent.get("used") == 1
    assert recent.get("unused") is None


def test_what_comes_and_goes_does_not_pile_up() -> None:
    now = Seconds()
    recent: Recent[int, int] = Recent(1_000_000, seconds=10, now=now)
    for number in range(10_000):
        now.value += 0.1
        recent.put(number, number)
    assert len(recent) <= 201


def test_it_holds_at_most_two_turns_of_its_limit() -> None:
    recent: Recent[int, int] = Recent(4, now=Seconds())
    for number in range(100):
        recent.put(number, number)
        assert recent.get(number) == number
        assert len(recent) <= 8
    assert recent.get(96) == 96
    assert recent.get(80) is None


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 9), st.booleans(), st.floats(0, 5)), max_size=80
    )
)
def test_it_returns_what_was_put_last_or_nothing(
    steps: list[tuple[int, bool, float]],
) -> None:
    now = Seconds()
    recent: Recent[int, int] = Recent(3, seconds=4, now=now)
    put: dict[int, int] = {}
    for number, (key, is_put, seconds) in enumerate(steps):
        now.value += seconds
        if is_put:
            put[key] = recent.put(key, number)
        assert recent.get(key) in (None, put.get(key))


def test_threads_may_share_it() -> None:
    recent: Recent[int, int] = Recent(8, seconds=0.001)
    wrong: list[tuple[int, int | None]] = []

    def use(start: int) -> None:
        for number in range(start, start + 5_000):
            recent.put(number % 50, number % 50)
            found = recent.get((number * 7) % 50)
            if found not in (None, (number * 7) % 50):
                wrong.append((number, found))

    threads = [threading.Thread(target=use, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(recent) <= 16 + len(threads)
