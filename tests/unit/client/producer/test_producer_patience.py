"""What a producer waits for, and how long: leaders that have moved, leaders and producer ids that are not there yet."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from typing import Any

import pytest

from kbroker.client import AsyncProducer, BrokerError, NoSuchPartition, RecordTooLarge, TimedOut
from kbroker.client.network.cluster_view import Node
from kbroker.client.producer.sender import nodes_of
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.produce import ProduceBroker
from tests.kit.brokers.scripted import Asked, Peer
from tests.unit.client.producer.test_producer import SECONDS, producer_of

Response = M.ProduceResponse


def refusals(asked: Asked, **says: Any) -> list[M.ProduceResponse.TopicProduceResponse]:
    """Each partition of a Produce is refused, with these fields of its answer."""
    message = asked.message
    assert isinstance(message, M.ProduceRequest)
    return [
        Response.TopicProduceResponse(
            name=topic.name,
            partition_responses=[
                Response.PartitionProduceResponse(index=partition.index, base_offset=-1, **says)
                for partition in topic.partition_data
            ],
        )
        for topic in message.topic_data
    ]


class FormerLeader(ProduceBroker):
    """Tells who leads now and where that is; its metadata never do."""

    def __init__(self, now: ProduceBroker, host: str = "127.0.0.1"):
        super().__init__(1)
        self.now = Response.NodeEndpoint(node_id=2, host=host, port=now.port, rack=None)
        self.refused = 0

    def produce(self, peer: Peer, asked: Asked) -> bool:
        topics = refusals(
            asked,
            error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            current_leader=Response.LeaderIdAndEpoch(leader_id=2, leader_epoch=5),
        )
        self.refused += 1
        peer.respond(asked, Response(responses=topics, node_endpoints=[self.now]))
        return True


def test_a_new_leader_that_was_not_known_is_found_where_the_old_one_says() -> None:
    with ProduceBroker(1) as now, FormerLeader(now) as former, producer_of(former) as producer:
        assert producer.send("t", b"a").result(SECONDS).offset == 0
        assert producer.send_many("t", [b"b", b"c"]).result(SECONDS) == 2
        assert now.logs["t", 0] == [b"a", b"b", b"c"]
        assert former.refused == 1


def told_of(nodes: list[tuple[int, str, int, str | None]]) -> bytes:
    """Return the nodes as they stand in a response."""
    rows = [Response.NodeEndpoint(node_id=at, host=host, port=port, rack=rack) for at, host, port, rack in nodes]
    frame = Response(node_endpoints=rows).encode(10)
    empty = len(Response().encode(10))
    # Behind the number of tagged fields: the tag, the size of the field, the field.
    field = frame[empty + 1 :]
    return field[1:] if field[0] < 0x80 else field[2:]


def test_brokers_in_a_response_are_read_or_count_for_nothing() -> None:
    few = [(2, "kafka.example", 9092, "r1"), (3, "127.0.0.1", 1, None)]
    many = [(at, f"broker-{at}.kafka.example", 9092, None) for at in range(100)]
    assert nodes_of(b"\x01") == []
    for nodes in (few, many):
        whole = told_of(nodes)
        assert nodes_of(whole) == [Node(*each) for each in nodes]
        for size in range(1, len(whole) if len(whole) < 200 else 0):
            assert nodes_of(whole[:size]) == []


WAITS = 6
SHORTEST_S = 0.8 * 0.01 * (2**WAITS - 1)  #: 10 ms, doubled, each up to a fifth shorter


class Slow(ProduceBroker):
    """Is asked several times before there is a producer id, and a leader."""

    def __init__(self) -> None:
        super().__init__(1)
        self.ids_asked: list[float] = []
        self.leaders_asked: list[float] = []

    def metadata(self, asked: Asked) -> M.MetadataResponse:
        self.leaders_asked.append(time.monotonic())
        self.leader = 1 if len(self.leaders_asked) > WAITS + 1 else -1
        return super().metadata(asked)

    def serve(self, peer: Peer) -> None:
        respond = peer.respond

        def answer(asked: Asked, message: Any) -> None:
            if asked.api_key == ApiKey.INIT_PRODUCER_ID:
                self.ids_asked.append(time.monotonic())
                if len(self.ids_asked) <= WAITS:
                    message = M.InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            respond(asked, message)

        peer.respond = answer  # type: ignore[method-assign]
        super().serve(peer)


def test_the_waits_for_a_producer_id_and_for_a_leader_double() -> None:
    with Slow() as broker, producer_of(broker, retry_backoff_ms=10, retry_backoff_max_ms=10_000) as producer:
        assert producer.send("t", b"a", partition=0).result(SECONDS).offset == 0
    assert len(broker.ids_asked) == WAITS + 1
    for asked in (broker.ids_asked, broker.leaders_asked):
        assert asked[-1] - asked[0] >= SHORTEST_S


APPEARS_S = 0.5  #: many times default.api.timeout.ms of the producers below


class LateTopic(ProduceBroker):
    """A broker whose topics appear APPEARS_S after they were first asked for."""

    def __init__(self) -> None:
        super().__init__(1)
        self.first_asked = math.inf

    def metadata(self, asked: Asked) -> M.MetadataResponse:
        now = time.monotonic()
        self.first_asked = min(self.first_asked, now)
        answer = super().metadata(asked)
        if now < self.first_asked + APPEARS_S:
            for topic in answer.topics:
                topic.error_code, topic.partitions = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
        return answer


def test_a_producer_waits_for_ever_for_a_topic_with_max_block_ms_of_minus_one() -> None:
    with LateTopic() as broker, producer_of(broker, default_api_timeout_ms=50, max_block_ms=-1) as producer:
        assert producer.send("t", b"a").result(SECONDS).offset == 0
    assert broker.logs["t", 0] == [b"a"]


def test_an_asyncio_producer_waits_for_ever_for_a_topic_with_max_block_ms_of_minus_one() -> None:
    async def main(port: int) -> None:
        async with AsyncProducer(
            bootstrap_servers=f"127.0.0.1:{port}", retry_backoff_ms=1, default_api_timeout_ms=50, max_block_ms=-1
        ) as producer:
            await producer.await_topic("t")
            assert (await producer.send_and_wait("t", b"a")).offset == 0

    with LateTopic() as broker:
        asyncio.run(main(broker.port))
    assert broker.logs["t", 0] == [b"a"]


class SilentAfterRefusal(ProduceBroker):
    """A broker that knows no topic, and answers no second question for one before `waited` is set."""

    def __init__(self) -> None:
        super().__init__(1)
        self.refused = False
        self.waited = threading.Event()

    def metadata(self, asked: Asked) -> M.MetadataResponse:
        answer = super().metadata(asked)
        if answer.topics and self.refused:
            self.waited.wait(SECONDS)
        for topic in answer.topics:
            topic.error_code, topic.partitions = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
            self.refused = True
        return answer


def test_a_topic_that_was_refused_is_no_timeout_when_the_time_ends_during_a_request() -> None:
    with SilentAfterRefusal() as broker, producer_of(broker, max_block_ms=300) as producer:
        with pytest.raises(BrokerError) as raised:
            producer.send("t", b"a")
        broker.waited.set()
    assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Full(ProduceBroker):
    """A broker whose disk is full."""

    def produce(self, peer: Peer, asked: Asked) -> bool:
        topics = refusals(asked, error_code=ErrorCode.KAFKA_STORAGE_ERROR, error_message="no space left on device")
        peer.respond(asked, Response(responses=topics))
        return True


def test_what_is_not_delivered_in_time_says_what_the_broker_said() -> None:
    with Full(1) as broker, producer_of(broker, delivery_timeout_ms=300, request_timeout_ms=200) as producer:
        error = producer.send("t", b"a").exception(SECONDS)
        behind = producer.send("t", b"b").exception(SECONDS)
        for each in (error, behind):
            assert isinstance(each, TimedOut)
            assert each.message == (
                "t-0: not delivered within 300 ms (delivery.timeout.ms); "
                "the last answer was KAFKA_STORAGE_ERROR: no space left on device"
            )
            assert each.hint == "the broker cannot write: its disk is full or has failed, its log says which"


def test_what_is_too_large_or_has_no_partition_points_to_the_right_setting() -> None:
    with ProduceBroker(4) as broker:
        with producer_of(broker, max_request_size=1000) as producer:
            with pytest.raises(RecordTooLarge, match="a record of 2000 bytes") as large:
                producer.send("t", b"x" * 2000)
            assert large.value.hint.startswith("send less at once, or raise max.request.size;")
            with pytest.raises(NoSuchPartition, match="t has partitions 0 to 3, not 9") as none:
                producer.send("t", b"x", partition=9)
            assert none.value.hint == "choose a partition that is there, or add some to the topic"
        with producer_of(broker, buffer_memory=1024) as producer:
            with pytest.raises(RecordTooLarge) as large:
                producer.send("t", b"x" * 2000)
            assert large.value.hint == "send less at once, or raise buffer.memory"
