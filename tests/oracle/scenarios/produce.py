"""Produce: what is appended and what is refused. Idempotent producers are in `idempotence.py`."""

from __future__ import annotations

import struct

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey, is_flexible
from kbroker.protocol.compression import Codec
from kbroker.protocol.records import encode_batch
from tests.kit.models import record_batch as model
from tests.kit.wire.batches import encode_control_batch
from tests.oracle.scenario import Talk, lower, scenario
from tests.oracle.scenarios.requests import NO_TEXTS, T0, fetch, fetch_partition, lie, produce, produce_all, records

PRODUCE = ApiKey.PRODUCE
INFLATED_LIMIT = 1 << 21
"""The largest size in bytes to which this kbroker inflates a batch."""


def what_is_there(t: Talk, topic: str, partition: int = 0) -> None:
    """Compare what a consumer would read."""
    one = M.FetchRequest.FetchTopic(topic=topic, partitions=[fetch_partition(partition)])
    t.ask(fetch([one]), version=12)


@scenario(PRODUCE)
def a_batch(t: Talk) -> None:
    topic = t.topic()
    for acks in (-1, 1):
        t.ask(produce(topic, records(), acks=acks))
    what_is_there(t, topic)


@scenario(PRODUCE)
def without_acks_nothing_is_answered(t: Talk) -> None:
    topic = t.topic()
    t.ask(produce(topic, records()))
    t.send(produce(topic, records(), acks=0))
    t.send(produce(t.name("nowhere"), records(), acks=0), on="refused")
    t.ask(produce(topic, records()))
    t.note("connection", "refused without acks")
    t.ask(M.ApiVersionsRequest(), version=0, on="refused", keep=lambda answer: answer.api_keys.clear())


@scenario(PRODUCE)
def several_topics_and_partitions(t: Talk) -> None:
    one, two = t.topic("one", 2), t.topic("two", 2)
    t.ask(
        produce_all(
            {one: {0: records(), 1: records(5)}, two: {1: records(2), 7: records()}, t.name("no"): {0: records()}}
        )
    )


@scenario(PRODUCE)
def the_same_partition_twice(t: Talk) -> None:
    topic = t.topic()
    data = M.ProduceRequest.PartitionProduceData
    both = [data(index=0, records=records(2)), data(index=0, records=records(3))]
    entry = M.ProduceRequest.TopicProduceData
    t.ask(M.ProduceRequest(acks=-1, timeout_ms=30000, topic_data=[entry(name=topic, partition_data=both)]))
    twice = [entry(name=topic, partition_data=[one]) for one in both]
    t.ask(M.ProduceRequest(acks=-1, timeout_ms=30000, topic_data=twice))
    t.ask(produce(topic, records(1)))


@scenario(PRODUCE)
def nothing(t: Talk) -> None:
    topic = t.topic()
    t.ask(M.ProduceRequest(acks=-1, timeout_ms=30000, topic_data=[]))
    t.ask(produce_all({topic: {}}))


@scenario(PRODUCE)
def to_topics_and_partitions_that_are_not_there(t: Talk) -> None:
    topic = t.topic()
    t.ask(produce(t.name("nowhere"), records()))
    for partition in (1, -1, 2**31 - 1, -(2**31)):
        t.ask(produce(topic, records(), partition=partition))
    for name in ("", "a b", "..", "x" * 250, "ä"):
        t.ask(produce(name, records()))


@scenario(PRODUCE)
def to_an_internal_topic(t: Talk) -> None:
    t.ask(produce("__consumer_offsets", records()))


@scenario(PRODUCE)
def wrong_acks(t: Talk) -> None:
    topic = t.topic()
    for acks in (2, -2, 32767):
        t.ask(produce(topic, records(), acks=acks))
    t.ask(produce(t.name("nowhere"), records(), acks=2))


@scenario(PRODUCE)
def no_records(t: Talk) -> None:
    topic = t.topic()
    t.ask(produce(topic, b""))
    t.still_waits(t.send(produce(topic, None)))


@scenario(PRODUCE)
def two_batches_at_once(t: Talk) -> None:
    topic = t.topic()
    t.ask(produce(topic, records() + records()))
    t.ask(produce(topic, records() + b"\0" * 5))
    t.ask(produce(topic, records() + b"\0" * 61))
    what_is_there(t, topic)


