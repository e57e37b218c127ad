"""The content of transactions: records, offsets of groups, markers; and requests that show it (KIP-98, 447, 664)."""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import Batch, read_batches
from kbroker.rules.java_hash import java_string_hash
from tests.oracle.scenario import Talk, scenario
from tests.oracle.scenarios.group_members import Member, alone
from tests.oracle.scenarios.offsets import store
from tests.oracle.scenarios.requests import fetch, fetch_partition, offsets_of, produce, records
from tests.oracle.scenarios.transactions import Txn, described, two_producers

PRODUCE, FETCH, LIST_OFFSETS = ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS
COMMIT, OFFSET_FETCH, MARKERS = ApiKey.TXN_OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.WRITE_TXN_MARKERS
PRODUCERS, DESCRIBE, LIST = ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS
TRANSACTIONAL_SINCE = 3
GENERATION_SINCE = 3
COMMITTED, UNCOMMITTED = 1, 0


# --- Produce ---------------------------------------------------------------------------------------------------------


@scenario(PRODUCE, since=TRANSACTIONAL_SINCE)
def in_a_transaction(t: Talk) -> None:
    topic, txn = t.topic(), Txn(t)
    txn.do_add({topic: [0]})
    t.ask(txn.batch(topic, 2))
    t.ask(txn.batch(topic, 2))
    t.ask(txn.batch(topic, base_sequence=2))
    t.ask(txn.batch(topic, base_sequence=9))
    txn.do_end()
    txn.do_add({topic: [0]})
    t.ask(txn.batch(topic, base_sequence=3))


@scenario(PRODUCE, since=TRANSACTIONAL_SINCE)
def with_sequences_of_an_ended_transaction(t: Talk) -> None:
    topic, txn = t.topic(), Txn(t)
    txn.do_add({topic: [0]})
    t.ask(txn.batch(topic, 2))
    txn.do_end()
    txn.do_add({topic: [0]})
    t.ask(txn.batch(topic, 2))
    t.ask(txn.batch(topic, base_sequence=2))
    t.ask(txn.batch(topic, 2))


@scenario(PRODUCE, since=TRANSACTIONAL_SINCE, alone=True)
def to_partitions_that_are_not_in_the_transaction(t: Talk) -> None:
    """KIP-890: the first batch is verified.

    Kafka verifies several producers at a time, and gives all of them the code that the oldest client among them
    understands.
    """
    topic, txn = t.topic(partitions=2), Txn(t)
    t.ask(txn.batch(topic))
    txn.do_send(topic)
    t.ask(txn.batch(topic, partition=1))
    txn.do_end()
    t.ask(txn.batch(topic))


@scenario(PRODUCE, since=TRANSACTIONAL_SINCE)
def by_strangers_to_the_transaction(t: Talk) -> None:
    topic, txn = t.topic(), Txn(t)
    txn.do_add({topic: [0]})
    for fields in ({"producer_id": txn.producer_id + 1_000_000}, {"producer_epoch": 7}):
        t.ask(txn.batch(topic, **fields))
    txn.do_send(topic, add=False)
    t.ask(txn.batch(topic, producer_epoch=txn.epoch + 1, base_sequence=0))
    old = txn.epoch
    txn.do_init()
    t.ask(txn.batch(topic, producer_epoch=old, base_sequence=1))
    txn.do_add({topic: [0]})
    t.ask(txn.batch(topic, base_sequence=1))
    t.ask(txn.batch(topic))


@scenario(PRODUCE, since=TRANSACTIONAL_SINCE, alone=True)
def as_another_producer(t: Talk) -> None:
    """Only a batch that begins a transaction in its partition is verified."""
    topic, mine, other, as_other = two_producers(t)
    for partition, sequence in ((1, 0), (0, 1), (0, 2)):
        t.ask(mine.batch(topic, partition=partition, base_sequence=sequence, **as_other))
    described(t, mine, other)
    other.do_end()
    t.ask(mine.batch(topic, base_sequence=3, **as_other))
    end_of(t, topic)


