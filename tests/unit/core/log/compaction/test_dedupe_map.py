"""The map of compaction: the newest offset of each key in memory of a fixed size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.log.compaction.dedupe_map import DedupeMap, key_hash

SLOT_SIZE = 24


def test_the_hash_is_the_published_one() -> None:
    secret = bytes(range(16))
    assert key_hash(secret, b"") == bytes.fromhex("a3817f04ba25a8e66df67214c7550293")
    assert key_hash(secret, b"\0") == bytes.fromhex("da87c1d86b99af44347659119b22fc45")


def test_every_byte_and_the_length_of_a_key_matter_to_its_hash() -> None:
    keys = [bytes(size) for size in range(40)]
    keys += [bytes(at) + b"\1" + bytes(size - at - 1) for size in range(1, 40) for at in range(size)]
    assert len({key_hash(b"k" * 16, key) for key in keys}) == len(keys)


@given(
    st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 2**63 - 1)), max_size=200),
    st.integers(2, 60),
    st.floats(0.1, 1),
)
def test_it_is_a_dictionary_of_the_largest_offsets_until_it_is_full(
    puts: list[tuple[bytes, int]], slots: int, load_factor: float
) -> None:
    found = DedupeMap(slots * SLOT_SIZE, load_factor)
    assert 1 <= found.capacity < slots
    assert found.size == slots * SLOT_SIZE
    expected: dict[bytes, int] = {}
    for key, offset in puts:
        fits = key in expected or len(expected) < found.capacity
        assert found.enter(key, offset) == fits
        if fits:
            expected[key] = max(offset, expected.get(key, -1))
        assert len(found) == len(expected)
    for key, _ in puts:
        assert found.get(key) == expected.get(key, -1)
    found.clear(for_many=slots % 2 == 0)
    assert (len(found), found.latest_offset) == (0, -1)
    assert all(found.get(key) == -1 for key, _ in puts)


def test_two_maps_place_keys_by_secrets_of_their_own() -> None:
    keys = [b"%d" % number for number in range(64)]
    assert {key_hash(b"a" * 16, key) for key in keys}.isdisjoint(key_hash(b"b" * 16, key) for key in keys)


@pytest.mark.parametrize(
    ("size", "load_factor", "secret"),
    [(47, 0.9, None), (-1, 0.9, None), (480, 0.0, None), (480, 1.1, None), (480, 1, b"short")],
)
def test_a_map_without_room_or_sense_is_refused(size: int, load_factor: float, secret: bytes | None) -> None:
    with pytest.raises(ValueError, match=r"room|load factor|16 bytes"):
        DedupeMap(size, load_factor, secret)


def test_a_negative_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        DedupeMap(480).enter(b"k", -1)
