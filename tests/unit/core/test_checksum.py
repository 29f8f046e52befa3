import pytest

from penstock.core.ids import checksum_of


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"", 0x2D06800538D394C2), (b"a", 0xE6C632B61E964E1F), (b"abc", 0x78AF5F94892F3950)],
)
def test_checksums_are_those_of_the_published_xxh3(data: bytes, expected: int) -> None:
    assert checksum_of(data) == expected


def test_the_checksum_is_that_of_the_bytes_whatever_holds_them() -> None:
    data = bytes(range(256)) * 5

    assert (
        checksum_of(bytearray(data)) == checksum_of(memoryview(data)) == checksum_of(data)
    )


def test_any_changed_or_missing_byte_changes_the_checksum() -> None:
    data = bytes(range(200))
    damaged = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(200)]
    truncated = [data[:length] for length in range(200)]

    assert checksum_of(data) not in {checksum_of(one) for one in damaged + truncated}