@scenario(PRODUCE, since=TRANSACTIONAL_SINCE, alone=True)
def to_a_topic_that_is_made_again(t: Talk) -> None:
    """The transaction has the topic by its name."""
    topic, txn = t.topic(), Txn(t)
    txn.do_send(topic)
    t.do(M.DeleteTopicsRequest(topic_names=[topic], timeout_ms=30000), version=5)
    t.topic()
    end_of(t, topic)
    t.ask(txn.batch(topic))
    end_of(t, topic)
    txn.do_end()
    end_of(t, topic)
    producers(t, topic)


@scenario(PRODUCE, since=TRANSACTIONAL_SINCE, alone=True)
def to_a_topic_that_is_deleted(t: Talk) -> None:
    topic, other, txn = t.topic(), t.topic("other"), Txn(t)
    txn.do_send(topic)
    txn.do_send(other)
    t.do(M.DeleteTopicsRequest(topic_names=[topic], timeout_ms=30000), version=5)
    t.until(lambda: is_gone(t, topic), "end of the topic")
    t.ask(txn.batch(topic))
    t.ask(txn.add({topic: [0]}), version=3)
    t.ask(
        M.DescribeProducersRequest(topics=[M.DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])])
    )
    write(t, marker(txn.producer_id, txn.epoch, {topic: [0]}))
    described(t, txn)
    t.ask(txn.batch(other))
    t.ask(txn.end(True), version=4)
    txn.await_end()
    end_of(t, other)


def is_gone(t: Talk, topic: str) -> bool:
    asked = M.ListOffsetsRequest(replica_id=-1, topics=[offsets_of(topic, [(0, -1)])])
    return bool(t.do(asked).topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@scenario(PRODUCE, since=TRANSACTIONAL_SINCE)
def records_that_are_in_no_transaction_beside_one(t: Talk) -> None:
    """Batches without a transaction come from a producer that has a transaction there, and from others."""
    topic, txn = t.topic(), Txn(t)
    txn.do_send(topic)
    known = {"producer_id": txn.producer_id, "producer_epoch": txn.epoch}
    t.ask(produce(topic, records(1, base_sequence=1, **known)))
    t.ask(produce(topic, records(1)))
    t.ask(produce(topic, records(1, base_sequence=1, is_transactional=True, **known)))
    other = Txn(t, "other")
    other.do_add({topic: [0]})
    t.ask(produce(topic, records(1, base_sequence=0, producer_id=other.producer_id, producer_epoch=other.epoch)))


# --- Fetch and ListOffsets -------------------------------------------------------------------------------------------


def some_transactions(t: Talk) -> tuple[str, Txn, Txn]:
    """Make offsets 0 to 9: plain, committed, aborted by one producer, open of another, plain."""
    topic, first, second = t.topic(), Txn(t, "a"), Txn(t, "b")
    t.produce(topic, records(1))
    first.do_send(topic, 2)
    first.do_end()
    first.do_send(topic, 2)
    first.do_end(commit=False)
    second.do_send(topic)
    t.produce(topic, records(1))
    return topic, first, second


def look(t: Talk, topic: str, offset: int = 0, isolation: int = COMMITTED, max_bytes: int = 1 << 20) -> None:
    topics = [
        M.FetchRequest.FetchTopic(
            topic=topic, topic_id=t.topic_ids[topic], partitions=[fetch_partition(0, offset, max_bytes)]
        )
    ]
    t.ask(fetch(topics, isolation_level=isolation))


@scenario(FETCH, since=4)
def of_transactions(t: Talk) -> None:
    topic, _, second = some_transactions(t)
    for isolation in (UNCOMMITTED, COMMITTED):
        for offset in (0, 2, 4, 7, 8):
            look(t, topic, offset, isolation)
    look(t, topic, max_bytes=1)
    look(t, topic, 3, max_bytes=200)
    second.do_end(commit=False)
    look(t, topic)
    look(t, topic, 7)


@scenario(FETCH, until=3)
def of_transactions_by_old_clients(t: Talk) -> None:
    topic, _, _ = some_transactions(t)
    look(t, topic, 0)


@scenario(FETCH, since=4)
def of_aborted_transactions_over_segments(t: Talk) -> None:
    topic = t.topic(segment_bytes=200)
    for word in "abc":
        txn = Txn(t, word)
        for _ in range(3):
            txn.do_send(topic)
            t.produce(topic, records(1, 100))
        txn.do_end(commit=word == "b")
    for offset in (0, 2, 7, 13, 15):
        look(t, topic, offset)
        look(t, topic, offset, max_bytes=1)


@scenario(LIST_OFFSETS, since=2)
def by_isolation(t: Talk) -> None:
    topic, _, second = some_transactions(t)

    def ask() -> None:
        for isolation in (UNCOMMITTED, COMMITTED):
            for timestamp in (-1, -2, 0, 2**62):
                wanted = [offsets_of(topic, [(0, timestamp)])]
                t.ask(M.ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=wanted))

    ask()
    second.do_end()
    ask()