@scenario(PRODUCE)
def a_wrong_crc(t: Talk) -> None:
    topic = t.topic()
    batch = bytearray(records())
    batch[-1] ^= 1
    t.ask(produce(topic, bytes(batch)))
    batch = bytearray(records())
    batch[17] ^= 1
    t.ask(produce(topic, bytes(batch)))
    what_is_there(t, topic)


@scenario(PRODUCE)
def batches_cut_short(t: Talk) -> None:
    topic = t.topic()
    batch = records()
    for size in (1, 11, 12, 16, 17, 60, 61, len(batch) - 1):
        t.ask(produce(topic, batch[:size]))
    what_is_there(t, topic)


@scenario(PRODUCE)
def lengths_that_lie(t: Talk) -> None:
    topic = t.topic()
    for length in (-1, 0, 13, 14, 48, 49, 2**31 - 1, len(records()) - 13, len(records()) - 11):
        batch = bytearray(records())
        struct.pack_into(">i", batch, 8, length)
        t.ask(produce(topic, bytes(batch)))


@scenario(PRODUCE)
def counts_that_lie(t: Talk) -> None:
    topic = t.topic()
    for count, last in ((2, 0), (2, 2), (1, 0), (3, 2), (0, -1), (-1, 1), (2, -1), (2**31 - 1, 2**31 - 2), (0, 1)):
        t.ask(produce(topic, lie(record_count=count, last_offset_delta=last)))
    what_is_there(t, topic)


@scenario(PRODUCE)
def a_bad_batch_beside_a_good_one(t: Talk) -> None:
    bad = {
        "short": records()[:40],
        "crc": records()[:-1] + b"x",
        "length": records()[:8] + b"\0\0\0\x0d" + records()[12:],
        "magic": lie(magic=3),
        "old": lie(magic=1),
        "codec": lie(attributes=7),
        "inflate": lie(attributes=1),
        "count": lie(record_count=7),
        "empty": b"",
    }
    for word, batch in bad.items():
        topic = t.topic(word, 2)
        t.ask(produce(topic, batch, records()))
        t.ask(produce(topic, records(), batch))


@scenario(PRODUCE)
def an_empty_batch(t: Talk) -> None:
    t.ask(produce(t.topic(), lie(count=0, max_timestamp=T0)))


@scenario(PRODUCE)
def a_base_offset(t: Talk) -> None:
    topic = t.topic()
    t.ask(produce(topic, lie(base_offset=5)))
    t.ask(produce(topic, lie(base_offset=-1)))


@scenario(PRODUCE)
def a_leader_epoch_is_replaced(t: Talk) -> None:
    topic = t.topic()
    t.ask(produce(topic, lie(leader_epoch=7)))
    what_is_there(t, topic)


@scenario(PRODUCE)
def offset_deltas_that_lie(t: Talk) -> None:
    made = (model.Record(0, 0, b"k", b"v"), model.Record(5, 0, b"k", b"v"))
    t.ask(produce(t.topic(), lie(records=made)))


@scenario(PRODUCE)
def records_that_do_not_parse(t: Talk) -> None:
    topic = t.topic()
    good = model.encode_records((model.Record(0, 0, b"k", b"v"), model.Record(1, 0, b"k", b"v")))
    for payload in (good[:-1], good + b"\0", b"\x7f" + good[1:], b"\x01" + good[1:], b""):
        t.ask(produce(topic, lie(payload=payload)))


@scenario(PRODUCE)
def a_null_header_key(t: Talk) -> None:
    body = b"\0\0\0\x02k\x02v\x02\x01\x01"
    t.ask(produce(t.topic(), lie(count=1, payload=model.zigzag(len(body)) + body)))


@scenario(PRODUCE)
def older_magic(t: Talk) -> None:
    topic = t.topic()
    for magic in (0, 1, 3, 127, -1):
        t.ask(produce(topic, lie(magic=magic)))
    body = b"\0\0" + struct.pack(">i", -1) + struct.pack(">i", 2) + b"hi"
    old = struct.pack(">I", model.crc(model.ZLIB, body)) + body
    t.ask(produce(topic, struct.pack(">qi", 0, len(old)) + old))


