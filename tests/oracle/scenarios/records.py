"""DeleteRecords and OffsetForLeaderEpoch."""

from __future__ import annotations

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.oracle.scenario import Talk, scenario
from tests.oracle.scenarios.requests import fetch, fetch_partition, records

DELETE_RECORDS, EPOCHS = ApiKey.DELETE_RECORDS, ApiKey.OFFSET_FOR_LEADER_EPOCH


def delete_before(topics: dict[str, list[tuple[int, int]]], timeout_ms: int = 30000) -> M.DeleteRecordsRequest:
    one = M.DeleteRecordsRequest.DeleteRecordsPartition
    wanted = [
        M.DeleteRecordsRequest.DeleteRecordsTopic(
            name=name, partitions=[one(partition_index=index, offset=offset) for index, offset in cuts]
        )
        for name, cuts in topics.items()
    ]
    return M.DeleteRecordsRequest(topics=wanted, timeout_ms=timeout_ms)


@scenario(DELETE_RECORDS)
def up_to_an_offset(t: Talk) -> None:
    topic = t.topic(partitions=2)
    t.produce(topic, records(3), records(3))
    for offset in (0, 2, 1, 5, 6):
        t.ask(delete_before({topic: [(0, offset)]}))
    for offset in (5, 6):
        t.ask(fetch([M.FetchRequest.FetchTopic(topic=topic, partitions=[fetch_partition(0, offset)])]), version=12)


@scenario(DELETE_RECORDS)
def up_to_the_high_watermark(t: Talk) -> None:
    topic = t.topic(partitions=2)
    t.produce(topic, records(3))
    t.ask(delete_before({topic: [(0, -1), (1, -1)]}))
    t.produce(topic, records(3))
    t.ask(delete_before({topic: [(0, -1)]}))


@scenario(DELETE_RECORDS)
def offsets_that_cannot_be(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records(3))
    for offset in (4, 2**62, -2, -(2**63)):
        t.ask(delete_before({topic: [(0, offset)]}))


@scenario(DELETE_RECORDS)
def of_topics_and_partitions_that_are_not_there(t: Talk) -> None:
    topic = t.topic()
    t.ask(delete_before({t.name("nowhere"): [(0, 0)], topic: [(0, 0), (1, 0), (-1, 0)]}))
    t.ask(delete_before({"a b": [(0, 0)], "": [(0, 0)]}))


@scenario(DELETE_RECORDS)
def of_nothing(t: Talk) -> None:
    t.ask(delete_before({}))
    t.ask(delete_before({t.topic(): []}))


@scenario(DELETE_RECORDS)
def of_a_partition_twice(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records(3))
    t.ask(delete_before({topic: [(0, 2), (0, 1)]}))


@scenario(DELETE_RECORDS)
def of_an_internal_topic(t: Talk) -> None:
    t.ask(delete_before({"__consumer_offsets": [(0, 0)]}))


@scenario(DELETE_RECORDS)
def of_a_compacted_topic(t: Talk) -> None:
    """DeleteRecords works only on topics whose cleanup policy deletes."""
    for policy in ("compact", "compact,delete"):
        topic = t.topic(policy.replace(",", "-"), cleanup_policy=policy)
        t.produce(topic, records(3))
        t.ask(delete_before({topic: [(0, 2)]}))


def epoch_ends(
    topics: dict[str, list[tuple[int, int]]], replica_id: int = -2, current: int = -1
) -> M.OffsetForLeaderEpochRequest:
    one = M.OffsetForLeaderEpochRequest.OffsetForLeaderPartition
    wanted = [
        M.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
            topic=name,
            partitions=[
                one(partition=index, current_leader_epoch=current, leader_epoch=epoch) for index, epoch in asked
            ],
        )
        for name, asked in topics.items()
    ]
    return M.OffsetForLeaderEpochRequest(replica_id=replica_id, topics=wanted)


@scenario(EPOCHS)
def ends_of_epochs(t: Talk) -> None:
    topic = t.topic()
    for epoch in (0, 1, -1):
        t.ask(epoch_ends({topic: [(0, epoch)]}))
    t.produce(topic, records(3))
    for epoch in (0, 1, 9, -1, -2):
        t.ask(epoch_ends({topic: [(0, epoch)]}))


@scenario(EPOCHS)
def epochs_of_topics_that_are_not_there(t: Talk) -> None:
    topic = t.topic()
    t.ask(epoch_ends({t.name("nowhere"): [(0, 0)], topic: [(0, 0), (1, 0), (-1, 0)]}))
    t.ask(epoch_ends({"a b": [(0, 0)], "": [(0, 0)]}))


@scenario(EPOCHS, since=2)
def current_epochs(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records(3))
    for current in (0, 1, 9, -2):
        t.ask(epoch_ends({topic: [(0, 0)]}, current=current))


@scenario(EPOCHS)
def epochs_of_nothing(t: Talk) -> None:
    t.ask(epoch_ends({}))
    t.ask(epoch_ends({t.topic(): []}))


@scenario(EPOCHS, since=3)
def epochs_for_a_replica(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records(3))
    for replica in (-1, 0, 5):
        t.ask(epoch_ends({topic: [(0, 0)]}, replica_id=replica))


@scenario(EPOCHS)
def epochs_of_a_partition_twice(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records(3))
    t.ask(epoch_ends({topic: [(0, 0), (0, 1)]}))
