"""ListOffsets: by time, special times, leader epochs."""

from __future__ import annotations

import time

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.records import encode_batch
from tests.oracle.scenario import Talk, scenario
from tests.oracle.scenarios.requests import T0, offsets_of, records

LIST_OFFSETS = ApiKey.LIST_OFFSETS
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


def ask(t: Talk, topic: str, *timestamps: int, partition: int = 0, **fields: int) -> None:
    for timestamp in timestamps:
        t.ask(M.ListOffsetsRequest(replica_id=-1, topics=[offsets_of(topic, [(partition, timestamp)], **fields)]))


@scenario(LIST_OFFSETS)
def the_ends_of_a_log(t: Talk) -> None:
    topic = t.topic()
    ask(t, topic, LATEST, EARLIEST)
    t.produce(topic, records(3), records(3))
    ask(t, topic, LATEST, EARLIEST)
    cut = M.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=2)
    t.do(
        M.DeleteRecordsRequest(
            topics=[M.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[cut])], timeout_ms=30000
        )
    )
    ask(t, topic, LATEST, EARLIEST)


@scenario(LIST_OFFSETS)
def special_times(t: Talk) -> None:
    topic = t.topic()
    ask(t, topic, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED)
    t.produce(topic, records(3, at=T0 + 50), records(3), records(2, codec=Codec.GZIP, at=T0 + 20))
    ask(t, topic, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, -6, -7, -(2**63))


@scenario(LIST_OFFSETS)
def by_time(t: Talk) -> None:
    topic = t.topic()
    ask(t, topic, T0)
    t.produce(topic, records(3), records(3, at=T0 + 10, codec=Codec.LZ4), records(3, at=T0 + 5))
    ask(t, topic, 0, T0 - 1, T0, T0 + 1, T0 + 2, T0 + 3, T0 + 10, T0 + 11, T0 + 12, T0 + 13, 2**62)


@scenario(LIST_OFFSETS)
def times_that_go_back_within_batches(t: Talk) -> None:
    topic = t.topic(index_interval_bytes=100)
    for n, codec in enumerate([Codec.NONE, Codec.LZ4, Codec.GZIP, Codec.NONE]):
        times = [T0 + 20 * n + step for step in (3, 9, 0, 9, 5)]
        t.produce(topic, encode_batch([(time_ms, b"k", b"v" * 40) for time_ms in times], codec=codec))
    ask(t, topic, *range(T0 - 1, T0 + 72), MAX_TIMESTAMP)


@scenario(LIST_OFFSETS)
def by_time_over_segments(t: Talk) -> None:
    topic = t.topic(segment_bytes=500)
    t.produce(topic, *(records(1, 100, first=n, at=T0 + 100 * n) for n in range(8)))
    ask(t, topic, T0, T0 + 99, T0 + 100, T0 + 450, T0 + 700, T0 + 701)
    cut = M.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=5)
    t.do(
        M.DeleteRecordsRequest(
            topics=[M.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[cut])], timeout_ms=30000
        )
    )
    ask(t, topic, T0, T0 + 450, T0 + 600)


@scenario(LIST_OFFSETS)
def log_append_time(t: Talk) -> None:
    topic = t.topic(message_timestamp_type="LogAppendTime")
    t.produce(topic, records(3))
    then = time.time() + 0.003
    while time.time() < then:  # so that the second batch has a time of its own
        pass
    t.produce(topic, records(3))
    ask(t, topic, T0, T0 * 2, MAX_TIMESTAMP)


@scenario(LIST_OFFSETS)
def many_partitions(t: Talk) -> None:
    topic, other = t.topic(partitions=3), t.topic("other")
    t.produce(topic, records(4), partition=1)
    wanted = [
        offsets_of(topic, [(2, LATEST), (0, EARLIEST), (1, LATEST), (9, LATEST)]),
        offsets_of(other, [(0, LATEST)]),
    ]
    t.ask(M.ListOffsetsRequest(replica_id=-1, topics=wanted))


@scenario(LIST_OFFSETS)
def the_same_partition_twice(t: Talk) -> None:
    topic = t.topic(partitions=2)
    t.produce(topic, records(4))
    t.ask(M.ListOffsetsRequest(replica_id=-1, topics=[offsets_of(topic, [(0, LATEST), (0, EARLIEST), (1, LATEST)])]))
    twice = [offsets_of(topic, [(0, LATEST)]), offsets_of(topic, [(0, EARLIEST)])]
    t.ask(M.ListOffsetsRequest(replica_id=-1, topics=twice))


@scenario(LIST_OFFSETS)
def topics_and_partitions_that_are_not_there(t: Talk) -> None:
    topic = t.topic()
    ask(t, t.name("nowhere"), LATEST)
    ask(t, "", LATEST)
    ask(t, "a b", LATEST)
    for partition in (1, -1, 2**31 - 1):
        ask(t, topic, LATEST, EARLIEST, T0, partition=partition)


@scenario(LIST_OFFSETS)
def nothing(t: Talk) -> None:
    t.ask(M.ListOffsetsRequest(replica_id=-1, topics=[]))
    t.ask(M.ListOffsetsRequest(replica_id=-1, topics=[offsets_of(t.topic(), [])]))


@scenario(LIST_OFFSETS, since=4)
def leader_epochs(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records())
    for epoch in (-1, 0, 1, 9, -2):
        ask(t, topic, LATEST, T0, current_leader_epoch=epoch)


@scenario(LIST_OFFSETS, since=2)
def isolation(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records())
    for level in (0, 1, 2, -1):
        for timestamp in (LATEST, EARLIEST, T0):
            t.ask(
                M.ListOffsetsRequest(replica_id=-1, isolation_level=level, topics=[offsets_of(topic, [(0, timestamp)])])
            )


@scenario(LIST_OFFSETS)
def as_a_replica(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records())
    for replica in (-2, 5, 0):
        t.ask(M.ListOffsetsRequest(replica_id=replica, topics=[offsets_of(topic, [(0, LATEST)])]))


@scenario(LIST_OFFSETS, until=0)
def offsets_before_a_time(t: Talk) -> None:
    """Version 0 asks for the first offsets of segments that are older."""
    topic = t.topic(segment_bytes=500)
    t.produce(topic, *(records(1, 100, first=n) for n in range(8)))
    for count in (0, 1, 2, 100, -1):
        ask(t, topic, LATEST, EARLIEST, max_num_offsets=count)
    ask(t, topic, 0, 2**62, max_num_offsets=3)
    ask(t, t.topic("empty"), LATEST, EARLIEST, max_num_offsets=3)
    cut = M.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=2)
    whole = t.topic("whole")
    t.produce(whole, records(2))
    t.do(
        M.DeleteRecordsRequest(
            topics=[M.DeleteRecordsRequest.DeleteRecordsTopic(name=whole, partitions=[cut])], timeout_ms=30000
        )
    )
    ask(t, whole, LATEST, EARLIEST, 2**62, max_num_offsets=3)
