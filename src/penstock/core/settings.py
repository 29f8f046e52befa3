"""Settings: the only reader of the environment and of the TOML file.

Precedence, highest first: a `PENSTOCK_…` variable, the TOML file, the default.
"""

import os
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be tuned without touching code."""

    hash_bits: int = 64


@cache
def current() -> Settings:
    """Return the settings of this process, read once."""
    return Settings(hash_bits=int(os.environ.get("PENSTOCK_HASH_BITS", "64")))
