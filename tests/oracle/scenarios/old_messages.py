"""Produce 0 to 2 and Fetch 0 to 3 with messages of magic 0 and 1: what clients before Kafka 0.11 send."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import Codec, deflate, inflate
from kbroker.protocol.records import encode_batch, read_batches
from tests.kit.models import message_set as model
from tests.kit.models.message_set import CODEC, LOG_APPEND_TIME, Message
from tests.oracle.scenario import Talk, scenario
from tests.oracle.scenarios.fetch import one
from tests.oracle.scenarios.produce import INFLATED_LIMIT, what_is_there
from tests.oracle.scenarios.records import delete_before
from tests.oracle.scenarios.requests import T0, fetch, produce, records

PRODUCE, FETCH = ApiKey.PRODUCE, ApiKey.FETCH
CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
NEWEST_PRODUCE, NEWEST_FETCH = 2, 3


def some(count: int = 3, magic: int = 1, first: int = 0, size: int = 10) -> list[Message]:
    """Return messages a millisecond apart, some with null keys or null values."""
    return [
        Message(
            n,
            T0 + n if magic else -1,
            None if n % 3 == 1 else b"k%d" % n,
            None if n % 3 == 2 else (b"%06d" % n).ljust(size, b"."),
            magic,
        )
        for n in range(first, first + count)
    ]


def flat(count: int = 3, magic: int = 1, first: int = 0, size: int = 10) -> bytes:
    return model.encode_set(some(count, magic, first, size))


def wrapped(
    payload: bytes, codec: int, magic: int = 1, offset: int = 0, timestamp: int = T0, attributes: int = 0
) -> bytes:
    """Return a compressed message of any content, whatever codec its attributes name."""
    value = deflate(codec, payload, magic=magic) if codec in list(Codec) else payload
    return model.encode(Message(offset, timestamp, None, value, magic, attributes | codec))


def compressed(codec: int, count: int = 3, magic: int = 1, size: int = 10) -> bytes:
    return wrapped(flat(count, magic, size=size), codec, magic, count - 1)


def with_body(body: bytes, offset: int = 0) -> bytes:
    """Return a message with a right CRC and any bytes from its magic on."""
    return model.framed(offset, body)


def every_message(t: Talk, topic: str, offset: int = 0, max_bytes: int = 1 << 20) -> Iterator[Message]:
    """Yield what a consumer of this version sees: it asks again from there on, and ignores earlier messages."""
    while True:
        request = fetch([one(t, topic, offset=offset, max_bytes=max_bytes)], max_bytes=max_bytes)
        (answer,) = t.do(request, t.version).responses[0].partitions
        t.must(answer.error_code, f"reading {topic} from {offset}")
        seen = [message for message in messages_in(bytes(answer.records or b"")) if message.offset >= offset]
        if not seen:
            return
        yield from seen
        offset = seen[-1].offset + 1


def messages_in(data: bytes) -> Iterator[Message]:
    """Return the messages, also those in compressed ones, with absolute offsets. A cut message is left out."""
    while len(data) >= 26 and 12 + int.from_bytes(data[8:12]) <= len(data):
        message, data = model.decode_one(data)
        codec = message.attributes & CODEC
        if codec:
            inner = inflate(codec, message.value or b"", 1 << 27, magic=message.magic)
            yield from model.decode_set(inner, message)
        else:
            yield message


def note_all(t: Talk, topic: str, offset: int = 0, max_bytes: int = 1 << 20) -> None:
    now = "<now>"
    t.note(
        f"messages of {topic.rsplit('-', 1)[1]} from {offset}",
        [
            (m.offset, now if m.timestamp > T0 + 10**9 else m.timestamp, m.key, m.value, m.magic, m.attributes)
            for m in every_message(t, topic, offset, max_bytes)
        ],
    )


# --- Produce ----------------------------------------------------------------------------------------------------------


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def messages_of_every_kind(t: Talk) -> None:
    for magic in (0, 1):
        topic = t.topic(f"magic{magic}")
        for count in (1, 3):
            t.ask(produce(topic, flat(count, magic)))
            for codec in CODECS:
                t.ask(produce(topic, compressed(codec, count, magic)))
        what_is_there_inflated(t, topic)


def what_is_there_inflated(t: Talk, topic: str) -> None:
    """Compare the records of the log, inflated: compressed bytes differ between libraries."""
    request = fetch([one(t, topic)])
    answer = t.do(request, 12).responses[0].partitions[0]
    now = "<now>"
    t.note(
        f"batches of {topic.rsplit('-', 1)[1]}",
        [
            (
                batch.info.base_offset,
                batch.info.attributes,
                [
                    (r.offset, now if r.timestamp > T0 + 10**9 else r.timestamp, r.key, r.value, len(r.headers))
                    for r in batch.records()
                ],
            )
            for batch in read_batches(answer.records or b"")
        ],
    )


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def messages_without_acks(t: Talk) -> None:
    topic = t.topic()
    t.send(produce(topic, flat(), acks=0))
    t.ask(produce(topic, compressed(Codec.GZIP), acks=1))


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def offsets_that_producers_made_up(t: Talk) -> None:
    """Brokers replace the offsets of producers; inside a compressed message of magic 1 they should be 0, 1, 2..."""
    topic = t.topic()
    for magic in (0, 1):
        for offsets in ((0, 0, 0), (-1, -1, -1), (5, 6, 7), (2, 1, 0), (0, 2, 4), (1 << 40, 3, 1 << 62)):
            made = [Message(offset, T0 if magic else -1, b"k", b"v", magic) for offset in offsets]
            t.ask(produce(topic, model.encode_set(made)))
            for wrapper in (0, 2, -1, 100):
                t.ask(produce(topic, wrapped(model.encode_set(made), Codec.GZIP, magic, wrapper)))
    what_is_there_inflated(t, topic)


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def messages_with_wrong_checksums(t: Talk) -> None:
    topic = t.topic()
    for magic in (0, 1):
        good = flat(2, magic)
        first = len(model.encode(some(1, magic)[0]))
        for at in (14, 17, first - 1, first + 14, len(good) - 1):
            broken = bytearray(good)
            broken[at] ^= 1
            t.ask(produce(topic, bytes(broken)))
            t.ask(produce(topic, wrapped(bytes(broken), Codec.GZIP, magic, 1)))
        broken = bytearray(compressed(Codec.GZIP, magic=magic))
        broken[-1] ^= 1
        t.ask(produce(topic, bytes(broken)))
    what_is_there_inflated(t, topic)


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def messages_cut_short(t: Talk) -> None:
    topic = t.topic()
    for magic in (0, 1):
        single = flat(1, magic)
        for size in (1, 11, 12, 17, 18, len(single) - 1):
            t.ask(produce(topic, single[:size]))
        t.ask(produce(topic, flat(3, magic)[:-1]))
        t.ask(produce(topic, compressed(Codec.GZIP, magic=magic)[:-1]))
        t.ask(produce(topic, wrapped(flat(3, magic)[:-1], Codec.GZIP, magic, 2)))
        t.ask(produce(topic, wrapped(single[:-1], Codec.GZIP, magic)))
    what_is_there_inflated(t, topic)


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def message_sizes_that_lie(t: Talk) -> None:
    topic = t.topic()
    for magic, smallest in ((0, 14), (1, 22)):
        single = flat(1, magic)
        for size in (-1, 0, 13, smallest - 1, smallest, 2**31 - 1, len(single) - 13, len(single) - 11):
            broken = bytearray(single)
            struct.pack_into(">i", broken, 8, size)
            t.ask(produce(topic, bytes(broken)))
            t.ask(produce(topic, wrapped(bytes(broken), Codec.GZIP, magic)))


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def keys_and_values_whose_sizes_lie(t: Talk) -> None:
    topic = t.topic()
    for key, value in ((-2, 1), (100, 1), (1, -2), (1, 100), (1, 0), (0, 1), (2**31 - 1, 1)):
        body = b"\0\0" + struct.pack(">i", key) + b"k" + struct.pack(">i", value) + b"v"
        t.ask(produce(topic, with_body(body)))
    t.ask(produce(topic, with_body(b"\0\0" + struct.pack(">ii", -1, -1) + b"behind")))


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def messages_of_magic_and_attributes_nobody_knows(t: Talk) -> None:
    topic = t.topic()
    for magic in (3, 127, 255):
        t.ask(produce(topic, with_body(bytes([magic, 0]) + struct.pack(">qi", T0, -1) + model.sized(b"v"))))
    for attributes in (0x10, 0x80, LOG_APPEND_TIME, 5, 7):
        for old in (0, 1):
            t.ask(produce(topic, model.encode(Message(0, T0 if old else -1, b"k", b"v", old, attributes))))
    what_is_there_inflated(t, topic)


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def messages_nested_and_mixed(t: Talk) -> None:
    topic = t.topic()
    for magic in (0, 1):
        twice = wrapped(compressed(Codec.GZIP, magic=magic), Codec.GZIP, magic)
        t.ask(produce(topic, twice))
        t.ask(produce(topic, wrapped(flat(1, magic) + compressed(Codec.SNAPPY, magic=magic), Codec.GZIP, magic, 1)))
        t.ask(produce(topic, flat(1, magic) + compressed(Codec.GZIP, magic=magic)))
        t.ask(produce(topic, compressed(Codec.GZIP, magic=magic) + flat(1, magic)))
        t.ask(produce(topic, compressed(Codec.GZIP, magic=magic) + compressed(Codec.LZ4, magic=magic)))
        t.ask(produce(topic, flat(2, magic) + flat(1, 1 - magic)))
        t.ask(produce(topic, wrapped(flat(1, 1 - magic), Codec.GZIP, magic)))
        t.ask(produce(topic, wrapped(flat(1, magic) + flat(1, 1 - magic), Codec.GZIP, magic, 1)))
        t.ask(produce(topic, flat(1, magic) + records(1)))
        t.ask(produce(topic, wrapped(records(1), Codec.GZIP, magic)))
        t.ask(produce(topic, records(1) + flat(1, magic)))
    what_is_there_inflated(t, topic)


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def compressed_messages_of_nothing(t: Talk) -> None:
    topic = t.topic()
    for magic in (0, 1):
        t.ask(produce(topic, wrapped(b"", Codec.GZIP, magic)))
        t.ask(produce(topic, model.encode(Message(0, T0, None, None, magic, 1))))
        t.ask(produce(topic, model.encode(Message(0, T0, b"key", b"", magic, 1))))
        t.ask(produce(topic, model.encode(Message(0, T0, None, b"rubbish that is no gzip", magic, 1))))


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def zstd_in_messages(t: Talk) -> None:
    topic = t.topic()
    for magic in (0, 1):
        t.ask(produce(topic, compressed(Codec.ZSTD, magic=magic)))


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def framings_of_snappy_and_lz4(t: Talk) -> None:
    """Snappy with and without the framing of Java; lz4 with the wrong check sum of old Kafkas and the right one."""
    topic = t.topic()
    for magic in (0, 1):
        plain = flat(3, magic)
        for raw in (snappy_raw(plain), deflate(Codec.SNAPPY, plain)):
            t.ask(produce(topic, model.encode(Message(2, T0, None, raw, magic, Codec.SNAPPY))))
        for made_for in (0, 1):
            frame = deflate(Codec.LZ4, plain, magic=made_for)
            t.ask(produce(topic, model.encode(Message(2, T0, None, frame, magic, Codec.LZ4))))
    what_is_there_inflated(t, topic)


def snappy_raw(data: bytes) -> bytes:
    """Return snappy of literals only, which needs no library."""
    made, size = bytearray(), len(data)
    while size >= 128:
        made.append(size & 127 | 128)
        size >>= 7
    made.append(size)
    for at in range(0, len(data), 60):
        part = data[at : at + 60]
        made.append((len(part) - 1) << 2)
        made += part
    return bytes(made)


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def messages_too_large(t: Talk) -> None:
    topic = t.topic(max_message_bytes=300)
    for magic in (0, 1):
        t.ask(produce(topic, flat(1, magic, size=400)))
        t.ask(produce(topic, flat(1, magic, size=200)))
        t.ask(produce(topic, flat(3, magic, size=150)))
        t.ask(produce(topic, compressed(Codec.GZIP, 3, magic, size=150)))
        t.ask(produce(topic, flat(1, magic) + flat(1, magic, size=400)))


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def messages_that_inflate_too_far(t: Talk) -> None:
    topic = t.topic()
    for magic in (0, 1):
        for codec in CODECS:
            bomb = model.encode(Message(0, T0, b"k", bytes(INFLATED_LIMIT + 1), magic))
            t.ask(produce(topic, wrapped(bomb, codec, magic)))


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def times_of_messages(t: Talk) -> None:
    """The timestamps inside a compressed message count, unless the topic uses the broker's time."""
    for kind in ("CreateTime", "LogAppendTime"):
        topic = t.topic(kind, message_timestamp_type=kind)
        for magic in (0, 1):
            t.ask(produce(topic, flat(3, magic)))
            t.ask(produce(topic, wrapped(flat(3, magic), Codec.GZIP, magic, 2, timestamp=T0 + 500)))
            t.ask(produce(topic, wrapped(flat(3, magic), Codec.GZIP, magic, 2, T0 + 500, LOG_APPEND_TIME)))
        t.ask(produce(topic, model.encode(Message(0, -1, b"k", b"v", 1))))
        t.ask(produce(topic, model.encode(Message(0, -5, b"k", b"v", 1))))
        what_is_there_inflated(t, topic)


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def a_message_that_claims_the_time_of_the_broker(t: Talk) -> None:
    for kind in ("CreateTime", "LogAppendTime"):
        topic = t.topic(kind, message_timestamp_type=kind)
        t.ask(produce(topic, model.encode(Message(0, T0, b"k", b"v", 1, LOG_APPEND_TIME))))


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def times_of_messages_out_of_range(t: Talk) -> None:
    before = t.topic("before", message_timestamp_before_max_ms=1000)
    after = t.topic("after", message_timestamp_after_max_ms=1000)
    late = [Message(0, 4_000_000_000_000, b"k", b"v", 1)]
    for magic in (0, 1):
        t.ask(produce(before, flat(3, magic)))
        t.ask(produce(before, compressed(Codec.GZIP, magic=magic)))
    t.ask(produce(after, model.encode_set(late)))
    t.ask(produce(after, wrapped(model.encode_set(late), Codec.LZ4)))
    t.ask(produce(after, flat()))


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def messages_without_a_key_into_a_compacted_topic(t: Talk) -> None:
    topic = t.topic(cleanup_policy="compact")
    for magic in (0, 1):
        keyed = [Message(n, T0, b"k%d" % n, b"v", magic) for n in range(2)]
        keyless = [*keyed, Message(2, T0, None, b"v", magic)]
        for made in (keyed, keyless):
            t.ask(produce(topic, model.encode_set(made)))
            t.ask(produce(topic, wrapped(model.encode_set(made), Codec.GZIP, magic, len(made) - 1)))
    what_is_there_inflated(t, topic)


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def messages_to_a_topic_with_a_codec(t: Talk) -> None:
    for codec in ("uncompressed", "gzip", "snappy", "lz4", "zstd"):
        topic = t.topic(codec, compression_type=codec)
        for magic in (0, 1):
            t.ask(produce(topic, flat(3, magic)))
            t.ask(produce(topic, compressed(Codec.LZ4, magic=magic)))
        what_is_there_inflated(t, topic)


