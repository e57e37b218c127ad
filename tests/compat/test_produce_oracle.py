"""Produce: the same requests to kbroker and to Apache Kafka 3.9, in every version; the answers are equal."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.kafka.process import KafkaInMemory
from tests.kit.wire.batches import changed

VERSIONS = range(3, 12)
CLOSED = "closed"
SILENT = "silent"
TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "odd": {},  # what kbroker and Kafka treat differently, so that offsets elsewhere stay equal
    "table": {"cleanup.policy": "compact"},
    "small": {"max.message.bytes": "10000"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "bounded": {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "1000"},
    "alone": {"min.insync.replicas": "2"},
    "gzipped": {"compression.type": "gzip"},
    "bare": {"compression.type": "uncompressed"},
}


def batch(*values: bytes, key: bytes | None = b"k", **fields: Any) -> bytes:
    now_ms = int(time.time() * 1000)
    return encode_batch([(now_ms, key, value) for value in values], **fields)


GOOD = batch(b"a", b"b")


def produce(topic: str, *batches: bytes | None, acks: int = 1, transactional_id: str | None = None) -> M.ProduceRequest:
    """Produce `batches` to partitions 0, 1, ..."""
    return M.ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        transactional_id=transactional_id,
        topic_data=[
            M.ProduceRequest.TopicProduceData(
                name=topic,
                partition_data=[
                    M.ProduceRequest.PartitionProduceData(index=index, records=each)
                    for index, each in enumerate(batches)
                ],
            )
        ],
    )


def idempotent(sequence: int, epoch: int = 0, producer_id: int = 77) -> bytes:
    return batch(b"i", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


REQUESTS: dict[str, Callable[[], M.ProduceRequest]] = {
    "good": lambda: produce("plain", GOOD, GOOD),
    "acks all": lambda: produce("plain", GOOD, acks=-1),
    "unknown topic": lambda: produce("nowhere", GOOD),
    "unknown partition": lambda: produce("plain", GOOD, GOOD, GOOD, GOOD),
    "empty topic": lambda: produce("", GOOD),
    "no partitions": lambda: produce("plain"),
    "null records": lambda: produce("odd", None, GOOD),
    "empty records": lambda: produce("plain", b"", GOOD),
    "half a header": lambda: produce("plain", GOOD[:40], GOOD),
    "half a batch": lambda: produce("plain", GOOD[:-1], GOOD),
    "two batches": lambda: produce("plain", GOOD + GOOD, GOOD),
    "a batch and a half": lambda: produce("plain", GOOD + GOOD[:50], GOOD),
    "length below a header's": lambda: produce("odd", changed(GOOD, 8, b"\0\0\0\x0d", crc=False), GOOD),
    "length below magic 2's": lambda: produce("plain", changed(GOOD, 8, b"\0\0\0\x20", crc=False), GOOD),
    "negative length": lambda: produce("odd", changed(GOOD, 8, b"\xff\xff\xff\xff", crc=False), GOOD),
    "unknown magic": lambda: produce("odd", changed(GOOD, 16, b"\3", crc=False), GOOD),
    "magic 0": lambda: produce("plain", changed(GOOD, 16, b"\0", crc=False), GOOD),
    "magic 1": lambda: produce("plain", changed(GOOD, 16, b"\1", crc=False), GOOD),
    "wrong checksum": lambda: produce("plain", changed(GOOD, 17, b"abcd", crc=False), GOOD),
    "base offset": lambda: produce("plain", changed(GOOD, 0, b"\0\0\0\0\0\0\0\x09"), GOOD),
    "control batch": lambda: produce("plain", changed(GOOD, 21, b"\0\x20"), GOOD),
    "count too high": lambda: produce("plain", changed(GOOD, 57, b"\0\0\0\x03"), GOOD),
    "count zero": lambda: produce("plain", changed(GOOD, 57, b"\0\0\0\0"), GOOD),
    "count negative": lambda: produce("plain", changed(GOOD, 57, b"\xff\xff\xff\xff"), GOOD),
    "last offset delta": lambda: produce("plain", changed(GOOD, 23, b"\0\0\0\x07"), GOOD),
    "no sequence": lambda: produce("plain", changed(GOOD, 43, struct.pack(">qhi", 7, 0, -1)), GOOD),
    "log append time set by a client": lambda: produce("plain", changed(GOOD, 21, b"\0\x08"), GOOD),
    "too large": lambda: produce("small", batch(b"x" * 20_000), GOOD),
    "acks 2": lambda: produce("plain", GOOD, acks=2),
    "acks -2": lambda: produce("plain", GOOD, acks=-2),
    "acks 2 and an unknown topic": lambda: produce("nowhere", GOOD, acks=2),
    "acks 2 and a bad batch": lambda: produce("plain", b"", GOOD, acks=2),
    "not enough replicas": lambda: produce("alone", GOOD, acks=-1),
    "enough replicas for acks 1": lambda: produce("alone", GOOD, acks=1),
    "internal topic": lambda: produce("__consumer_offsets", GOOD),
    "no key": lambda: produce("table", batch(b"a", b"b", key=None), GOOD),
    "no key, gzip": lambda: produce("table", batch(b"a", b"b", key=None, codec=1), GOOD),
    "too old": lambda: produce("bounded", encode_batch([(1, None, b"old")]), GOOD),
    "too new": lambda: produce("bounded", encode_batch([(1 << 45, None, b"new")]), GOOD),
    "stamped": lambda: produce("stamped", GOOD),
    "gzip": lambda: produce("plain", batch(b"a", codec=1)),
    "snappy": lambda: produce("plain", batch(b"a", codec=2)),
    "lz4": lambda: produce("plain", batch(b"a", codec=3)),
    "zstd": lambda: produce("plain", batch(b"a", codec=4)),
    "recompressed": lambda: produce("gzipped", batch(b"a", codec=2), GOOD),
    "uncompressed by the topic": lambda: produce("bare", batch(b"a", codec=1), GOOD),
    "does not inflate": lambda: produce("odd", changed(GOOD, 21, b"\0\x01"), GOOD),
    "unknown codec": lambda: produce("odd", changed(GOOD, 21, b"\0\x07"), GOOD),
    "idempotent, first": lambda: produce("plain", idempotent(0)),
    "idempotent, next": lambda: produce("plain", idempotent(1)),
    "idempotent, again": lambda: produce("plain", idempotent(1)),
    "idempotent, gap": lambda: produce("plain", idempotent(5)),
    "idempotent, new epoch": lambda: produce("plain", idempotent(0, epoch=1)),
    "idempotent, new epoch and a gap": lambda: produce("plain", idempotent(3, epoch=2)),
    "idempotent, fenced": lambda: produce("plain", idempotent(2, epoch=0)),
    "idempotent, unknown producer in the middle": lambda: produce("plain", idempotent(3, producer_id=88)),
    "a transactional id without a transaction": lambda: produce("plain", GOOD, transactional_id="mine"),
    "acks 0": lambda: produce("plain", GOOD, acks=0),
    "acks 0, unknown topic": lambda: produce("nowhere", GOOD, acks=0),
    "acks 0, bad batch": lambda: produce("plain", GOOD, b"", acks=0),
}


def create_topics(client: WireClient) -> None:
    request = M.CreateTopicsRequest(timeout_ms=10_000)
    for name, configs in TOPICS.items():
        request.topics.append(
            M.CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=3,
                replication_factor=1,
                configs=[
                    M.CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()
                ],
            )
        )
    for topic in client.call(ApiKey.CREATE_TOPICS, 5, request).topics:
        assert topic.error_code == ErrorCode.NONE, topic.name
    # FindCoordinator makes __consumer_offsets.
    while client.call(ApiKey.FIND_COORDINATOR, 2, M.FindCoordinatorRequest(key="g", key_type=0)).error_code:
        time.sleep(0.05)


class Broker:
    """One of the two brokers, with a connection that is made again when it was closed."""

    def __init__(self, process: BrokerProcess):
        self.port = process.port
        client = self.connect()
        create_topics(client)
        deadline = time.monotonic() + 30
        names = [*TOPICS, "__consumer_offsets"]
        while True:
            request = M.MetadataRequest(topics=[M.MetadataRequest.MetadataRequestTopic(name=name) for name in names])
            topics = client.call(ApiKey.METADATA, 4, request).topics
            if all(not topic.error_code and all(not p.error_code for p in topic.partitions) for topic in topics):
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        client.close()

    def connect(self) -> WireClient:
        return WireClient("127.0.0.1", self.port, timeout_s=3)

    def answer(self, version: int, request: M.ProduceRequest) -> Any:
        """Return the response as plain values without what may differ; CLOSED; None if acks=0 goes well."""
        with self.connect() as client:
            client.send(ApiKey.PRODUCE, version, request)
            if request.acks == 0:
                client.send(ApiKey.API_VERSIONS, 0, M.ApiVersionsRequest())
            try:
                frame = client.read_frame()
            except ConnectionClosed:
                return CLOSED
            except TimeoutError:
                return SILENT
            if request.acks == 0:
                return None
            response = M.ProduceResponse.decode(frame[5 if version >= 9 else 4 :], version)
        # Kafka answers in the order of a hash table.
        return sorted(
            (
                topic.name,
                part.index,
                ErrorCode(part.error_code).name,
                part.base_offset,
                # The time of the append differs.
                part.log_append_time_ms > 0,
                part.log_start_offset,
                [each.batch_index for each in part.record_errors],
                part.error_message is not None,
            )
            for topic in response.responses
            for part in topic.partition_responses
        )


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    settings: dict[str, object] = {"auto.create.topics.enable": "false", "offsets.topic.num.partitions": 1}
    with BrokerProcess(settings) as ours, KafkaInMemory(settings) as kafka:
        yield Broker(ours), Broker(kafka)


# Where kbroker answers otherwise, in every version or in those named, and why: docs/DEVIATIONS.md.
DIFFERENT: dict[str, str] = {
    "null records": "Kafka never answers",
    "length below a header's": "Kafka refuses the good partitions of the request too",
    "negative length": "Kafka refuses the good partitions of the request too",
    "unknown magic": "Kafka refuses the good partitions of the request too",
    "unknown codec": "Kafka refuses the whole request with UNKNOWN_SERVER_ERROR",
    "does not inflate": "UNKNOWN_SERVER_ERROR in Kafka, as if it were its own fault",
}


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_answer_is_kafkas(brokers: tuple[Broker, Broker], version: int) -> None:
    ours, kafka = brokers
    differences = []
    for name, make in REQUESTS.items():
        request = make()
        one, other = ours.answer(version, request), kafka.answer(version, request)
        if one != other and name not in DIFFERENT:
            differences.append(f"{name}:\n   kbroker {one}\n   kafka   {other}")
    assert not differences, "\n".join(differences)