# --- TxnOffsetCommit -------------------------------------------------------------------------------------------------


def commit(
    txn: Txn, group: str, topics: dict[str, list[tuple[int, int]]], **fields: object
) -> M.TxnOffsetCommitRequest:
    R = M.TxnOffsetCommitRequest
    metadata = fields.pop("metadata", "m")
    wanted = [
        R.TxnOffsetCommitRequestTopic(
            name=name,
            partitions=[
                R.TxnOffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=offset,
                    committed_leader_epoch=2,
                    committed_metadata=metadata,  # type: ignore[arg-type]
                )
                for index, offset in partitions
            ],
        )
        for name, partitions in topics.items()
    ]
    return R(**{**txn.known(), "group_id": group, "topics": wanted, **fields})  # type: ignore[arg-type]


def committed_offsets(group: str, topic: str, stable: bool = True, partitions: tuple[int, ...] = (0,)) -> M.Message:
    one = M.OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=list(partitions))
    groups = [M.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[one])]
    return M.OffsetFetchRequest(groups=groups, require_stable=stable)


def seen(t: Talk, group: str, topic: str, stable: bool = True, partitions: tuple[int, ...] = (0,)) -> None:
    """Compare the offsets that are committed now."""
    t.ask(committed_offsets(group, topic, stable, partitions), version=8)


def is_pending(t: Talk, group: str, topic: str) -> bool:
    """Return whether a transaction has a pending offset there."""
    (found,) = t.do(committed_offsets(group, topic), version=8).groups[0].topics[0].partitions
    return bool(found.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT)


def of_member(member: Member) -> dict[str, object]:
    return {"generation_id": member.generation, "member_id": member.member_id, "group_instance_id": member.instance}


@scenario(COMMIT)
def offsets_in_a_transaction(t: Talk) -> None:
    topic, group, txn = t.topic(partitions=2), t.name("g"), Txn(t)
    store(t, group, topic, (0, 1))
    for is_commit, offset in ((True, 5), (False, 7)):
        txn.do_add_offsets(group)
        t.ask(commit(txn, group, {topic: [(0, offset)]}))
        t.ask(commit(txn, group, {topic: [(0, offset + 1), (1, offset)]}, metadata=None))
        for stable in (True, False):
            seen(t, group, topic, stable, (0, 1))
        txn.do_end(is_commit)
        seen(t, group, topic, True, (0, 1))


@scenario(COMMIT, alone=True)
def offsets_of_a_group_that_is_not_in_the_transaction(t: Talk) -> None:
    topic, group, txn = t.topic(), t.name("g"), Txn(t)
    one = {topic: [(0, 5)]}
    t.ask(commit(txn, group, one))
    txn.do_add({topic: [0]})
    t.ask(commit(txn, group, one))
    txn.do_add_offsets(group)
    t.ask(commit(txn, group, one))
    txn.do_end()
    t.ask(commit(txn, group, one))
    seen(t, group, topic)


