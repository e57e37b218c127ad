"""Followers fetch over the wire: what they get, and what their fetches make of the leader's high watermark and acks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import read_records
from kbroker.server.handlers.shared.current_leader import CurrentLeader
from tests.kit.brokers.small import SmallBroker
from tests.kit.clients.wire import WireClient
from tests.kit.logs.home import batch_of

EPOCH = 3
Part = M.FetchRequest.FetchPartition
VERSIONS = range(18)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SmallBroker]:
    with SmallBroker(tmp_path, is_member=True, processor_count=2) as started:
        yield started


def led_topic(broker: SmallBroker, in_sync: tuple[int, ...] = (0, 1, 2), **options: Any) -> bytes:
    """Make a topic "t" with one partition that this broker, 0, leads, with followers 1 and 2; return its id."""
    topic_id = broker.create_topic("t", 1, **options)
    broker.log("t", 0).lead(EPOCH, {1: -1, 2: -1}, in_sync)
    return topic_id


def request(version: int, topic_id: bytes, offset: int, *, replica_id: int = 1, **fields: Any) -> M.FetchRequest:
    """A Fetch of one partition. `fields` are those of the request, or of its partition."""
    of_request = {key: fields.pop(key) for key in ("max_wait_ms", "session_id", "session_epoch") if key in fields}
    broker_epoch = fields.pop("broker_epoch", -1)
    if version < 9:
        fields.pop("current_leader_epoch", None)
    part = Part(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, **fields)
    topic = M.FetchRequest.FetchTopic(partitions=[part])
    if version >= 13:
        topic.topic_id = topic_id
    else:
        topic.topic = "t"
    made = M.FetchRequest(topics=[topic], max_bytes=10 << 20, min_bytes=1, **{"max_wait_ms": 0, **of_request})
    if version >= 15:
        made.replica_state = M.FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=broker_epoch)
    else:
        made.replica_id = replica_id
    if version < 7 or "session_epoch" in of_request:
        return made
    made.session_epoch = -1
    return made


def fetch(client: WireClient, version: int, *args: Any, **fields: Any) -> Any:
    answer = client.call(ApiKey.FETCH, version, request(version, *args, **fields))
    assert answer.error_code == 0
    return answer.responses[0].partitions[0]


def produce(count: int, *, acks: int = -1, timeout_ms: int = 30_000) -> M.ProduceRequest:
    batch = batch_of([b"%d" % number for number in range(count)])
    parts = [M.ProduceRequest.PartitionProduceData(index=0, records=batch)]
    return M.ProduceRequest(
        acks=acks, timeout_ms=timeout_ms,
        topic_data=[M.ProduceRequest.TopicProduceData(name="t", partition_data=parts)],
    )  # fmt: skip


def produced(client: WireClient, version: int, correlation_id: int) -> Any:
    answer = client.receive(ApiKey.PRODUCE, version, correlation_id)
    return answer.responses[0].partition_responses[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_follower_reads_to_the_log_end_and_moves_the_high_watermark(broker: SmallBroker, version: int) -> None:
    topic_id = led_topic(broker)
    log = broker.log("t", 0)
    log.append(batch_of([b"a", b"b"]), wait=False)
    with WireClient("127.0.0.1", broker.port) as client:
        consumer = fetch(client, max(version, 4), topic_id, 0, replica_id=-1)
        assert (consumer.records, consumer.high_watermark) == (b"", 0)
        found = fetch(client, version, topic_id, 0, replica_id=1, current_leader_epoch=EPOCH)
        assert found.error_code == 0
        if version >= 4:
            assert [record.value for record in read_records(found.records)] == [b"a", b"b"]
        assert log.high_watermark == 0
        fetch(client, version, topic_id, 2, replica_id=1, current_leader_epoch=EPOCH)
        assert log.high_watermark == 0
        found = fetch(client, version, topic_id, 2, replica_id=2, current_leader_epoch=EPOCH)
        assert log.high_watermark == 2
        consumer = fetch(client, max(version, 4), topic_id, 0, replica_id=-1)
        assert [record.value for record in read_records(consumer.records)] == [b"a", b"b"]
        stranger = fetch(client, version, topic_id, 2, replica_id=9, current_leader_epoch=EPOCH)
        wanted = ErrorCode.UNKNOWN_LEADER_EPOCH if version >= 9 else ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert stranger.error_code == wanted


@pytest.mark.parametrize("version", [4, 12, 17])
def test_the_fetches_of_a_follower_reach_no_handler(broker: SmallBroker, handed_over: list[int], version: int) -> None:
    """Neither those that read, nor those that wait for records, nor those that move the high watermark."""
    topic_id = led_topic(broker)
    log = broker.log("t", 0)
    asked = {"replica_id": 1, "current_leader_epoch": EPOCH}
    with WireClient("127.0.0.1", broker.port) as producer, WireClient("127.0.0.1", broker.port) as follower:
        for number in range(1_000):
            log.append(batch_of([b"%d" % number]), wait=False)
        assert len(fetch(follower, version, topic_id, 0, **asked).records) == len(broker.segment_bytes("t", 0))
        waits = follower.send(ApiKey.FETCH, version, request(version, topic_id, 1_000, max_wait_ms=60_000, **asked))
        while broker.waiting_fetches("t", 0) == 0:
            fetch(producer, version, topic_id, 0, replica_id=2, current_leader_epoch=EPOCH)
        log.append(batch_of([b"later"]), wait=False)
        found = follower.receive(ApiKey.FETCH, version, waits).responses[0].partitions[0]
        assert found.error_code == 0 and found.records
        for replica_id in (1, 2):
            fetch(follower, version, topic_id, 1_001, replica_id=replica_id, current_leader_epoch=EPOCH)
        assert log.high_watermark == 1_001
    assert handed_over == []


def test_what_only_a_quorum_looks_at_changes_nothing_for_a_follower(broker: SmallBroker) -> None:
    asked = request(17, led_topic(broker), 1, current_leader_epoch=EPOCH)
    asked.cluster_id = "another"
    asked.topics[0].partitions[0].replica_directory_id = bytes(range(16))
    log = broker.log("t", 0)
    log.append(batch_of([b"a", b"b"]), wait=False)
    with WireClient("127.0.0.1", broker.port) as client:
        answer = client.call(ApiKey.FETCH, 17, asked)
        assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (0, 0)
        fetch(client, 17, asked.topics[0].topic_id, 2, replica_id=2, current_leader_epoch=EPOCH)
    assert log.high_watermark == 1


@pytest.mark.parametrize("version", range(13))
def test_an_ack_of_all_waits_for_the_followers_and_others_do_not(broker: SmallBroker, version: int) -> None:
    topic_id = led_topic(broker)
    version = max(version, 3)
    with WireClient("127.0.0.1", broker.port) as producer, WireClient("127.0.0.1", broker.port) as follower:
        first = producer.send(ApiKey.PRODUCE, version, produce(2))
        found = fetch(follower, 12, topic_id, 0, replica_id=1, max_wait_ms=5000)
        assert found.error_code == 0 and found.records
        assert broker.log("t", 0).high_watermark == 0
        fetch(follower, 12, topic_id, 2, replica_id=1)
        fetch(follower, 12, topic_id, 2, replica_id=2)
        answer = produced(producer, version, first)
        assert (answer.error_code, answer.base_offset) == (0, 0)
        answer = produced(producer, version, producer.send(ApiKey.PRODUCE, version, produce(1, acks=1)))
        assert (answer.error_code, answer.base_offset) == (0, 2)
        assert broker.log("t", 0).high_watermark == 2


def test_an_ack_that_comes_too_late_is_a_timeout_and_the_record_stays(broker: SmallBroker) -> None:
    topic_id = led_topic(broker)
    with WireClient("127.0.0.1", broker.port) as producer, WireClient("127.0.0.1", broker.port) as follower:
        answer = produced(producer, 9, producer.send(ApiKey.PRODUCE, 9, produce(2, timeout_ms=50)))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, 0)
        answer = produced(producer, 9, producer.send(ApiKey.PRODUCE, 9, produce(2, timeout_ms=0)))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, 2)
        for node in (1, 2):
            fetch(follower, 12, topic_id, 4, replica_id=node)
        assert broker.log("t", 0).high_watermark == 4


def test_too_few_in_sync_replicas_refuse_acks_of_all_and_no_others(broker: SmallBroker) -> None:
    led_topic(broker, in_sync=(0,), min_in_sync=2)
    with WireClient("127.0.0.1", broker.port) as producer:
        answer = produced(producer, 9, producer.send(ApiKey.PRODUCE, 9, produce(1)))
        assert (answer.error_code, answer.log_start_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS, 0)
        answer = produced(producer, 9, producer.send(ApiKey.PRODUCE, 9, produce(1, acks=1)))
        assert (answer.error_code, answer.base_offset) == (0, 0)
        assert (broker.log("t", 0).log_end_offset, broker.log("t", 0).high_watermark) == (1, 0)


def test_a_leader_that_stops_leading_says_so_and_names_the_new_one(broker: SmallBroker) -> None:
    topic_id = led_topic(broker)
    broker.leaders[0] = CurrentLeader(7, EPOCH + 1, "elsewhere", 9092, "r")
    with WireClient("127.0.0.1", broker.port) as producer, WireClient("127.0.0.1", broker.port) as follower:
        sent = producer.send(ApiKey.PRODUCE, 11, produce(2))
        assert fetch(follower, 12, topic_id, 0, replica_id=1, max_wait_ms=5000).records
        waiting = follower.send(ApiKey.FETCH, 17, request(17, topic_id, 2, replica_id=1, max_wait_ms=60_000))
        while not broker.waiting_fetches("t", 0):
            pass
        broker.log("t", 0).follow(EPOCH + 1)
        for again in (False, True):
            if again:
                sent = producer.send(ApiKey.PRODUCE, 11, produce(2))
            answer = producer.receive(ApiKey.PRODUCE, 11, sent)
            part = answer.responses[0].partition_responses[0]
            assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (7, EPOCH + 1)
            (node,) = answer.node_endpoints
            assert (node.node_id, node.host, node.port, node.rack) == (7, "elsewhere", 9092, "r")
        answer = follower.receive(ApiKey.FETCH, 17, waiting)
        part = answer.responses[0].partitions[0]
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (7, EPOCH + 1)
        assert answer.node_endpoints[0].host == "elsewhere"


def test_a_follower_with_other_records_is_told_where_they_diverge(broker: SmallBroker) -> None:
    topic_id = led_topic(broker)
    log = broker.log("t", 0)
    log.append(batch_of([b"a", b"b"]), wait=False)
    log.lead(EPOCH + 2, {1: -1, 2: -1}, [0, 1, 2])
    log.append(batch_of([b"c"]), wait=False)

    def asked(offset: int, epoch: int, replica_id: int = 1) -> Any:
        return fetch(client, 12, topic_id, offset, last_fetched_epoch=epoch, replica_id=replica_id, max_wait_ms=100)

    with WireClient("127.0.0.1", broker.port) as client:
        for replica_id in (1, -1):
            found = asked(3, EPOCH, replica_id)
            assert (found.error_code, found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (0, EPOCH, 2)
            assert not found.records
            found = asked(2, EPOCH + 1, replica_id)
            assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (EPOCH, 2)
            found = asked(5, EPOCH + 2, replica_id)
            assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (EPOCH + 2, 3)
            assert asked(0, EPOCH - 1, replica_id).diverging_epoch.end_offset == -1
            assert asked(1, EPOCH - 1, replica_id).diverging_epoch.end_offset == 0
            assert asked(3, EPOCH + 3, replica_id).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert all(follower.log_end_offset <= 0 for follower in log.state.followers())
        assert asked(2, EPOCH).records and asked(3, EPOCH + 2).error_code == 0
        assert [each.log_end_offset for each in log.state.followers()] == [3, -1]


def test_a_fetch_of_an_earlier_life_of_a_follower_is_refused_and_does_not_count(broker: SmallBroker) -> None:
    topic_id = led_topic(broker)
    log = broker.log("t", 0)
    log.append(batch_of([b"a", b"b"]), wait=False)
    with WireClient("127.0.0.1", broker.port) as client:

        def asked(offset: int, broker_epoch: int) -> int:
            return int(fetch(client, 17, topic_id, offset, broker_epoch=broker_epoch).error_code)

        assert asked(0, 70) == ErrorCode.NONE
        assert asked(2, 69) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [each.log_end_offset for each in log.state.followers()] == [0, -1]
        assert asked(0, -1) == asked(0, 70) == ErrorCode.NONE, "before version 15 followers tell no epoch"
        assert asked(2, 71) == ErrorCode.NONE
        assert [each.log_end_offset for each in log.state.followers()] == [2, -1]


def test_a_leader_that_leads_again_in_its_epoch_knows_where_that_has_begun(broker: SmallBroker) -> None:
    """When all brokers start at once, nobody is elected, and the same epoch goes on.

    A replica that had records of the epoch before where the leader has newer ones would have kept them.
    """
    topic_id = led_topic(broker)
    log = broker.log("t", 0)
    log.append(batch_of([b"a"]), wait=False)
    log.lead(EPOCH + 1, {1: -1, 2: -1}, [0, 1, 2])
    for value in (b"b", b"c"):
        log.append(batch_of([value]), wait=False)
    log.stop_replica()
    log.lead(EPOCH + 1, {1: -1, 2: -1}, [0, 1, 2])
    assert log.epochs == [(EPOCH, 0), (EPOCH + 1, 1)]
    with WireClient("127.0.0.1", broker.port) as client:
        found = fetch(client, 17, topic_id, 2, current_leader_epoch=EPOCH + 1, last_fetched_epoch=EPOCH)
        assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (EPOCH, 1)


def test_a_session_of_a_follower_keeps_what_it_asked_and_answers_a_changed_high_watermark(broker: SmallBroker) -> None:
    topic_id = led_topic(broker)
    log = broker.log("t", 0)
    log.append(batch_of([b"a"]), wait=False)
    with WireClient("127.0.0.1", broker.port) as client:
        first = client.call(ApiKey.FETCH, 17, request(17, topic_id, 0, session_epoch=0, last_fetched_epoch=-1))
        assert first.session_id and first.responses[0].partitions[0].records
        moved = request(17, topic_id, 1, session_id=first.session_id, session_epoch=1, last_fetched_epoch=EPOCH)
        assert client.call(ApiKey.FETCH, 17, moved).responses == []
        log.state.follower_fetched(2, -1, 1, 0, 1)
        assert log.high_watermark == 1
        empty = M.FetchRequest(
            session_id=first.session_id, session_epoch=2, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20
        )
        empty.replica_state = M.FetchRequest.ReplicaState(replica_id=1, replica_epoch=-1)
        answer = client.call(ApiKey.FETCH, 17, empty)
        assert answer.responses[0].partitions[0].high_watermark == 1
        log.lead(EPOCH + 1, {1: -1, 2: -1}, [0, 1, 2])
        log.append(batch_of([b"b"]), wait=False)
        log.truncate_to(0)
        empty.session_epoch = 3
        answer = client.call(ApiKey.FETCH, 17, empty)
        diverging = answer.responses[0].partitions[0].diverging_epoch
        assert (diverging.epoch, diverging.end_offset) == (EPOCH, 0)


def test_a_follower_whose_log_has_differed_is_told_the_high_watermark_once_it_is_cut(broker: SmallBroker) -> None:
    """A follower takes none from the answer that tells where the logs differ. It need not wait for a new record."""
    topic_id = led_topic(broker, in_sync=(0,))
    log = broker.log("t", 0)
    log.append(batch_of([b"a", b"b"]), wait=False)
    assert log.high_watermark == 2
    with WireClient("127.0.0.1", broker.port) as client:

        def told(session_id: int, session_epoch: int, offset: int) -> Any:
            made = request(
                17, topic_id, offset, session_id=session_id, session_epoch=session_epoch, last_fetched_epoch=EPOCH
            )
            return client.call(ApiKey.FETCH, 17, made)

        session = (differs := told(0, 0, 3)).session_id
        for session_epoch in (1, 4):
            assert differs.responses[0].partitions[0].diverging_epoch.end_offset == 2
            (cut,) = told(session, session_epoch, 2).responses
            assert (cut.partitions[0].diverging_epoch.epoch, cut.partitions[0].high_watermark) == (-1, 2)
            assert told(session, session_epoch + 1, 2).responses == [], "it knows that"
            differs = told(session, session_epoch + 2, 3)


def test_consumers_of_a_follower_read_to_its_high_watermark_and_older_ones_are_refused(broker: SmallBroker) -> None:
    topic_id = broker.create_topic("t", 1)
    log = broker.log("t", 0)
    with WireClient("127.0.0.1", broker.port) as client, WireClient("127.0.0.1", broker.port) as other:
        assert fetch(client, 12, topic_id, 0, replica_id=-1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        log.follow(EPOCH)
        batch = bytearray(batch_of([b"a", b"b"]))
        batch[12:16] = EPOCH.to_bytes(4, "big")
        assert log.state.append_as_follower(bytes(batch), EPOCH, 0, 0) == 0
        for version, code in ((10, ErrorCode.NOT_LEADER_OR_FOLLOWER), (11, 0), (17, 0)):
            found = fetch(client, version, topic_id, 0, replica_id=-1)
            assert (found.error_code, found.records or b"") == (code, b"")
        assert fetch(client, 12, topic_id, 0, replica_id=1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        waiting = other.send(ApiKey.FETCH, 12, request(12, topic_id, 0, replica_id=-1, max_wait_ms=60_000))
        while not broker.waiting_fetches("t", 0):
            pass
        assert log.state.append_as_follower(b"", EPOCH, 2, 0) == 0
        (part,) = other.receive(ApiKey.FETCH, 12, waiting).responses[0].partitions
        assert [record.value for record in read_records(part.records)] == [b"a", b"b"]


@pytest.mark.parametrize("epoch", [-1, 0, EPOCH - 1, EPOCH, EPOCH + 1, 2**31 - 1])
@pytest.mark.parametrize("has_led", [False, True])
def test_a_broker_that_was_told_no_role_leads_nothing_whatever_epoch_it_is_asked_with(
    broker: SmallBroker, epoch: int, has_led: bool
) -> None:
    if has_led:
        topic_id = led_topic(broker, in_sync=(0,))
        broker.log("t", 0).append(batch_of([b"a"]), wait=False)
        broker.log("t", 0).stop_replica()
    else:
        topic_id = broker.create_topic("t", 1)
    with WireClient("127.0.0.1", broker.port) as client:
        codes = [
            fetch(client, version, topic_id, offset, replica_id=replica_id, current_leader_epoch=epoch).error_code
            for version in (4, 9, 12, 17)
            for replica_id in (-1, 1)
            for offset in (0, 1, 5)
        ]
        part = M.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=epoch)
        of_topic = M.ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[part])
        for replica_id in (-1, -2, 1):
            asked = M.ListOffsetsRequest(replica_id=replica_id, topics=[of_topic])
            codes.append(client.call(ApiKey.LIST_OFFSETS, 9, asked).topics[0].partitions[0].error_code)
            codes.append(end_of_epoch(client, 4, 0, replica_id, current_leader_epoch=epoch)[0])
        deleted = M.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=-1)
        in_topic = M.DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[deleted])
        answer = client.call(ApiKey.DELETE_RECORDS, 2, M.DeleteRecordsRequest(topics=[in_topic], timeout_ms=0))
        codes.append(answer.topics[0].partitions[0].error_code)
        sent = [client.send(ApiKey.PRODUCE, 9, produce(1, acks=acks)) for acks in (1, -1)]
        codes += [produced(client, 9, correlation_id).error_code for correlation_id in sent]
        assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * len(codes)


def test_partitions_on_other_brokers_have_another_error_than_unknown_ones(broker: SmallBroker) -> None:
    topic_id = bytes(range(16))
    broker.logs.partition_table.set_elsewhere("t", topic_id, 1)
    broker.leaders[0] = CurrentLeader(7, 5, "elsewhere", 9092, None)
    with WireClient("127.0.0.1", broker.port) as client:
        for version in range(4, 18):
            found = fetch(client, version, topic_id, 0, replica_id=-1)
            assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert found.current_leader.leader_id == 7
        answer = produced(client, 10, client.send(ApiKey.PRODUCE, 10, produce(1)))
        assert (answer.error_code, answer.current_leader.leader_epoch) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 5)
        broker.logs.partition_table.forget_elsewhere("t")
        assert fetch(client, 12, topic_id, 0, replica_id=-1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert fetch(client, 13, topic_id, 0, replica_id=-1).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_consumer_of_another_rack_is_sent_to_the_replica_that_is_chosen_for_it(tmp_path: Path) -> None:
    asked = []

    def choose(connection: object, topic: str, partition_id: int, rack: str, offset: int) -> int:
        asked.append((topic, partition_id, rack, offset))
        return 2 if rack == "b" else -1

    with SmallBroker(tmp_path, is_member=True, read_replica_of=choose, rack="a") as broker:
        topic_id = led_topic(broker, in_sync=(0,))
        broker.log("t", 0).append(batch_of([b"a"]), wait=False)
        with WireClient("127.0.0.1", broker.port) as client:
            for rack, preferred, has_records in (("b", 2, False), ("c", -1, True), ("a", -1, True), ("", -1, True)):
                for version in (11, 17):
                    wanted = request(version, topic_id, 0, replica_id=-1, max_wait_ms=1000)
                    wanted.rack_id = rack
                    (part,) = client.call(ApiKey.FETCH, version, wanted).responses[0].partitions
                    assert (part.preferred_read_replica, bool(part.records)) == (preferred, has_records)
                    assert part.high_watermark == 1
            assert asked == [("t", 0, "b", 0)] * 2 + [("t", 0, "c", 0)] * 2


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH), (EPOCH, 0), (EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, 0)],
)
def test_a_consumer_that_knows_another_leader_epoch_is_sent_to_no_other_replica(
    tmp_path: Path, epoch: int, code: int
) -> None:
    with SmallBroker(tmp_path, is_member=True, read_replica_of=lambda *_: 2, rack="a") as broker:
        topic_id = led_topic(broker)
        with WireClient("127.0.0.1", broker.port) as client:
            for version in (11, 17):
                wanted = request(version, topic_id, 0, replica_id=-1, current_leader_epoch=epoch)
                wanted.rack_id = "b"
                (part,) = client.call(ApiKey.FETCH, version, wanted).responses[0].partitions
                assert (part.error_code, part.preferred_read_replica) == (code, -1 if code else 2)


def listed(client: WireClient, version: int, timestamp: int, **fields: Any) -> tuple[int, int]:
    part = M.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topic = M.ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[part])
    asked = M.ListOffsetsRequest(topics=[topic], **({"replica_id": -1} | fields))
    (found,) = client.call(ApiKey.LIST_OFFSETS, version, asked).topics[0].partitions
    return found.error_code, found.offset


def test_a_new_leader_tells_no_end_before_it_knows_what_was_committed(broker: SmallBroker) -> None:
    topic_id = led_topic(broker)
    log = broker.log("t", 0)
    log.append(batch_of([b"a", b"b"]), wait=False)
    log.lead(EPOCH + 1, {1: -1, 2: -1}, [0, 1, 2])
    with WireClient("127.0.0.1", broker.port) as client:
        assert listed(client, 4, -1) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert listed(client, 9, -1) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert listed(client, 9, 0) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert listed(client, 9, -2) == (0, 0)
        assert listed(client, 9, -1, replica_id=1) == (0, 2)
        for node in (1, 2):
            fetch(client, 12, topic_id, 2, replica_id=node)
        assert listed(client, 9, -1) == (0, 2)
        assert listed(client, 9, 0) == (0, 0)
        log.follow(EPOCH + 2)
        assert listed(client, 9, -1) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        assert listed(client, 9, -1, replica_id=-2) == (0, 2)


def end_of_epoch(
    client: WireClient, version: int, epoch: int, replica_id: int = 1, **fields: Any
) -> tuple[int, int, int]:
    R = M.OffsetForLeaderEpochRequest
    part = R.OffsetForLeaderPartition(partition=0, leader_epoch=epoch, **fields)
    asked = R.OffsetForLeaderTopic(topic="t", partitions=[part])
    message = R(replica_id=replica_id, topics=[asked]) if version >= 3 else R(topics=[asked])
    (found,) = client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, message).topics[0].partitions
    return found.error_code, found.leader_epoch, found.end_offset


@pytest.mark.parametrize("version", range(5))
def test_a_followers_question_for_an_epochs_end_is_answered_by_the_leader_alone(
    broker: SmallBroker, version: int
) -> None:
    led_topic(broker)
    log = broker.log("t", 0)
    log.append(batch_of([b"a", b"b"]), wait=False)
    log.lead(EPOCH + 2, {1: -1, 2: -1}, [0, 1, 2])
    shown = EPOCH if version >= 1 else -1
    with WireClient("127.0.0.1", broker.port) as client:
        assert end_of_epoch(client, version, EPOCH) == (0, shown, 2)
        assert end_of_epoch(client, version, EPOCH + 1) == (0, shown, 2)
        if version >= 3:
            assert end_of_epoch(client, version, EPOCH + 3) == (0, -1, -1)
        else:  # nobody knows whether this is a follower
            assert end_of_epoch(client, version, EPOCH + 3) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
        log.follow(EPOCH + 3)
        assert end_of_epoch(client, version, EPOCH)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        log.stop_replica()
        assert end_of_epoch(client, version, EPOCH)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_that_knows_of_more_records_than_the_leader_is_believed_until_the_lead_is_checked(
    broker: SmallBroker, version: int
) -> None:
    """A leader that was replaced and does not know it has fewer records than its successor's clients have read."""
    topic_id = led_topic(broker)
    log = broker.log("t", 0)
    log.append(batch_of([b"a", b"b"]), wait=False)

    def beyond_the_end(client: WireClient) -> int:
        return int(fetch(client, version, topic_id, 3, replica_id=-1).error_code)

    with WireClient("127.0.0.1", broker.port) as client:
        assert not log.state.take_lead_doubt()
        assert beyond_the_end(client) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert log.state.take_lead_doubt()
        assert not log.state.take_lead_doubt()
        assert beyond_the_end(client) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        now_ms = int(time.monotonic() * 1000)
        log.state.lead_is_checked(EPOCH, now_ms - 10_000)
        for other in (EPOCH - 1, EPOCH + 1):
            log.state.lead_is_checked(other, now_ms)
        assert beyond_the_end(client) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        log.state.lead_is_checked(EPOCH, now_ms)
        assert beyond_the_end(client) == ErrorCode.OFFSET_OUT_OF_RANGE
        log.state.take_lead_doubt()
        log.follow(EPOCH + 1)
        log.lead(EPOCH + 2, {1: -1, 2: -1}, [0, 1, 2])
        assert beyond_the_end(client) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        log.lead(EPOCH + 3, {}, [0])
        assert beyond_the_end(client) == ErrorCode.OFFSET_OUT_OF_RANGE, "nobody else can lead"


