"""Attacks that once worked, as requests to a furnished broker. They are small, and far over the bounds if they work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.headers import encode_request
from kbroker.protocol.records import encode_batch
from tests.amplification.furnishing import DOOMED, HEAVY, PARTITIONS, SEGMENTS, TIME, Furnisher
from tests.kit.wire.collisions import triples_of_one_hash

Frames = list[bytes]


def frame(api_key: ApiKey, version: int, message: M.Message, number: int = 1) -> bytes:
    return encode_request(api_key, version, number, "attack", message)


# --- one name, again and again ----------------------------------------------------------------------------------------
def offsets_of_one_partition(furnisher: Furnisher) -> Frames:
    """OffsetFetch of one partition, again and again: the answer has the committed metadata each time."""
    R = M.OffsetFetchRequest
    topic = R.OffsetFetchRequestTopic(name=HEAVY, partition_indexes=[0] * 2_000)
    return [frame(ApiKey.OFFSET_FETCH, 5, R(group_id=HEAVY, topics=[topic]))]


def producers_of_one_partition(furnisher: Furnisher) -> Frames:
    R = M.DescribeProducersRequest
    return [frame(ApiKey.DESCRIBE_PRODUCERS, 0, R(topics=[R.TopicRequest(name=HEAVY, partition_indexes=[0] * 1_000)]))]


def one_transaction(furnisher: Furnisher) -> Frames:
    return [frame(ApiKey.DESCRIBE_TRANSACTIONS, 0, M.DescribeTransactionsRequest(transactional_ids=[HEAVY] * 2_000))]


def offsets_of_all_segments(furnisher: Furnisher) -> Frames:
    R = M.ListOffsetsRequest
    one = R.ListOffsetsPartition(partition_index=0, timestamp=-1, max_num_offsets=1_000_000)
    return [
        frame(
            ApiKey.LIST_OFFSETS, 0, R(replica_id=-1, topics=[R.ListOffsetsTopic(name=HEAVY, partitions=[one] * 2_000)])
        )
    ]


def fetching(offset: int, count: int, *, isolation_level: int = 0, **fields: int) -> M.FetchRequest:
    """Return a Fetch of partition 0 of `heavy`, `count` times."""
    R = M.FetchRequest
    one = R.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=100)
    given = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 2**31 - 1, **fields}
    topics = [R.FetchTopic(topic=HEAVY, partitions=[one] * count)]
    return R(isolation_level=isolation_level, topics=topics, **given)


def batches_between_entries_of_an_index(furnisher: Furnisher) -> Frames:
    """Fetch of an offset far behind an index entry, again and again: each search starts at this entry."""
    return [frame(ApiKey.FETCH, 4, fetching(furnisher.deep_offset, 2_000))]


def aborted_transactions(furnisher: Furnisher) -> Frames:
    """Fetch with read_committed, again and again: the answer has all aborted transactions each time."""
    return [frame(ApiKey.FETCH, 4, fetching(SEGMENTS + 1, 5_000, isolation_level=1))]


# --- many names -------------------------------------------------------------------------------------------------------
def colliding_partitions(furnisher: Furnisher) -> Frames:
    """Fetch with a session, for partitions whose numbers an unseeded hash puts all into one place of a table."""
    name = "x"
    state = 2166136261
    for byte in name.encode():
        state = (state ^ byte) * 16777619 % 2**32
    back = pow(0x85EBCA6B, -1, 2**32), pow(0x9E3779B1, -1, 2**32)

    def partition_of(hashed: int) -> int:
        hashed ^= (hashed >> 13) ^ (hashed >> 26)
        hashed = hashed * back[0] % 2**32
        hashed ^= (hashed >> 15) ^ (hashed >> 30)
        number = (hashed ^ state) * back[1] % 2**32
        return number - 2**32 if number >= 2**31 else number

    R = M.FetchRequest
    partitions = [R.FetchPartition(partition=partition_of(at << 16), partition_max_bytes=1) for at in range(40_000)]
    topic = R.FetchTopic(topic=name, partitions=partitions)
    return [frame(ApiKey.FETCH, 7, R(max_wait_ms=0, min_bytes=0, session_epoch=0, topics=[topic]))]


def markers_of_one_hash(furnisher: Furnisher) -> Frames:
    """WriteTxnMarkers with producers and epochs whose tuples have the same hash if the hash has no secret."""
    R = M.WriteTxnMarkersRequest
    topic = R.WritableTxnMarkerTopic(name="x", partition_indexes=[0])
    markers = [
        R.WritableTxnMarker(producer_id=first, producer_epoch=second, coordinator_epoch=third, topics=[topic])
        for first, second, third in triples_of_one_hash(20_000)
    ]
    return [frame(ApiKey.WRITE_TXN_MARKERS, 1, R(markers=markers))]


def groups_that_are_not_there(furnisher: Furnisher) -> Frames:
    """DescribeConfigs of groups that do not exist: the answer has the settings of each, with documentation."""
    R = M.DescribeConfigsRequest
    names = [
        R.DescribeConfigsResource(resource_type=32, resource_name=f"{at:x}", configuration_keys=None)
        for at in range(40_000)
    ]
    asked = R(resources=names, include_synonyms=True, include_documentation=True)
    return [frame(ApiKey.DESCRIBE_CONFIGS, 4, asked)]


def coordinators(furnisher: Furnisher) -> Frames:
    """FindCoordinator with 500,000 keys."""
    keys = [f"{at:x}" for at in range(500_000)]
    return [frame(ApiKey.FIND_COORDINATOR, 6, M.FindCoordinatorRequest(coordinator_keys=keys))]


def topics_by_name(name: str, count: int) -> bytes:
    """Metadata with `count` names; with `auto.create.topics.enable` each of them makes a topic."""
    R = M.MetadataRequest
    topics = [R.MetadataRequestTopic(name=f"{name}{at:x}") for at in range(count)]
    return frame(ApiKey.METADATA, 12, R(topics=topics, allow_auto_topic_creation=True))


def deletions_of_records(furnisher: Furnisher) -> Frames:
    """DeleteRecords in one partition, offset by offset: each request writes the checkpoint of all partitions."""
    name, count = "deletions", 300
    furnisher.create(name, count)
    R = M.DeleteRecordsRequest
    P = M.ProduceRequest
    batch = encode_batch([(TIME, None, b"")])
    everywhere = [P.PartitionProduceData(index=at, records=batch) for at in range(count)]
    for _ in range(2):
        sent = P(acks=1, timeout_ms=1, topic_data=[P.TopicProduceData(name=name, partition_data=everywhere)])
        furnisher.client.call(ApiKey.PRODUCE, 8, sent)
    furnisher.produce(name, (batch for _ in range(1_000)))
    all_of_it = [R.DeleteRecordsPartition(partition_index=at, offset=1) for at in range(count)]
    topic = R.DeleteRecordsTopic(name=name, partitions=all_of_it)
    furnisher.client.call(ApiKey.DELETE_RECORDS, 1, R(topics=[topic], timeout_ms=30_000))
    steps = [R.DeleteRecordsPartition(partition_index=0, offset=at) for at in range(2, 1_000)]
    return [frame(ApiKey.DELETE_RECORDS, 1, R(topics=[R.DeleteRecordsTopic(name=name, partitions=steps)]))]


# --- many requests ----------------------------------------------------------------------------------------------------
def sessions(furnisher: Furnisher) -> Frames:
    """Fetch of unknown partitions, each request in a new session, which outlives the connection."""
    R = M.FetchRequest
    partitions = [R.FetchPartition(partition=at, partition_max_bytes=1) for at in range(40_000)]
    asked = R(max_wait_ms=0, min_bytes=0, session_epoch=0, topics=[R.FetchTopic(topic="x", partitions=partitions)])
    return [frame(ApiKey.FETCH, 7, asked)] * 16


def offsets_in_the_store(furnisher: Furnisher) -> Frames:
    """OffsetCommit version 0: it makes a node of the store for each group, which stays for ever."""
    R = M.OffsetCommitRequest
    part = R.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topic = R.OffsetCommitRequestTopic(name=HEAVY, partitions=[part])
    return [frame(ApiKey.OFFSET_COMMIT, 0, R(group_id=f"group-{at}", topics=[topic])) for at in range(20_000)]


def producers_that_only_end(furnisher: Furnisher) -> Frames:
    """WriteTxnMarkers of unknown producers: four bytes of a request make a partition remember a producer."""
    R = M.WriteTxnMarkersRequest
    topic = R.WritableTxnMarkerTopic(name=HEAVY, partition_indexes=[*range(PARTITIONS)])
    markers = [
        R.WritableTxnMarker(producer_id=(1 << 50) + at, producer_epoch=0, coordinator_epoch=0, topics=[topic])
        for at in range(120)
    ]
    return [frame(ApiKey.WRITE_TXN_MARKERS, 1, R(markers=markers))]


def member_ids(session_timeouts_ms: Iterable[int]) -> Frames:
    """JoinGroup without a member id: each request gets an id (KIP-394), and nobody comes back with it."""
    R = M.JoinGroupRequest
    protocol = R.JoinGroupRequestProtocol(name="range", metadata=b"")
    return [
        frame(
            ApiKey.JOIN_GROUP,
            4,
            R(
                group_id="given-away",
                session_timeout_ms=timeout_ms,
                rebalance_timeout_ms=1,
                protocol_type="consumer",
                protocols=[protocol],
            ),
        )
        for timeout_ms in session_timeouts_ms
    ]


def producers(numbers: Iterator[int]) -> Frames:
    """Produce a batch of each of these producers."""
    R = M.ProduceRequest
    frames = []
    for number in numbers:
        batch = encode_batch([(TIME, None, b"")], producer_id=number, producer_epoch=0, base_sequence=0)
        part = R.PartitionProduceData(index=1, records=batch)
        asked = R(acks=1, timeout_ms=1, topic_data=[R.TopicProduceData(name=DOOMED, partition_data=[part])])
        frames.append(frame(ApiKey.PRODUCE, 8, asked))
    return frames


def colliding_producers(count: int) -> Iterator[int]:
    """Yield producer ids that a multiplication without a secret puts into one place of a table."""
    back = pow(0x9E3779B97F4A7C15, -1, 2**64)
    found = (at * back % 2**64 for at in range(1, 2**32))
    fitting = (one for one in found if one < 2**62)
    return (one for one, _ in zip(fitting, range(count), strict=False))


BY_NAME = {
    attack.__name__: (attack, api_key)
    for attack, api_key in (
        (offsets_of_one_partition, ApiKey.OFFSET_FETCH),
        (producers_of_one_partition, ApiKey.DESCRIBE_PRODUCERS),
        (one_transaction, ApiKey.DESCRIBE_TRANSACTIONS),
        (offsets_of_all_segments, ApiKey.LIST_OFFSETS),
        (batches_between_entries_of_an_index, ApiKey.FETCH),
        (aborted_transactions, ApiKey.FETCH),
        (colliding_partitions, ApiKey.FETCH),
        (markers_of_one_hash, ApiKey.WRITE_TXN_MARKERS),
        (groups_that_are_not_there, ApiKey.DESCRIBE_CONFIGS),
        (coordinators, ApiKey.FIND_COORDINATOR),
        (deletions_of_records, ApiKey.DELETE_RECORDS),
        (sessions, ApiKey.FETCH),
        (producers_that_only_end, ApiKey.WRITE_TXN_MARKERS),
        (offsets_in_the_store, ApiKey.OFFSET_COMMIT),
    )
}
"""The attacks that are requests of one connection. Each is compared with the bounds of an API."""