@scenario(PRODUCE)
def attributes(t: Talk) -> None:
    """Attributes with unused bits, with log append time from a client, and with a delete horizon."""
    topic = t.topic()
    for bits in (0x08, 0x40, 0x80, 0x4000):
        t.ask(produce(topic, lie(attributes=bits)))
    what_is_there(t, topic)


@scenario(PRODUCE)
def a_control_batch(t: Talk) -> None:
    topic = t.topic()
    t.ask(produce(topic, lie(attributes=0x20)))
    t.ask(produce(topic, lie(count=1, attributes=0x30, producer_id=1, producer_epoch=0, base_sequence=0)))
    t.ask(produce(topic, encode_control_batch(1, T0, producer_id=1, producer_epoch=0, coordinator_epoch=0)))  # type: ignore[arg-type]


@scenario(PRODUCE)
def codecs(t: Talk) -> None:
    topic = t.topic()
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        answer = t.ask(produce(topic, records(20, codec=codec)))
        t.note("answered", [one.error_code for one in answer.responses[0].partition_responses])
    t.produce(topic, records(1))
    one = M.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    t.ask(
        M.ListOffsetsRequest(
            replica_id=-1, topics=[M.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[one])]
        )
    )


@scenario(PRODUCE)
def a_codec_nobody_knows(t: Talk) -> None:
    topic = t.topic()
    for codec in (5, 6, 7):
        t.ask(produce(topic, lie(attributes=codec)))


@scenario(PRODUCE)
def what_does_not_inflate(t: Talk) -> None:
    topic = t.topic()
    for codec in (1, 2, 3, 4):
        t.ask(produce(topic, lie(attributes=codec)))
        t.ask(produce(topic, lie(attributes=codec, payload=b"")))


@scenario(PRODUCE)
def more_than_may_be_inflated(t: Talk) -> None:
    """A bomb is refused by kbroker, whose limit the matrix sets low."""
    topic = t.topic()
    for codec in (Codec.GZIP, Codec.LZ4):
        t.ask(produce(topic, encode_batch([(T0, b"k", bytes(INFLATED_LIMIT + 1))], codec=codec)))


@scenario(PRODUCE)
def numbers_with_excess_bits(t: Talk) -> None:
    """Varints have more bits than fit into their number."""
    record = model.encode_record(model.Record(0, 0, b"k", b"value"))
    assert record[0] == 2 * (len(record) - 1)
    for size in (b"\x80\x80\x80\x00", b"\x80\x80\x80\x70", b"\x80\x80\x80\x80\x00"):
        t.ask(
            produce(
                t.topic(str(size[-1]) + str(len(size))),
                lie(count=1, payload=bytes([record[0] | 0x80]) + size + record[1:]),
            )
        )


@scenario(PRODUCE)
def compressed_counts_that_lie(t: Talk) -> None:
    topic = t.topic()
    batch = bytearray(encode_batch([(T0, b"k", b"v")] * 3, codec=Codec.GZIP))
    for count in (2, 4):
        struct.pack_into(">i", batch, 23, count - 1)
        struct.pack_into(">i", batch, 57, count)
        struct.pack_into(">I", batch, 17, model.crc(model.CASTAGNOLI, bytes(batch[21:])))
        t.ask(produce(topic, bytes(batch)))


@scenario(PRODUCE)
def a_codec_of_the_topic(t: Talk) -> None:
    """If the topic's codec is not the producer's, the broker compresses itself."""
    for codec in ("uncompressed", "gzip", "producer"):
        topic = t.topic(codec, compression_type=codec)
        t.ask(produce(topic, records(20, codec=Codec.LZ4)))
        if codec != "gzip":
            what_is_there(t, topic)


@scenario(PRODUCE)
def too_large(t: Talk) -> None:
    topic = t.topic(max_message_bytes=500)
    t.ask(produce(topic, records(1, 600)))
    t.ask(produce(topic, records(10, 100)))
    t.ask(produce(topic, records(1, 500 - 61 - 13)))
    t.ask(produce(topic, records(1, 100)))
    t.ask(produce(topic, records(20, 100, codec=Codec.GZIP)))
    large = t.topic("default")
    t.ask(produce(large, records(1, 1048588 - 61 - 14)))
    t.ask(produce(large, records(1, 1048588)))


