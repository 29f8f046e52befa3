from penstock.errors import did_you_mean


def test_a_close_name_is_suggested() -> None:
    assert did_you_mean("auctoin", ["price", "auction"]) == "; did you mean 'auction'?"


def test_without_a_close_name_all_are_listed_in_order() -> None:
    assert did_you_mean("zzz", ["price", "auction"]) == "; known are 'auction', 'price'"


def test_where_there_is_nothing_to_name_it_says_so() -> None:
    assert did_you_mean("zzz", []) == "; there are none"