@scenario(PRODUCE, until=NEWEST_PRODUCE)
def bad_messages_beside_good_ones(t: Talk) -> None:
    broken = bytearray(flat())
    broken[-1] ^= 1
    bad = {
        "crc": bytes(broken),
        "nested": wrapped(compressed(Codec.GZIP), Codec.GZIP),
        "zstd": compressed(Codec.ZSTD),
        "rubbish": model.encode(Message(0, T0, None, b"no gzip", 1, 1)),
        "two": compressed(Codec.GZIP) + flat(),
    }
    for word, made in bad.items():
        topic = t.topic(word, 2)
        t.ask(produce(topic, made, flat()))
        t.ask(produce(topic, flat(), made))


@scenario(PRODUCE, since=3, until=4)
def messages_where_batches_belong(t: Talk) -> None:
    topic = t.topic()
    for magic in (0, 1):
        t.ask(produce(topic, flat(3, magic)))
        t.ask(produce(topic, compressed(Codec.GZIP, magic=magic)))
    what_is_there(t, topic)


@scenario(PRODUCE, since=3, until=6)
def zstd_before_its_version(t: Talk) -> None:
    topic = t.topic()
    t.ask(produce(topic, records(codec=Codec.ZSTD)))
    t.ask(produce(topic, records()))


