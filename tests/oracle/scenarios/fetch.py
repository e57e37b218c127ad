"""Fetch: offsets, limits, epochs, long polls. Sessions are in `fetch_sessions.py`."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey, is_flexible
from kbroker.protocol.compression import Codec
from tests.oracle.scenario import Talk, lower, scenario
from tests.oracle.scenarios.requests import (
    NO_TEXTS,
    FetchPartition,
    FetchTopic,
    fetch,
    fetch_partition,
    produce,
    records,
)

FETCH = ApiKey.FETCH
BY_ID = 13  # topics are named by their ids from this version on (KIP-516)


def of(t: Talk, topic: str, partitions: Iterable[FetchPartition]) -> FetchTopic:
    """Name a topic as the version wants it: by name or by id. A topic that does not exist has an id of its own."""
    return FetchTopic(topic=topic, topic_id=t.topic_ids.get(topic, b"\x07" * 16), partitions=list(partitions))


def one(t: Talk, topic: str, **fields: int) -> FetchTopic:
    return of(t, topic, [fetch_partition(**fields)])


@scenario(FETCH)
def from_the_beginning_the_middle_and_the_end(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records(3), records(4, first=3), records(2, first=7))
    for offset in (0, 1, 3, 6, 7, 8, 9):
        t.ask(fetch([one(t, topic, offset=offset)]))


@scenario(FETCH)
def outside_the_log(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records(3))
    for offset in (4, 2**62, -1, -2, -(2**63)):
        t.ask(fetch([one(t, topic, offset=offset)]))


@scenario(FETCH)
def before_the_log_start(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records(3), records(3))
    cut = M.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=4)
    t.do(
        M.DeleteRecordsRequest(
            topics=[M.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[cut])], timeout_ms=30000
        )
    )
    for offset in (0, 3, 4):
        t.ask(fetch([one(t, topic, offset=offset)]))


@scenario(FETCH)
def an_empty_log(t: Talk) -> None:
    t.ask(fetch([one(t, t.topic())]))


@scenario(FETCH)
def topics_and_partitions_that_are_not_there(t: Talk) -> None:
    topic = t.topic()
    t.ask(fetch([one(t, t.name("nowhere"))]))
    for partition in (1, -1, 2**31 - 1):
        t.ask(fetch([one(t, topic, partition=partition)]))
    t.ask(fetch([of(t, topic, [fetch_partition(0), fetch_partition(9)]), one(t, t.name("nowhere"))]))


@scenario(FETCH, since=BY_ID)
def ids_that_mean_nothing(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records())
    t.ask(fetch([FetchTopic(topic_id=bytes(16), partitions=[fetch_partition()])]))
    t.ask(fetch([FetchTopic(topic_id=b"\x09" * 16, partitions=[fetch_partition()]), one(t, topic)]))


@scenario(FETCH, until=BY_ID - 1)
def names_that_cannot_be(t: Talk) -> None:
    for name in ("", "a b", "..", "x" * 250):
        t.ask(fetch([FetchTopic(topic=name, partitions=[fetch_partition()])]))


@scenario(FETCH)
def nothing(t: Talk) -> None:
    t.ask(fetch([]))
    t.ask(fetch([of(t, t.topic(), [])]))


@scenario(FETCH)
def limits_of_a_partition(t: Talk) -> None:
    """Batches are whole up to the limit; the first batch is sent whatever its size (KIP-74)."""
    topic = t.topic()
    t.produce(topic, *(records(1, 100, first=n) for n in range(5)))
    for limit in (0, 1, 170, 171, 172, 350, 1000, -1):
        t.ask(fetch([one(t, topic, max_bytes=limit)]))


@scenario(FETCH)
def limits_of_a_response(t: Talk) -> None:
    topic = t.topic(partitions=3)
    for partition in range(3):
        t.produce(topic, *(records(1, 100, first=n) for n in range(3)), partition=partition)
    for limit in (0, 1, 200, 600, 1200, 10_000, -1):
        t.ask(fetch([of(t, topic, map(fetch_partition, range(3)))], max_bytes=limit))
    uneven = [fetch_partition(0, max_bytes=1), fetch_partition(1), fetch_partition(2, max_bytes=1)]
    t.ask(fetch([of(t, topic, uneven)]))
    t.ask(fetch([of(t, topic, [fetch_partition(0, offset=9), fetch_partition(1), fetch_partition(2)])], max_bytes=1))


@scenario(FETCH)
def across_segments(t: Talk) -> None:
    """A read ends where its segment ends."""
    topic = t.topic(segment_bytes=500)
    t.produce(topic, *(records(1, 100, first=n) for n in range(8)))
    for offset in (0, 2, 3, 5, 7):
        t.ask(fetch([one(t, topic, offset=offset)]))


@scenario(FETCH)
def the_same_partition_twice(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records(3), records(3))
    t.ask(fetch([of(t, topic, [fetch_partition(0, 0), fetch_partition(0, 3)])]))


@scenario(FETCH, since=9)
def leader_epochs(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records())
    for epoch in (-1, 0, 1, 7, -2):
        t.ask(fetch([one(t, topic, current_leader_epoch=epoch)]))


@scenario(FETCH, since=12)
def epochs_that_diverge(t: Talk) -> None:
    """KIP-595: the epoch of the last fetched record is checked."""
    topic = t.topic()
    t.produce(topic, records())
    for epoch, offset in ((0, 3), (0, 2), (0, 5), (1, 3), (5, 3), (-2, 3)):
        t.ask(fetch([one(t, topic, offset=offset, last_fetched_epoch=epoch)]))


@scenario(FETCH)
def isolation(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records())
    for level in (0, 1, 2, -1):
        t.ask(fetch([one(t, topic)], isolation_level=level))
        t.ask(fetch([one(t, topic, offset=9)], isolation_level=level))


@scenario(FETCH)
def zstd(t: Talk) -> None:
    """Clients before version 10 do not know zstd: they may not read a topic whose config compresses with it."""
    for codec in ("zstd", "producer"):
        topic = t.topic(codec, compression_type=codec)
        t.produce(topic, records(codec=Codec.ZSTD))
        t.ask(fetch([one(t, topic)]))
        t.ask(fetch([one(t, topic, offset=99)]))


@scenario(FETCH, since=11)
def a_rack(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records())
    t.ask(fetch([one(t, topic)], rack_id="r1"))


@scenario(FETCH)
def as_a_replica(t: Talk) -> None:
    """Fetches as a replica that does not exist, and as the debugging consumer -2."""
    topic = t.topic()
    t.produce(topic, records())
    state = M.FetchRequest.ReplicaState
    for replica in (-2, 5):
        t.ask(fetch([one(t, topic)], replica_id=replica, replica_state=state(replica_id=replica, replica_epoch=-1)))


@scenario(FETCH, since=12)
def of_another_cluster(t: Talk) -> None:
    """Only fetches of KRaft's own log check the cluster id."""
    topic = t.topic()
    t.produce(topic, records())
    t.ask(fetch([one(t, topic)], cluster_id="another"))


