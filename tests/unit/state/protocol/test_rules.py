import pytest

from penstock.state.protocol.records import RULES, ProtocolRules


@pytest.mark.parametrize(
    ("slot", "epoch", "may"),
    [(7, 10, False), (8, 10, True), (10, 10, True), (11, 10, False)],
)
def test_an_epoch_adopts_files_from_its_window_only(
    slot: int, epoch: int, may: bool
) -> None:
    assert ProtocolRules(adoption_window=2).may_adopt(slot, epoch) is may


def test_what_a_sweep_may_delete_no_later_epoch_may_adopt() -> None:
    newest = 5000
    swept = newest - RULES.adoption_window
    assert not RULES.may_adopt(swept, newest + 1)
    assert RULES.may_adopt(swept + 1, newest + 1)
