"""Java's String.hashCode, which decides where a group is kept."""

import pytest

from kbroker.rules.java_hash import java_string_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("group", 98629247),
        ("console-consumer-12345", 158455506),
        ("\U0001f600", 1772899),
        ("zażółć", 701064989),
        ("polygenelubricants", 0),  # the hash is -2**31, which has no absolute value
    ],
)
def test_the_hash_is_javas(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


def test_a_negative_hash_loses_its_sign() -> None:
    assert java_string_hash("__consumer_offsets") == 970371369