@scenario(COMMIT)
def offsets_by_strangers_to_the_transaction(t: Talk) -> None:
    topic, group, txn = t.topic(), t.name("g"), Txn(t)
    one = {topic: [(0, 5)]}
    txn.do_add_offsets(group)
    t.ask(commit(txn, group, one, transactional_id=t.name("nowhere")))
    t.ask(commit(txn, group, one, producer_id=txn.producer_id + 1_000_000))
    t.ask(commit(txn, group, one, producer_epoch=txn.epoch + 1))
    old = txn.epoch
    txn.do_init()
    t.ask(commit(txn, group, one, producer_epoch=old))
    txn.do_add_offsets(group)
    t.ask(commit(txn, group, one))
    t.ask(commit(txn, group, one, producer_epoch=old))
    seen(t, group, topic)


@scenario(COMMIT, alone=True)
def offsets_as_another_producer(t: Talk) -> None:
    topic, mine, other, as_other = two_producers(t)
    group = t.name("g")
    mine.do_add_offsets(group)
    t.ask(commit(mine, group, {topic: [(0, 5)]}, **as_other))
    other.do_add_offsets(group)
    t.ask(commit(mine, group, {topic: [(0, 6)]}, **as_other))
    t.ask(commit(other, group, {topic: [(0, 7)]}))
    t.ask(commit(mine, group, {topic: [(0, 8)]}, **as_other))
    mine.do_end(commit=False)
    other.do_end()
    seen(t, group, topic)


@scenario(COMMIT, alone=True)
def offsets_of_a_topic_that_is_deleted(t: Talk) -> None:
    topic, other, group, txn = t.topic(), t.topic("other"), t.name("g"), Txn(t)
    txn.do_add_offsets(group)
    t.ask(commit(txn, group, {topic: [(0, 5)], other: [(0, 6)]}))
    t.do(M.DeleteTopicsRequest(topic_names=[topic], timeout_ms=30000), version=5)
    t.until(lambda: is_gone(t, topic), "end of the topic")
    # Kafka tells the groups of it after everybody else.
    t.until(lambda: not is_pending(t, group, topic), "end of its offset")
    t.ask(commit(txn, group, {topic: [(0, 7)], other: [(0, 8)]}))
    txn.do_end()
    seen(t, group, topic)
    seen(t, group, other)


@scenario(COMMIT, alone=True)
def offsets_of_a_transaction_without_a_name(t: Talk) -> None:
    """Kafka asks the coordinator for one producer of a transactional id at a time, and has others try again."""
    topic, group, txn = t.topic(), t.name("g"), Txn(t)
    txn.do_add_offsets(group)
    t.ask(commit(txn, group, {topic: [(0, 5)]}, transactional_id=""))


@scenario(COMMIT, since=GENERATION_SINCE)
def offsets_by_zombies(t: Talk) -> None:
    """KIP-447: a zombie is a member that is not in the generation any more."""
    member = alone(t, instance="i")
    topic, txn = t.topic(), Txn(t)
    one, me = {topic: [(0, 5)]}, of_member(member)
    txn.do_add_offsets(member.group)
    for fields in (
        {"generation_id": 0},
        {"generation_id": 9},
        {"generation_id": -1},
        {"member_id": "stranger"},
        {"member_id": "stranger", "group_instance_id": None},
        {"group_instance_id": "other"},
        {"member_id": "", "group_instance_id": None},
    ):
        t.ask(commit(txn, member.group, one, **{**me, **fields}))
    t.ask(commit(txn, member.group, one, **me))
    t.ask(commit(txn, member.group, one))
    seen(t, member.group, topic)


@scenario(COMMIT, since=GENERATION_SINCE)
def offsets_by_members_of_nothing(t: Talk) -> None:
    topic, group, txn = t.topic(), t.name("g"), Txn(t)
    txn.do_add_offsets(group)
    t.ask(commit(txn, group, {topic: [(0, 5)]}, generation_id=3, member_id="m"))
    t.ask(commit(txn, group, {topic: [(0, 5)]}, member_id="m"))
    t.ask(commit(txn, group, {topic: [(0, 5)]}, generation_id=-2))
    t.ask(M.DescribeGroupsRequest(groups=[group]))


