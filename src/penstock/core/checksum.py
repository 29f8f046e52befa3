"""The checksum of durable bytes: XXH3 with 64 bits, the same on every machine."""

from typing import TypeAlias

import xxhash

Readable: TypeAlias = bytes | bytearray | memoryview


def checksum_of(data: Readable) -> int:
    """Return the checksum of all of `data`."""
    return xxhash.xxh3_64_intdigest(data)
