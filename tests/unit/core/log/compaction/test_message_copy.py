"""Compaction of messages of magic 0 and 1: what is fed, what stays, how a compressed one is written anew."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kbroker._core.log.compaction.dedupe_map import DedupeMap
from kbroker._core.log.compaction.segment_copy import SegmentCopy, copy_segment, feed_map
from kbroker._core.wire.record_batch import InvalidBatch
from kbroker.protocol.compression import Codec, deflate, inflate_shared
from tests.kit.models.message_set import LOG_APPEND_TIME, Message, decode_one, decode_set, encode, encode_set

OLD_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
ROOM = 24 * 1000


def inflated(codec: int, data: memoryview, magic: int = 2, /) -> memoryview:
    return inflate_shared(codec, data, 1 << 20, magic=magic)


def deflated(codec: int, data: bytes, magic: int = 2, /) -> bytes:
    return deflate(codec, data, magic=magic)


def fed(log: bytes, start_offset: int = 0, room: int = ROOM) -> DedupeMap:
    found = DedupeMap(room, 1)
    feed_map(log, found, inflate=inflated, start_offset=start_offset)
    return found


def copied(log: bytes, found: DedupeMap | None = None, *, retain: bool = True) -> SegmentCopy:
    return copy_segment(
        log, fed(log) if found is None else found, inflate=inflated, deflate=deflated, now_ms=1000,
        delete_retention_ms=0, retain_old_tombstones=retain,
    )  # fmt: skip


def wrapped(messages: Sequence[Message], codec: Codec, attributes: int = 0) -> bytes:
    """Return one compressed message as Kafka stores it: with the last offset, and inner offsets by its magic."""
    magic, last = messages[0].magic, messages[-1].offset
    base = messages[0].offset if magic else 0
    inner = encode_set([replace(each, offset=each.offset - base) for each in messages])
    stamp = max(each.timestamp for each in messages)
    return encode(Message(last, stamp, None, deflate(codec, inner, magic=magic), magic, codec | attributes))


def unwrapped(log: bytes) -> list[Message]:
    """Every message, with the offset and the timestamp that a consumer sees."""
    found: list[Message] = []
    while log:
        outer, log = decode_one(log)
        codec = outer.attributes & 7
        if not codec:
            found.append(outer)
            continue
        assert outer.value is not None
        plain = bytes(inflated(codec, memoryview(outer.value), outer.magic))
        assert outer.magic == 0 or decode_set(plain)[0].offset == 0
        stamped = outer.attributes & LOG_APPEND_TIME
        found += [
            replace(each, timestamp=outer.timestamp if stamped else each.timestamp) for each in decode_set(plain, outer)
        ]
    return found


def some_log(codec: Codec, magic: int, seed: int) -> tuple[bytes, list[Message]]:
    chance = random.Random(seed)
    log, messages, offset = b"", [], 3
    for _ in range(30):
        group = []
        for _ in range(chance.randrange(1, 6)):
            key = chance.choice([None, b"", b"a", b"b", b"c", b"d", b"e"])
            value = chance.choice([None, b"", b"value" * chance.randrange(20)])
            group.append(Message(offset, 1000 + offset if magic else -1, key, value, magic))
            offset += chance.choice((1, 1, 2))
        messages += group
        log += wrapped(group, codec) if codec else encode_set(group)
    return log, messages


@pytest.mark.parametrize("retain", [True, False])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_the_newest_of_each_key_stays_in_its_magic(codec: Codec, magic: int, retain: bool) -> None:
    for seed in range(10):
        log, messages = some_log(codec, magic, seed)
        found = fed(log)
        newest = {each.key: each.offset for each in messages if each.key is not None}
        assert found.latest_offset == messages[-1].offset
        assert {key: found.get(key) for key in newest} == newest
        expected = [
            each
            for each in messages
            if each.key is not None and newest[each.key] == each.offset and (each.value is not None or retain)
        ]
        made = copied(log, found, retain=retain)
        assert unwrapped(made.output) == expected
        assert (made.records_read, made.records_kept) == (len(messages), len(expected))
        assert copied(made.output, found, retain=retain).output == made.output


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS[1:])
def test_a_set_of_which_nothing_goes_is_copied_as_it_lies(codec: Codec, magic: int) -> None:
    log = wrapped([Message(5, 7, b"a", b"1", magic), Message(9, 6, b"b", None, magic)], codec)
    assert copied(log).output == log
    assert copied(log, fed(log), retain=False).output != log


def test_a_set_with_the_time_of_its_append_keeps_it() -> None:
    messages = [Message(at, 7, key, b"v", 1, LOG_APPEND_TIME) for at, key in enumerate((b"a", b"b", b"a"))]
    made = copied(wrapped(messages, Codec.GZIP, LOG_APPEND_TIME)).output
    outer, rest = decode_one(made)
    assert rest == b""
    assert (outer.timestamp, outer.attributes & LOG_APPEND_TIME) == (7, LOG_APPEND_TIME)
    assert [(each.offset, each.timestamp, each.key) for each in unwrapped(made)] == [(1, 7, b"b"), (2, 7, b"a")]


def test_messages_beyond_the_map_stay() -> None:
    log = encode_set([Message(at, 1, b"%d" % (at % 3), b"v") for at in range(12)])
    found = fed(log, room=24 * 3)
    assert found.latest_offset == 1
    assert [each.offset for each in unwrapped(copied(log, found).output)] == list(range(12))
    assert fed(log, start_offset=6).get(b"0") == 9


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_damage_is_refused_and_a_message_cut_off_is_left(codec: Codec, magic: int) -> None:
    log, _ = some_log(codec, magic, 1)
    size = len(encode(decode_one(log)[0]))
    for cut in range(size):
        assert copied(log[:cut], DedupeMap(ROOM)).taken == 0
    for at in range(16, size):
        broken = log[:at] + bytes([log[at] ^ 1]) + log[at + 1 :]
        with pytest.raises(InvalidBatch):
            fed(broken)
        with pytest.raises(InvalidBatch):
            copied(broken, DedupeMap(ROOM))


@pytest.mark.parametrize("codec", OLD_CODECS[1:])
def test_offsets_inside_that_lie_are_refused(codec: Codec) -> None:
    inner = encode_set([Message(3, 1, b"a", b"1"), Message(2, 1, b"b", b"1")])
    backwards = encode(Message(3, 1, None, deflate(codec, inner), 1, codec))
    nested = encode(Message(3, 1, None, deflate(codec, backwards), 1, codec))
    bomb = encode(Message(0, 1, None, deflate(codec, encode(Message(0, 1, b"k", bytes(2 << 20)))), 1, codec))
    cut = encode(Message(3, 1, None, deflate(codec, inner[:-1]), 1, codec))
    for log in (backwards, nested, bomb, cut):
        with pytest.raises(InvalidBatch):
            fed(log)
        with pytest.raises(InvalidBatch):
            copied(log, DedupeMap(ROOM))
