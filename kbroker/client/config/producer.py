"""Options of the producer: those of every client, and its own."""

from __future__ import annotations

from typing import Any

from kbroker._core.client.producer.partitioner import KINDS
from kbroker.client.config.encoders import encoder
from kbroker.client.config.kinds import MS, filled, flag, one_of, whole
from kbroker.client.config.network import NETWORK
from kbroker.client.config.option import Option, table_of
from kbroker.client.config.zookeeper import ZOOKEEPER
from kbroker.client.handlers import handlers

ACKS = {"all": -1}
INT32_MAX = (1 << 31) - 1
JAVA_PARTITIONERS = {
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": "murmur2",
    "org.apache.kafka.clients.producer.UniformStickyPartitioner": "murmur2",
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": "round_robin",
}


def partitioner(given: Any) -> Any:
    """Parse partitioner: a name of KINDS, a Java class that has one, or a callable of (topic, key, partition count).

    Raises ValueError for anything else.
    """
    if callable(given) or (isinstance(given, str) and given in KINDS):
        return given
    if isinstance(given, str) and given in JAVA_PARTITIONERS:
        return JAVA_PARTITIONERS[given]
    raise ValueError(f"a callable or one of {', '.join(KINDS)}")


def codec(given: Any) -> str:
    """Parse compression.type: a codec's name, or its number, as in the configuration of Kafka 0.7."""
    names = ("none", "gzip", "snappy", "lz4", "zstd")
    if str(given) in ("0", "1", "2", "3", "4"):
        return names[int(given)]
    found: str = one_of(*names)(given)
    return found


PRODUCER = NETWORK | table_of(
    Option(
        "acks",
        whole(-1, 1, named=ACKS),
        -1,
        "who has to have a record: 0 nobody, 1 the leader, all",
        ("request.required.acks",),
    ),
    Option("enable.idempotence", flag, None, "nothing is there twice after a retry; on unless acks are fewer than all"),
    Option(
        "transactional.id",
        filled,
        None,
        "who the producer is across restarts: its records are sent in transactions, and whoever had the id before is "
        "fenced",
    ),
    Option("transaction.timeout.ms", whole(1, (1 << 31) - 1), 60_000, "the broker aborts what is open for longer"),
    Option(
        "batch.size",
        whole(0, 1 << 30),
        1 << 20,
        "bytes of one partition that are sent together at most. Kafka's 16384 is for producers that reserve it for "
        "every partition; here a batch takes the memory of its records only, and large ones are cheaper for all",
    ),
    Option(
        "compression.type",
        codec,
        "none",
        "how batches are compressed, on a thread of its own",
        ("compression.codec",),
    ),
    Option("compression.level", whole(-(1 << 17), 22), None, "of gzip, lz4 or zstd; the codec's own if not given"),
    Option(
        "linger.ms",
        MS,
        0,
        "how long to wait for more records when nothing is under way",
        ("queue.buffering.max.ms",),
    ),
    Option("buffer.memory", whole(1 << 10), 32 << 20, "bytes of records that wait for their delivery at most"),
    Option(
        "queue.buffering.max.messages",
        whole(0),
        0,
        "records that wait for their delivery at most; 0: as many as there is memory for",
    ),
    Option(
        "max.block.ms",
        whole(-1, 1 << 40),
        60_000,
        "how long a call waits for metadata of a topic that is new to it, and for room; 0: not at all, -1: for ever",
    ),
    Option("queue.enqueue.timeout.ms", whole(-1, 1 << 40), None, "how long it waits for room, if not max.block.ms"),
    Option(
        "max.request.size",
        whole(100, 1 << 30),
        1 << 20,
        "bytes of a request, and of a record, at most",
        ("message.max.bytes",),
    ),
    Option(
        "max.in.flight.requests.per.connection",
        whole(1, 1000),
        5,
        "requests that are under way to a broker at most",
        ("max.in.flight",),
    ),
    Option(
        "delivery.timeout.ms",
        whole(1, 1 << 40),
        120_000,
        "how long a record may wait in all, retries included",
        ("message.timeout.ms",),
    ),
    Option(
        "retries", whole(0), (1 << 31) - 1, "how often a batch is sent again at most", ("message.send.max.retries",)
    ),
    Option("partitioner", partitioner, "murmur2", "which partition a record goes to", ("partitioner.class",)),
    Option(
        "partitioner.sticky.bytes",
        whole(1),
        16 << 10,
        "so many bytes without key go to a partition before the next one",
    ),
    Option("allow.auto.create.topics", flag, True, "a topic that is not there may be made by the broker"),
    Option(
        "key.encoder",
        encoder,
        None,
        "makes bytes or str of a key: a callable, or bytes, string or json",
        ("key.serializer", "key.serializer.class"),
    ),
    Option(
        "value.encoder",
        encoder,
        None,
        "the same of a value",
        ("value.serializer", "serializer.class"),
    ),
    Option("batch.num.messages", whole(1, INT32_MAX), INT32_MAX, "records that are sent together at most"),
    Option("producer.type", one_of("async", "sync"), "async", "sync: send returns when the record is delivered"),
    Option("handlers", handlers, (), "ProducerHandler objects around the queue"),
)
PRODUCER |= ZOOKEEPER