# --- Fetch ------------------------------------------------------------------------------------------------------------


def fill(t: Talk, topic: str, codecs: Iterable[int] = (0, *CODECS)) -> None:
    """Batches of every codec, with null keys and values and with headers."""
    for codec in codecs:
        made = [
            (T0 + n, None if n == 1 else b"k%d" % n, None if n == 2 else b"v" * 30, [("h", b"x"), ("n", None)])
            for n in range(4)
        ]
        t.produce(topic, encode_batch(made, codec=codec))  # type: ignore[arg-type]


@scenario(FETCH, until=NEWEST_FETCH)
def converted_to_the_end(t: Talk) -> None:
    topic = t.topic()
    fill(t, topic)
    for offset in (0, 2, 4, 6, 9, 14, 15, 16):
        note_all(t, topic, offset)
        t.ask(fetch([one(t, topic, offset=offset)]))
    t.ask(fetch([one(t, topic, offset=17)]))


@scenario(FETCH, until=NEWEST_FETCH)
def converted_piece_by_piece(t: Talk) -> None:
    """A fetch has room for little more than one batch, so that the client asks again and again."""
    topic = t.topic()
    for first in range(0, 60, 3):
        t.produce(topic, records(3, 100, first))
    for max_bytes in (450, 1000, 4000):
        note_all(t, topic, 1, max_bytes)


