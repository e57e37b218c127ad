"""Appends, fetches of followers and consumers, and changes of roles from several threads at once."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import read_records
from tests.kit.brokers.small import SmallBroker
from tests.kit.clients.wire import WireClient
from tests.kit.logs.home import batch_of
from tests.kit.threads import run_all
from tests.unit.server.test_replica_fetch import led_topic, request

REQUESTS = 300
EPOCHS = 40


def test_acks_mean_that_all_have_the_records_while_leadership_comes_and_goes(tmp_path: Path) -> None:
    """What was acknowledged is on both followers; nobody waits for ever; consumers see nothing that is not."""
    with SmallBroker(tmp_path, is_member=True, processor_count=3) as broker:
        topic_id = led_topic(broker)
        log = broker.log("t", 0)
        done = threading.Event()
        acknowledged: list[int] = []
        reached = {1: 0, 2: 0}
        seen = [0]

        def produce() -> None:
            try:
                with WireClient("127.0.0.1", broker.port, timeout_s=30) as client:
                    for number in range(REQUESTS):
                        parts = [M.ProduceRequest.PartitionProduceData(index=0, records=batch_of([b"%d" % number]))]
                        topic = M.ProduceRequest.TopicProduceData(name="t", partition_data=parts)
                        asked = M.ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[topic])
                        answer = client.call(ApiKey.PRODUCE, 11, asked).responses[0].partition_responses[0]
                        assert answer.error_code in (0, ErrorCode.NOT_LEADER_OR_FOLLOWER), answer
                        if answer.error_code == 0:
                            acknowledged.append(answer.base_offset)
                            assert min(reached.values()) > answer.base_offset
            finally:
                done.set()

        def follow(node: int) -> None:
            with WireClient("127.0.0.1", broker.port, timeout_s=30) as client:
                while not done.is_set():
                    asked = request(17, topic_id, reached[node], replica_id=node, max_wait_ms=20)
                    part = client.call(ApiKey.FETCH, 17, asked).responses[0].partitions[0]
                    for record in read_records(part.records or b""):
                        reached[node] = record.offset + 1

        def consume() -> None:
            with WireClient("127.0.0.1", broker.port, timeout_s=30) as client:
                while not done.is_set():
                    asked = request(12, topic_id, seen[0], replica_id=-1, max_wait_ms=20)
                    part = client.call(ApiKey.FETCH, 12, asked).responses[0].partitions[0]
                    for record in read_records(part.records or b""):
                        assert record.offset < min(reached.values())
                        seen[0] = record.offset + 1

        def lead_and_follow() -> None:
            choose = random.Random(1)
            for epoch in range(EPOCHS):
                if choose.random() < 0.5:
                    log.follow(10 + 2 * epoch)
                log.lead(11 + 2 * epoch, {1: -1, 2: -1}, [0, 1, 2])
                done.wait(0.02)
                log.state.set_in_sync([0, 1, 2], [0, 1, 2])
                log.state.set_live(choose.sample([1, 2], choose.randrange(3)))
                log.state.followers()

        run_all(produce, lambda: follow(1), lambda: follow(2), consume, lead_and_follow)
        assert acknowledged == sorted(set(acknowledged))
        assert acknowledged


def test_requests_that_wait_for_replicas_end_when_their_connections_and_the_broker_do(tmp_path: Path) -> None:
    def wait_for_acks(broker: SmallBroker, timeout_ms: int) -> WireClient:
        client = WireClient("127.0.0.1", broker.port)
        parts = [M.ProduceRequest.PartitionProduceData(index=0, records=batch_of([b"x"]))]
        topic: Any = M.ProduceRequest.TopicProduceData(name="t", partition_data=parts)
        for _ in range(20):
            client.send(ApiKey.PRODUCE, 9, M.ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=[topic]))
        return client

    with SmallBroker(tmp_path, is_member=True) as broker:
        led_topic(broker)
        log = broker.log("t", 0)
        first, second = wait_for_acks(broker, 100), wait_for_acks(broker, 60_000)
        while log.log_end_offset < 40:
            pass
        first.close()
        second.close()
        third = wait_for_acks(broker, 60_000)
        while log.log_end_offset < 60:
            pass
        log.follow(9)
        third.close()