@scenario(COMMIT, since=GENERATION_SINCE)
def offsets_in_a_rebalance(t: Talk) -> None:
    first = alone(t)
    topic, txn = t.topic(), Txn(t)
    txn.do_add_offsets(first.group)
    second = Member(t, "b")
    sent = second.send_join()
    first.beat_until(ErrorCode.REBALANCE_IN_PROGRESS)
    t.ask(commit(txn, first.group, {topic: [(0, 5)]}, **of_member(first)))
    first.join()
    second.joined(sent)
    t.ask(commit(txn, first.group, {topic: [(0, 6)]}, **of_member(first)))
    t.ask(commit(txn, first.group, {topic: [(0, 7)]}, **{**of_member(second), "generation_id": 1}))


@scenario(COMMIT)
def offsets_of_what_is_not_there(t: Talk) -> None:
    topic, group, txn = t.topic(), t.name("g"), Txn(t)
    txn.do_add_offsets(group)
    nowhere = {t.name("nowhere"): [(0, 1)], "": [(0, 1)], "a b": [(0, 1)]}
    t.ask(commit(txn, group, {topic: [(0, 1), (1, 1), (-1, 1)], **nowhere}))
    t.ask(commit(txn, group, nowhere))
    t.ask(commit(txn, group, {}))
    t.ask(commit(txn, "", {topic: [(0, 1)]}))


@scenario(COMMIT)
def metadata_in_a_transaction_too_large(t: Talk) -> None:
    topic, group, txn = t.topic(partitions=2), t.name("g"), Txn(t)
    txn.do_add_offsets(group)
    for size in (100, 101):
        t.ask(commit(txn, group, {topic: [(0, 1)]}, metadata="x" * size))
    txn.do_end()
    seen(t, group, topic)


@scenario(COMMIT)
def offsets_of_several_producers(t: Talk) -> None:
    """The offset of the last commit counts, not that of the transaction that ended last."""
    topic, group = t.topic(), t.name("g")
    first, second = Txn(t, "a"), Txn(t, "b")
    for number, txn in enumerate((first, second)):
        txn.do_add_offsets(group)
        t.ask(commit(txn, group, {topic: [(0, number)]}))
    second.do_end()
    seen(t, group, topic)
    first.do_end()
    seen(t, group, topic)


@scenario(COMMIT)
def offsets_beside_a_plain_commit(t: Talk) -> None:
    topic, group, txn = t.topic(), t.name("g"), Txn(t)
    txn.do_add_offsets(group)
    t.ask(commit(txn, group, {topic: [(0, 5)]}))
    store(t, group, topic, (0, 3))
    seen(t, group, topic, stable=False)
    txn.do_end()
    seen(t, group, topic)


@scenario(COMMIT)
def pending_offsets_that_are_deleted(t: Talk) -> None:
    topic, group, txn = t.topic(partitions=2), t.name("g"), Txn(t)
    txn.do_add_offsets(group)
    t.ask(commit(txn, group, {topic: [(0, 5), (1, 6)]}))
    one = M.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    wanted = M.OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=[one])
    t.ask(M.OffsetDeleteRequest(group_id=group, topics=[wanted]))
    txn.do_end()
    seen(t, group, topic, True, (0, 1))


@scenario(COMMIT)
def the_only_pending_offset_that_is_deleted(t: Talk) -> None:
    """The group stays at least until the transaction has ended."""
    topic, group, txn = t.topic(), t.name("g"), Txn(t)
    txn.do_add_offsets(group)
    t.ask(commit(txn, group, {topic: [(0, 5)]}))
    one = M.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    wanted = M.OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=[one])
    t.ask(M.OffsetDeleteRequest(group_id=group, topics=[wanted]))
    t.ask(M.DescribeGroupsRequest(groups=[group]))
    t.ask(M.OffsetDeleteRequest(group_id=group, topics=[wanted]))
    seen(t, group, topic)
    txn.do_end()
    t.ask(M.DescribeGroupsRequest(groups=[group]))
    t.ask(M.OffsetDeleteRequest(group_id=group, topics=[wanted]))
    t.ask(M.DescribeGroupsRequest(groups=[group]))