@scenario(PRODUCE)
def larger_than_a_segment(t: Talk) -> None:
    topic = t.topic(segment_bytes=1000)
    t.ask(produce(topic, records(1, 2000)))
    t.ask(produce(topic, records(1, 500)))


@scenario(PRODUCE)
def log_append_time(t: Talk) -> None:
    topic = t.topic(message_timestamp_type="LogAppendTime")
    t.ask(produce(topic, records()))
    t.ask(produce(topic, records(codec=Codec.SNAPPY)))
    what_is_there(t, topic)


@scenario(PRODUCE)
def timestamps_out_of_range(t: Talk) -> None:
    topic = t.topic(message_timestamp_before_max_ms=1000)
    t.ask(produce(topic, records()))
    topic = t.topic("after", message_timestamp_after_max_ms=1000)
    t.ask(produce(topic, records(at=4_000_000_000_000)))
    t.ask(produce(topic, records()))
    topic = t.topic("any")
    t.ask(produce(topic, lie(base_timestamp=-1, records=(model.Record(0, 0, b"k", b"v"),))))
    t.ask(produce(topic, lie(base_timestamp=-5, records=(model.Record(0, 0, b"k", b"v"),))))
    t.ask(produce(topic, lie(max_timestamp=T0 + 500)))
    what_is_there(t, topic)


@scenario(PRODUCE)
def without_a_key_into_a_compacted_topic(t: Talk) -> None:
    topic = t.topic(cleanup_policy="compact")
    keyless = [(T0, b"k", b"v"), (T0, None, b"v"), (T0, None, b"v")]
    t.ask(produce(topic, encode_batch(keyless)))
    t.ask(produce(topic, encode_batch(keyless, codec=Codec.GZIP)))
    t.ask(produce(topic, records()))


@scenario(PRODUCE, since=8)
def many_without_a_key_into_a_compacted_topic(t: Talk) -> None:
    topic = t.topic(cleanup_policy="compact")
    t.ask(produce(topic, encode_batch([(T0, None, b"v")] * 100)))
    t.ask(produce(topic, encode_batch([(T0, None, b"v")] * 103)))


@scenario(PRODUCE)
def too_few_replicas(t: Talk) -> None:
    topic = t.topic(min_insync_replicas=2)
    for acks in (-1, 1):
        t.ask(produce(topic, records(), acks=acks))
    what_is_there(t, topic)


@scenario(PRODUCE)
def a_transactional_id_without_a_transaction(t: Talk) -> None:
    topic = t.topic()
    t.ask(produce(topic, records(), transactional_id=t.name("txn")))
    t.ask(
        produce(
            topic,
            lie(attributes=0x10, producer_id=77, producer_epoch=0, base_sequence=0),
            transactional_id=t.name("txn"),
        )
    )
    t.ask(produce(topic, lie(attributes=0x10, producer_id=77, producer_epoch=0, base_sequence=0)))


@scenario(PRODUCE)
def the_log_start_is_told(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records(5))
    one = M.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=3)
    wanted = M.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[one])
    t.do(M.DeleteRecordsRequest(topics=[wanted], timeout_ms=30000))
    t.ask(produce(topic, records()))
    t.ask(produce(topic, records(1, 2_000_000)))


@scenario(PRODUCE)
def a_producer_without_sequences(t: Talk) -> None:
    topic = t.topic()
    t.ask(produce(topic, lie(producer_id=5, producer_epoch=0, base_sequence=-1)))
    t.ask(produce(topic, lie(producer_id=-1, producer_epoch=0, base_sequence=3)))
    t.ask(produce(topic, lie(producer_id=-1, producer_epoch=-1, base_sequence=3)))
    t.ask(produce(topic, lie(producer_id=-7, producer_epoch=3, base_sequence=3)))


@scenario(PRODUCE)
def names_that_are_no_text(t: Talk) -> None:
    whole = lower(produce("xx", records()), t.version).encode(t.version)
    for broken in NO_TEXTS:
        t.ask_bytes(PRODUCE, t.version, whole.replace(b"xx", broken), flexible=is_flexible(PRODUCE, t.version))
