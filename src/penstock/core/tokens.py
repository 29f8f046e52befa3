"""Tokens: the only randomness in Penstock, drawn once per task attempt or driver."""

import secrets

from penstock.core.ids import Token


def new_token() -> Token:
    """Draw 128 random bits that no other attempt will ever share."""
    return Token(secrets.token_hex(16))
