from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.nexmark.draws import EventKind, EventSequence

SEQUENCES = st.builds(
    EventSequence,
    persons=st.integers(1, 3),
    auctions=st.integers(1, 3),
    bids=st.integers(1, 5),
    kind=st.sampled_from(EventKind),
)


@given(SEQUENCES, st.integers(0, 200), st.integers(1, 5))
def test_splits_share_the_emitted_events_before_a_number(
    sequence: EventSequence, number: int, split_count: int
) -> None:
    taken = [
        event
        for index in range(split_count)
        for event in sequence.numbers(
            index, split_count, 0, sequence.rows_below(number, index, split_count)
        ).tolist()
    ]

    assert sorted(taken) == [
        event for event in range(number) if event % sequence.group_size in sequence.emitted
    ]


@given(SEQUENCES, st.integers(0, 50), st.integers(0, 50), st.integers(0, 3))
def test_any_range_of_a_split_can_be_made_by_itself(
    sequence: EventSequence, start: int, length: int, index: int
) -> None:
    whole = sequence.numbers(index, 4, 0, start + length)

    part = sequence.numbers(index, 4, start, start + length)

    assert part.tolist() == whole[start:].tolist()


def test_a_split_takes_whole_groups_in_turn() -> None:
    sequence = EventSequence(1, 3, 46, EventKind.AUCTIONS)

    assert sequence.numbers(1, 3, 0, 6).tolist() == [51, 52, 53, 201, 202, 203]
