"""Laws of watermarks: whatever inputs say in whatever order, nobody is promised too much."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.watermark import (
    IDLE,
    MAX_EVENT_TIME,
    MAX_MICROS,
    EventTime,
    Idle,
    InputWatermark,
    Watermark,
    advance,
    event_time_of,
    has_ended,
    merge,
    merge_subtasks,
)

event_times = st.integers(-5, 20).map(EventTime)
ends = st.builds(
    EventTime, st.just(MAX_MICROS), reached_micros=st.none() | st.integers(-5, 20)
)
going_on: st.SearchStrategy[Watermark] = st.one_of(event_times, st.just(IDLE))
spoken: st.SearchStrategy[Watermark] = st.one_of(going_on, ends)
watermarks: st.SearchStrategy[Watermark | None] = st.one_of(st.none(), spoken)
NOTHING = InputWatermark()


def told(watermark: Watermark | None) -> tuple[Watermark | None, int | None]:
    """Return a watermark with what it tells beside its instant, which `==` leaves out."""
    reached = watermark.reached_micros if isinstance(watermark, EventTime) else None
    return watermark, reached


def histories(
    said: st.SearchStrategy[Watermark | None],
) -> st.SearchStrategy[list[tuple[Watermark | None, ...]]]:
    """What one to three inputs say, epoch by epoch."""
    return st.integers(1, 3).flatmap(
        lambda count: st.lists(st.tuples(*[said] * count), min_size=1, max_size=8)
    )


@given(st.lists(watermarks, max_size=6), st.randoms(use_true_random=False))
def test_merging_does_not_depend_on_the_order(
    latest: list[Watermark | None], random: object
) -> None:
    shuffled = latest.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined] # a random.Random
    assert told(merge(shuffled)) == told(merge(latest))


@given(st.lists(st.lists(watermarks, min_size=1, max_size=3), min_size=1, max_size=3))
def test_merging_in_groups_is_merging_at_once(groups: list[list[Watermark | None]]) -> None:
    together = [watermark for group in groups for watermark in group]
    assert told(merge(merge(group) for group in groups)) == told(merge(together))


@given(st.lists(watermarks, max_size=6))
def test_merging_says_nothing_while_one_is_silent(latest: list[Watermark | None]) -> None:
    assert merge([*latest, None]) is None


@given(st.lists(spoken, max_size=5), event_times)
def test_idle_and_ended_inputs_do_not_hold_the_others_back(
    latest: list[Watermark], active: EventTime
) -> None:
    assert merge([*latest, IDLE, active]) == merge([*latest, active])
    assert merge([*latest, MAX_EVENT_TIME, active]) == merge([*latest, active])


@given(st.lists(st.sampled_from([IDLE, MAX_EVENT_TIME]), max_size=5))
def test_all_idle_is_idle_and_an_end_needs_everybody(latest: list[Watermark]) -> None:
    """An idle input may wake up, so an ended one beside it does not end the whole."""
    merged = merge(latest)
    expected = MAX_EVENT_TIME if latest and IDLE not in latest else IDLE
    assert merged == expected


@given(histories(watermarks))
def test_event_time_never_goes_back_and_is_promised_by_everybody(
    epochs: list[tuple[Watermark | None, ...]],
) -> None:
    inputs = (NOTHING,) * len(epochs[0])
    heard: list[Watermark] = []
    ended: set[int] = set()
    for said in epochs:
        before = event_time_of(inputs)
        moved = advance(inputs, said)
        ended |= {i for i, watermark in enumerate(said) if watermark == MAX_EVENT_TIME}
        now = moved.event_time
        assert before is None or (now is not None and now >= before)
        if isinstance(moved.watermark, EventTime):
            assert now == moved.watermark
            heard.append(moved.watermark)
        # Only an input that said so has ended, and only all together end the operator.
        assert moved.has_ended == (len(ended) == len(said))
        for index, known in enumerate(moved.inputs):
            assert (known.event_time_micros == MAX_EVENT_TIME.micros) == (index in ended)
        inputs = moved.inputs
    assert heard == sorted(heard, key=_micros)


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=4).flatmap(
        lambda last: st.tuples(st.just(last), st.permutations(range(len(last))))
    )
)
def test_how_far_event_time_came_does_not_depend_on_which_input_ends_last(
    drawn: tuple[list[int], list[int]],
) -> None:
    last, order = drawn
    inputs = advance((NOTHING,) * len(last), [EventTime(micros) for micros in last]).inputs
    for index in order:
        assert event_time_of(inputs) != MAX_EVENT_TIME
        said: list[Watermark] = [EventTime(micros) for micros in last]
        said[index] = EventTime(MAX_MICROS, last[index])
        inputs = advance(inputs, said).inputs
    assert told(event_time_of(inputs)) == (MAX_EVENT_TIME, max(last))


@given(histories(watermarks), spoken)
def test_what_comes_back_from_idleness_takes_nothing_back(
    epochs: list[tuple[Watermark | None, ...]], woken: Watermark
) -> None:
    inputs = (NOTHING,) * len(epochs[0])
    for said in epochs:
        inputs = advance(inputs, said).inputs
    reached = event_time_of(inputs)
    moved = advance(inputs, (woken, *(None for _ in inputs[1:])))
    if reached is not None:
        first = moved.inputs[0].event_time_micros
        assert first is not None
        assert first >= reached.micros
    assert has_ended(moved.inputs) or not has_ended(inputs)


@given(st.data())
def test_subtasks_behind_a_forward_edge_agree_as_behind_an_exchange(
    data: st.DataObject,
) -> None:
    """Each advances by what its own producer said; the result is that of all producers' words."""
    count = data.draw(st.integers(1, 3), label="inputs")
    subtasks = data.draw(st.integers(1, 3), label="subtasks")
    known = exchanged = (NOTHING,) * count
    silent = {(task, i) for task in range(subtasks) for i in range(count)}
    ended: set[int] = set()
    for _ in range(data.draw(st.integers(1, 5), label="epochs")):
        # A source ends as a whole, and producers repeat themselves in every epoch.
        ended |= data.draw(st.sets(st.integers(0, count - 1), max_size=1), label="end")
        words: list[list[Watermark | None]] = [
            [
                data.draw(ends, label=f"end of input {i} of {task}")
                if i in ended
                else data.draw(
                    st.one_of(st.none(), going_on) if (task, i) in silent else going_on,
                    label=f"input {i} of {task}",
                )
                for i in range(count)
            ]
            for task in range(subtasks)
        ]
        silent = {(task, i) for task, i in silent if words[task][i] is None}
        known = merge_subtasks([advance(known, said).inputs for said in words])
        columns: Sequence[tuple[Watermark | None, ...]] = list(zip(*words, strict=True))
        exchanged = advance(exchanged, [merge(column) for column in columns]).inputs
        assert known == exchanged


def _micros(watermark: Watermark) -> int:
    assert not isinstance(watermark, Idle)
    return watermark.micros
