from penstock.core.clock import new_token
from penstock.core.ids import Token


def test_tokens_are_valid_and_never_the_same() -> None:
    tokens = [new_token() for _ in range(1_000)]

    assert all(type(token) is Token for token in tokens)
    assert len(set(tokens)) == len(tokens)