@scenario(COMMIT)
def a_group_of_pending_offsets_that_is_deleted(t: Talk) -> None:
    topic, group, txn = t.topic(), t.name("g"), Txn(t)
    txn.do_add_offsets(group)
    t.ask(commit(txn, group, {topic: [(0, 5)]}))
    t.ask(M.DescribeGroupsRequest(groups=[group]))
    t.ask(M.DeleteGroupsRequest(groups_names=[group]))
    txn.do_end()
    seen(t, group, topic)
    t.ask(M.DescribeGroupsRequest(groups=[group]))


@scenario(COMMIT, only=4)
def what_is_written(t: Talk) -> None:
    """Compare the batches of a transaction in `__consumer_offsets`, byte for byte except offsets and times."""
    topic, group, txn = t.topic(partitions=2), t.name("g"), Txn(t)
    place = ("__consumer_offsets", java_string_hash(group) % 3)
    begin = log_end(t, *place)
    for is_commit in (True, False):
        txn.do_add_offsets(group)
        t.do(commit(txn, group, {topic: [(0, 5)]}))
        t.do(commit(txn, group, {topic: [(1, 6)]}, metadata=None))
        txn.do_end(is_commit)
    mine = [batch for batch in written(t, *place, begin) if batch.info.producer_id == txn.producer_id]
    t.must(len(mine) != 6, f"two commits and a marker, twice: {len(mine)} batches")
    for batch in mine:
        info = batch.info
        of_batch = (info.attributes, info.producer_epoch, info.base_sequence, info.record_count)
        # The last of an offset's value is the time of its commit.
        cut = None if info.is_control else -8
        t.note("batch", [of_batch, *((one.key.hex(), one.value[:cut].hex()) for one in batch.records())])


def log_end(t: Talk, topic: str, partition: int) -> int:
    answer = t.do(M.ListOffsetsRequest(replica_id=-1, topics=[offsets_of(topic, [(partition, -1)])]))
    offset: int = answer.topics[0].partitions[0].offset
    return offset


def written(t: Talk, topic: str, partition: int, offset: int) -> list[Batch]:
    """Return the batches of an internal topic from an offset on."""
    asked = M.FetchRequest.FetchTopic(topic=topic, partitions=[fetch_partition(partition, offset, max_bytes=1 << 22)])
    (found,) = t.do(fetch([asked], max_bytes=1 << 22), version=12).responses[0].partitions
    return list(read_batches(found.records))


@scenario(OFFSET_FETCH, since=7)
def unstable_offsets(t: Talk) -> None:
    """KIP-447: a request for stable offsets waits for the transaction."""
    topic, group, txn = t.topic(partitions=3), t.name("g"), Txn(t)
    store(t, group, topic, (0, 1), (1, 1))
    txn.do_add_offsets(group)
    t.do(commit(txn, group, {topic: [(1, 5), (2, 5)]}))
    R = M.OffsetFetchRequest

    def ask() -> None:
        for stable in (True, False):
            for partitions in ([0, 1, 2], None):
                if t.version >= 8:
                    several = None if partitions is None else [
                        R.OffsetFetchRequestTopics(name=topic, partition_indexes=partitions)
                    ]  # fmt: skip
                    groups = [R.OffsetFetchRequestGroup(group_id=group, topics=several)]
                    t.ask(R(groups=groups, require_stable=stable))
                else:
                    one = None if partitions is None else [
                        R.OffsetFetchRequestTopic(name=topic, partition_indexes=partitions)
                    ]  # fmt: skip
                    t.ask(R(group_id=group, topics=one, require_stable=stable))

    ask()
    txn.do_end()
    ask()


# --- WriteTxnMarkers -------------------------------------------------------------------------------------------------


def marker(
    producer_id: int, epoch: int, topics: dict[str, list[int]], commit: bool = False, coordinator_epoch: int = 0
) -> M.WriteTxnMarkersRequest.WritableTxnMarker:
    R = M.WriteTxnMarkersRequest
    wanted = [R.WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
    return R.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commit,
        topics=wanted,
        coordinator_epoch=coordinator_epoch,
    )


def write(t: Talk, *markers: M.WriteTxnMarkersRequest.WritableTxnMarker) -> None:
    t.ask(M.WriteTxnMarkersRequest(markers=list(markers)))