@scenario(FETCH)
def a_long_poll_ends_empty(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records())
    t.ask(fetch([one(t, topic, offset=3)], max_wait_ms=150), after_ms=150)


@scenario(FETCH)
def a_long_poll_is_woken(t: Talk) -> None:
    topic = t.topic(partitions=2)
    waiting = t.send(fetch([of(t, topic, [fetch_partition(0), fetch_partition(1)])], max_wait_ms=20000))
    t.still_waits(waiting, 30)
    t.produce(topic, records(), partition=1)
    t.receive(waiting)


@scenario(FETCH)
def a_long_poll_waits_for_enough(t: Talk) -> None:
    topic = t.topic()
    waiting = t.send(fetch([one(t, topic)], max_wait_ms=20000, min_bytes=400))
    t.produce(topic, records(1, 100))
    t.still_waits(waiting, 30)
    t.produce(topic, records(1, 300))
    t.receive(waiting)


@scenario(FETCH)
def nothing_waits_that_cannot_come(t: Talk) -> None:
    """An error, no partition, or enough bytes are answered at once, whatever the time to wait."""
    topic = t.topic()
    t.produce(topic, records())
    t.ask(fetch([one(t, topic, offset=99)], max_wait_ms=20000, min_bytes=10_000))
    t.ask(fetch([one(t, t.name("nowhere"))], max_wait_ms=20000))
    t.ask(fetch([], max_wait_ms=20000))
    t.ask(fetch([one(t, topic)], max_wait_ms=20000, min_bytes=0))
    t.ask(fetch([one(t, topic, offset=3)], max_wait_ms=20000, min_bytes=0))
    t.ask(fetch([one(t, topic, offset=3)], max_wait_ms=-1))
    t.ask(fetch([one(t, topic, max_bytes=50)], max_wait_ms=100, min_bytes=100))


@scenario(FETCH)
def answers_keep_the_order_of_requests(t: Talk) -> None:
    topic = t.topic()
    t.produce(topic, records())
    waiting = t.send(fetch([one(t, topic, offset=3)], max_wait_ms=100))
    ready = t.send(fetch([one(t, topic)]))
    t.receive(waiting, after_ms=100)
    t.receive(ready)


@scenario(FETCH, alone=True)
def a_topic_deleted_under_a_long_poll(t: Talk) -> None:
    topic = t.topic()
    waiting = t.send(fetch([one(t, topic)], max_wait_ms=3000))
    t.still_waits(waiting, 30)
    gone = M.DeleteTopicsRequest.DeleteTopicState(name=topic)
    t.do(M.DeleteTopicsRequest(topics=[gone], timeout_ms=30000))
    t.receive(waiting)


@scenario(FETCH)
def an_internal_topic(t: Talk) -> None:
    """The records of an internal topic are not compared, as other scenarios write them; that it can be read is."""
    (found,) = t.do(
        M.MetadataRequest(topics=[M.MetadataRequest.MetadataRequestTopic(name="__consumer_offsets")])
    ).topics
    topic = FetchTopic(topic=found.name, topic_id=found.topic_id, partitions=[fetch_partition(offset=2**40)])
    t.names.learn("topic id", found.topic_id, f"of {found.name}")

    def only_the_error(answer: M.FetchResponse) -> None:
        for partition in answer.responses[0].partitions:
            partition.high_watermark = partition.last_stable_offset = 0

    t.ask(fetch([topic]), keep=only_the_error)


@scenario(FETCH)
def what_was_not_acknowledged_by_all_is_read(t: Talk) -> None:
    topic = t.topic()
    t.do(produce(topic, records(), acks=1))
    t.ask(fetch([one(t, topic)], max_wait_ms=5000))


@scenario(FETCH, until=BY_ID - 1)
def names_that_are_no_text(t: Talk) -> None:
    whole = lower(fetch([FetchTopic(topic="xx", partitions=[fetch_partition()])]), t.version).encode(t.version)
    for broken in NO_TEXTS:
        t.ask_bytes(FETCH, t.version, whole.replace(b"xx", broken), flexible=is_flexible(FETCH, t.version))