def test_what_is_before_the_start_of_a_log_is_out_of_range_at_once(broker: SmallBroker) -> None:
    topic_id = led_topic(broker, in_sync=(0,))
    log = broker.log("t", 0)
    log.append(batch_of([b"a", b"b"]))
    log.delete_records_before(2)
    with WireClient("127.0.0.1", broker.port) as client:
        assert fetch(client, 12, topic_id, 1, replica_id=-1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert not log.state.take_lead_doubt()


@pytest.mark.parametrize("version", range(5))
def test_a_client_that_knows_of_a_newer_epoch_than_the_leader_is_believed_until_the_lead_is_checked(
    broker: SmallBroker, version: int
) -> None:
    led_topic(broker)
    log = broker.log("t", 0)
    log.append(batch_of([b"a", b"b"]), wait=False)
    with WireClient("127.0.0.1", broker.port) as client:
        assert end_of_epoch(client, version, EPOCH, replica_id=-1)[0] == 0
        assert end_of_epoch(client, version, EPOCH + 1, replica_id=-1)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert log.state.take_lead_doubt()
        log.state.lead_is_checked(EPOCH, int(time.monotonic() * 1000))
        assert end_of_epoch(client, version, EPOCH + 1, replica_id=-1) == (0, -1, -1)


def test_deleted_records_are_answered_when_the_followers_have_deleted_them(broker: SmallBroker) -> None:
    topic_id = led_topic(broker)
    log = broker.log("t", 0)
    log.append(batch_of([b"a", b"b", b"c"]), wait=False)
    part = M.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=2)
    topic = M.DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[part])
    asked = M.DeleteRecordsRequest(topics=[topic], timeout_ms=60_000)
    with WireClient("127.0.0.1", broker.port) as admin, WireClient("127.0.0.1", broker.port) as client:

        def answered(sent: int) -> tuple[int, int]:
            (found,) = admin.receive(ApiKey.DELETE_RECORDS, 2, sent).topics[0].partitions
            return found.error_code, found.low_watermark

        for node in (1, 2):
            fetch(client, 12, topic_id, 3, replica_id=node, log_start_offset=0)
        part.offset = 2
        sent = admin.send(ApiKey.DELETE_RECORDS, 2, asked)
        while log.log_start_offset < 2:
            pass
        fetch(client, 12, topic_id, 3, replica_id=1, log_start_offset=2)
        log.state.set_live([1])
        assert answered(sent) == (0, 2)
        log.state.set_live([1, 2])
        part.offset, asked.timeout_ms = 3, 30
        assert answered(admin.send(ApiKey.DELETE_RECORDS, 2, asked)) == (ErrorCode.REQUEST_TIMED_OUT, 0)


