"""Requests and batches for scenarios: one topic and one partition, unless arguments say otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbroker.protocol import messages as M
from kbroker.protocol.records import encode_batch
from tests.kit.models import record_batch as model

NO_TEXTS = (b"\xff\xfe", b"\xc3(", b"\xed\xa0")
"""Bytes that are not UTF-8, two bytes each, for names of two letters."""
T0 = 1_700_000_000_000
"""A fixed timestamp of records, so that both brokers get the same bytes."""


def records(count: int = 3, size: int = 10, first: int = 0, at: int = T0, **fields: int) -> bytes:
    """Return a batch of `count` records of some `size`, a millisecond apart. `fields` are those of encode_batch."""
    values = (f"{first + n:06d}".encode().ljust(size, b".") for n in range(count))
    return encode_batch([(at + n, b"k", value) for n, value in enumerate(values)], **fields)  # type: ignore[arg-type]


def lie(count: int = 2, **fields: object) -> bytes:
    """Return a batch whose fields are overwritten with any values; its CRC is right."""
    made = tuple(model.Record(n, n, b"k", b"value") for n in range(count))
    return model.encode_batch(model.Batch(**{"records": made, "base_timestamp": T0, **fields}))  # type: ignore[arg-type]


def produce(
    topic: str, *batches: bytes | None, partition: int = 0, acks: int = -1, transactional_id: str | None = None
) -> M.ProduceRequest:
    """Return a request with batches for the partitions from `partition` on."""
    return produce_all({topic: dict(enumerate(batches, partition))}, acks, transactional_id)


def produce_all(
    topics: dict[str, dict[int, bytes | None]], acks: int = -1, transactional_id: str | None = None
) -> M.ProduceRequest:
    data = M.ProduceRequest.PartitionProduceData
    return M.ProduceRequest(
        acks=acks,
        timeout_ms=30000,
        transactional_id=transactional_id,
        topic_data=[
            M.ProduceRequest.TopicProduceData(
                name=topic, partition_data=[data(index=index, records=batch) for index, batch in partitions.items()]
            )
            for topic, partitions in topics.items()
        ],
    )


FetchTopic = M.FetchRequest.FetchTopic
FetchPartition = M.FetchRequest.FetchPartition


def fetch(topics: Sequence[FetchTopic], max_wait_ms: int = 0, min_bytes: int = 1, **fields: object) -> M.FetchRequest:
    return M.FetchRequest(
        **{"max_wait_ms": max_wait_ms, "min_bytes": min_bytes, "max_bytes": 1 << 20, "topics": list(topics), **fields}
    )  # type: ignore[arg-type]


def fetch_partition(partition: int = 0, offset: int = 0, max_bytes: int = 1 << 20, **fields: int) -> FetchPartition:
    return FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes, **fields)


def offsets_of(
    name: str, partitions: Iterable[tuple[int, int]], **fields: int
) -> M.ListOffsetsRequest.ListOffsetsTopic:
    one = M.ListOffsetsRequest.ListOffsetsPartition
    return M.ListOffsetsRequest.ListOffsetsTopic(
        name=name,
        partitions=[one(partition_index=index, timestamp=timestamp, **fields) for index, timestamp in partitions],
    )


def resource(kind: int, name: str, keys: list[str] | None = None) -> M.DescribeConfigsRequest.DescribeConfigsResource:
    return M.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