def end_of(t: Talk, topic: str, isolation: int = COMMITTED) -> None:
    wanted = [offsets_of(topic, [(0, -1)])]
    t.ask(M.ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=wanted))


@scenario(MARKERS)
def the_end_of_a_transaction(t: Talk) -> None:
    topic = t.topic(partitions=2)
    for commit_it in (True, False):
        txn = Txn(t, str(commit_it))
        txn.do_send(topic)
        end_of(t, topic)
        write(t, marker(txn.producer_id, txn.epoch, {topic: [0, 1]}, commit_it))
        end_of(t, topic)
        producers(t, topic)
    look(t, topic)


@scenario(MARKERS)
def markers_from_nowhere(t: Talk) -> None:
    """Markers name a producer that is unknown there, and a topic or partition that does not exist."""
    topic = t.topic()
    write(t, marker(1_000_000_007, 3, {topic: [0, 5], t.name("nowhere"): [0]}, True))
    producers(t, topic)
    write(t, marker(1_000_000_007, 2, {topic: [0]}))
    write(t, marker(1_000_000_007, 4, {topic: [0]}))
    write(t)
    write(t, marker(1_000_000_007, 4, {}))
    producers(t, topic)


@scenario(MARKERS)
def markers_of_old_coordinators(t: Talk) -> None:
    topic = t.topic()
    for coordinator_epoch in (5, 4, 5, 6, -1):
        write(t, marker(1_000_000_008, 0, {topic: [0]}, coordinator_epoch=coordinator_epoch))
    producers(t, topic)


@scenario(MARKERS)
def markers_of_old_epochs(t: Talk) -> None:
    topic, txn = t.topic(), Txn(t)
    txn.do_init()
    txn.do_send(topic)
    write(t, marker(txn.producer_id, txn.epoch - 1, {topic: [0]}))
    end_of(t, topic)
    write(t, marker(txn.producer_id, txn.epoch + 1, {topic: [0]}))
    end_of(t, topic)
    t.ask(txn.batch(topic, base_sequence=1))


@scenario(MARKERS)
def several_markers(t: Talk) -> None:
    topic, first, second = t.topic(), Txn(t, "a"), Txn(t, "b")
    for txn in (first, second):
        txn.do_send(topic)
    write(
        t,
        marker(first.producer_id, first.epoch, {topic: [0]}, True),
        marker(second.producer_id, second.epoch, {topic: [0]}),
    )
    end_of(t, topic)
    look(t, topic)


@scenario(MARKERS)
def markers_of_the_offsets_of_a_group(t: Talk) -> None:
    topic, group, txn = t.topic(), t.name("g"), Txn(t)
    for offset, commit_it in ((5, False), (6, True)):
        txn.do_add_offsets(group)
        t.do(commit(txn, group, {topic: [(0, offset)]}))
        write(t, marker(txn.producer_id, txn.epoch, {"__consumer_offsets": [0, 1, 2]}, commit_it))
        t.until(lambda: is_stable(t, group, topic), "stable offset")
        seen(t, group, topic)
        txn.do_end()


def is_stable(t: Talk, group: str, topic: str) -> bool:
    one = M.OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    groups = [M.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[one])]
    found = t.do(M.OffsetFetchRequest(groups=groups, require_stable=True), 8).groups[0].topics[0].partitions[0]
    return bool(found.error_code != ErrorCode.UNSTABLE_OFFSET_COMMIT)


# --- DescribeProducers -----------------------------------------------------------------------------------------------


def producers(t: Talk, topic: str, *partitions: int) -> None:
    R = M.DescribeProducersRequest
    t.ask(R(topics=[R.TopicRequest(name=topic, partition_indexes=list(partitions) or [0])]))


@scenario(PRODUCERS)
def of_a_partition(t: Talk) -> None:
    topic, txn = t.topic(), Txn(t)
    producers(t, topic)
    txn.do_send(topic, 3)
    producers(t, topic)
    txn.do_end()
    producers(t, topic)
    txn.do_send(topic)
    t.produce(topic, records(2, producer_id=Txn(t, "plain").producer_id, producer_epoch=0, base_sequence=4))
    producers(t, topic)
    txn.do_end(commit=False)
    txn.do_init()
    producers(t, topic)