@scenario(FETCH, until=NEWEST_FETCH)
def converted_across_segments(t: Talk) -> None:
    topic = t.topic(segment_bytes=500)
    t.produce(topic, *(records(1, 100, first=n) for n in range(8)))
    note_all(t, topic)


@scenario(FETCH, until=NEWEST_FETCH)
def converted_behind_deleted_records(t: Talk) -> None:
    topic = t.topic()
    fill(t, topic)
    t.do(delete_before({topic: [(0, 6)]}))
    t.ask(fetch([one(t, topic, offset=5)]))
    note_all(t, topic, 6)


@scenario(FETCH, until=NEWEST_FETCH)
def converted_with_the_time_of_the_broker(t: Talk) -> None:
    topic = t.topic(message_timestamp_type="LogAppendTime")
    fill(t, topic)
    note_all(t, topic)


@scenario(FETCH)
def conversion_that_is_forbidden(t: Talk) -> None:
    topic = t.topic(message_downconversion_enable="false")
    t.ask(fetch([one(t, topic)]))
    t.produce(topic, records(3))
    t.ask(fetch([one(t, topic)]))
    t.ask(fetch([one(t, topic, offset=99)]))


@scenario(FETCH, until=NEWEST_FETCH)
def zstd_among_other_batches(t: Talk) -> None:
    topic = t.topic()
    fill(t, topic, (Codec.GZIP, Codec.ZSTD, Codec.GZIP))
    t.ask(fetch([one(t, topic)]))
    t.ask(fetch([one(t, topic, offset=4)]))
    t.ask(fetch([one(t, topic, offset=8)]))


@scenario(FETCH, until=NEWEST_FETCH)
def a_batch_of_a_producer_with_an_id(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records(3, producer_id=9, producer_epoch=0, base_sequence=0))
    note_all(t, topic)


@scenario(FETCH, until=NEWEST_FETCH)
def what_old_producers_sent(t: Talk) -> None:
    topic = t.topic()
    for magic in (0, 1):
        for made in (flat(3, magic), *(compressed(codec, 3, magic) for codec in CODECS)):
            t.do(produce(topic, made), NEWEST_PRODUCE)
    note_all(t, topic)


@scenario(FETCH, until=NEWEST_FETCH)
def a_long_poll_for_messages_is_woken(t: Talk) -> None:
    topic = t.topic()
    waiting = t.send(fetch([one(t, topic)], max_wait_ms=20000))
    t.still_waits(waiting, 30)
    t.produce(topic, records(1))
    t.receive(waiting)