def test_a_throttled_follower_gets_nothing_above_the_rate_unless_it_is_in_sync(broker: SmallBroker) -> None:
    topic_id = led_topic(broker, (0, 1), leader_throttled=(0,))
    log = broker.log("t", 0)
    log.append(batch_of([b"a", b"b"]), wait=False)
    with WireClient("127.0.0.1", broker.port) as client:
        broker.throttle.rate = 1
        assert fetch(client, 17, topic_id, 0, replica_id=2).records  # nothing was sent yet
        held = fetch(client, 17, topic_id, 0, replica_id=2)
        assert (held.error_code, held.records, held.log_start_offset) == (0, b"", 0)
        assert fetch(client, 17, topic_id, 0, replica_id=1).records
        fetch(client, 17, topic_id, 2, replica_id=1)
        assert log.high_watermark == 2
        assert fetch(client, 17, topic_id, 0, replica_id=-1).records  # a consumer
        broker.throttle.rate = (1 << 63) - 1
        assert fetch(client, 17, topic_id, 0, replica_id=2).records


def test_a_follower_is_not_throttled_if_its_partition_is_not(broker: SmallBroker) -> None:
    topic_id = led_topic(broker, (0,), leader_throttled=(1,))
    broker.log("t", 0).append(batch_of([b"a"]), wait=False)
    broker.throttle.rate = 1
    with WireClient("127.0.0.1", broker.port) as client:
        for _ in range(3):
            assert fetch(client, 17, topic_id, 0, replica_id=2).records
    broker.throttle.record(10)
    assert broker.throttle.wait_ms() > 0  # only what was recorded here


def test_a_throttled_fetch_waits_as_long_as_it_says_though_records_come(broker: SmallBroker) -> None:
    topic_id = led_topic(broker, (0,), leader_throttled=(0,))
    log = broker.log("t", 0)
    log.append(batch_of([b"a"]), wait=False)
    broker.throttle.rate = 1
    broker.throttle.record(1 << 20)
    with WireClient("127.0.0.1", broker.port) as client, WireClient("127.0.0.1", broker.port) as consumer:
        waiting = client.send(ApiKey.FETCH, 17, request(17, topic_id, 0, replica_id=2, max_wait_ms=300))
        log.append(batch_of([b"b"]), wait=False)
        assert fetch(consumer, 17, topic_id, 0, replica_id=-1).records
        (part,) = client.receive(ApiKey.FETCH, 17, waiting).responses[0].partitions
        assert part.records == b""