@scenario(PRODUCERS)
def of_partitions_that_are_not_there(t: Talk) -> None:
    topic = t.topic()
    producers(t, topic, 0, 1, -1)
    for name in (t.name("nowhere"), "", "a b"):
        producers(t, name)
    t.ask(M.DescribeProducersRequest(topics=[]))


@scenario(PRODUCERS)
def of_the_offsets_of_a_group(t: Talk) -> None:
    topic, group, txn = t.topic(), t.name("g"), Txn(t)
    txn.do_add_offsets(group)
    for offset in (1, 2):
        t.do(commit(txn, group, {topic: [(0, offset)]}))

    def only_mine(answer: M.DescribeProducersResponse) -> None:
        for one in answer.topics[0].partitions:
            one.active_producers = [each for each in one.active_producers if each.producer_id == txn.producer_id]
            for each in one.active_producers:
                each.current_txn_start_offset = min(each.current_txn_start_offset, 0)

    R = M.DescribeProducersRequest
    asked = R(topics=[R.TopicRequest(name="__consumer_offsets", partition_indexes=[0, 1, 2])])
    t.ask(asked, keep=only_mine)
    txn.do_end()
    t.ask(asked, keep=only_mine)


# --- DescribeTransactions and ListTransactions -----------------------------------------------------------------------


@scenario(DESCRIBE)
def in_every_state(t: Talk) -> None:
    topic, group, txn = t.topic(partitions=3), t.name("g"), Txn(t)
    described(t, txn)
    txn.do_add({topic: [2, 0]})
    txn.do_add_offsets(group)
    described(t, txn)
    txn.do_end()
    described(t, txn)
    txn.do_send(topic)
    txn.do_end(commit=False)
    described(t, txn)
    txn.do_init()
    described(t, txn)


@scenario(DESCRIBE)
def of_ids_that_are_not_there(t: Talk) -> None:
    txn, nowhere = Txn(t), Txn(t, "nowhere", begin=False)
    described(t, txn, nowhere)
    t.ask(M.DescribeTransactionsRequest(transactional_ids=[""]))
    t.ask(M.DescribeTransactionsRequest(transactional_ids=[]))
    described(t, txn, txn)


def listed(t: Talk, **fields: object) -> None:
    def only_mine(answer: M.ListTransactionsResponse) -> None:
        answer.transaction_states = [
            each for each in answer.transaction_states if each.transactional_id.startswith(t.prefix)
        ]

    t.ask(M.ListTransactionsRequest(**fields), keep=only_mine)  # type: ignore[arg-type]


@scenario(LIST)
def every_transaction(t: Talk) -> None:
    topic = t.topic()
    Txn(t, "empty")
    Txn(t, "open").do_send(topic)
    ended = Txn(t, "ended")
    ended.do_send(topic)
    ended.do_end()
    listed(t)


@scenario(LIST)
def by_state_and_producer(t: Talk) -> None:
    topic, empty, open_one = t.topic(), Txn(t, "empty"), Txn(t, "open")
    open_one.do_send(topic)
    for states in (
        ["Ongoing"],
        ["ongoing"],
        ["Empty", "Ongoing"],
        ["NoSuchState"],
        ["NoSuchState", "Empty"],
        [""],
        ["Dead"],
    ):
        listed(t, state_filters=states)
    for producer_ids in ([empty.producer_id], [empty.producer_id, open_one.producer_id], [-1], [1_000_000_009]):
        listed(t, producer_id_filters=producer_ids)
    listed(t, state_filters=["Ongoing"], producer_id_filters=[empty.producer_id])


@scenario(LIST, since=1)
def by_duration(t: Talk) -> None:
    topic, open_one = t.topic(), Txn(t, "open")
    Txn(t, "empty")
    open_one.do_send(topic)
    for duration_ms in (-1, 0, 3_600_000, -2, 2**62):
        listed(t, duration_filter=duration_ms)
