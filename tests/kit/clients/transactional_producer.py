"""A transactional producer on a raw connection, with its own topic. It can leave a hanging transaction behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import uuid4

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from tests.kit.clients.wire import WireClient

HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class TransactionalProducer:
    """A transactional producer with a topic of its own."""

    def __init__(self, client: WireClient):
        self.client = client
        self.id, self.topic = f"txn-{uuid4().hex[:8]}", f"topic-{uuid4().hex[:8]}"
        wanted = M.CreateTopicsRequest.CreatableTopic(name=self.topic, num_partitions=2, replication_factor=1)
        (made,) = client.call(ApiKey.CREATE_TOPICS, 5, M.CreateTopicsRequest(topics=[wanted])).topics
        assert made.error_code == 0
        find = M.FindCoordinatorRequest(key=self.id, key_type=1)
        self.until(lambda: client.call(ApiKey.FIND_COORDINATOR, 1, find).error_code == 0)
        self.coordinator = client.call(ApiKey.FIND_COORDINATOR, 1, find).node_id
        asked = M.InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=60_000)
        self.until(lambda: client.call(ApiKey.INIT_PRODUCER_ID, 4, asked).error_code == 0)
        got = client.call(ApiKey.INIT_PRODUCER_ID, 4, asked)
        self.producer_id, self.epoch, self.sequence = got.producer_id, got.producer_epoch, 0

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not is_so():
            assert time.monotonic() < deadline

    def add(self, partition: int = 0) -> None:
        R = M.AddPartitionsToTxnRequest
        asked = R(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[R.AddPartitionsToTxnTopic(name=self.topic, partitions=[partition])],
        )
        (topic,) = self.client.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, asked).results_by_topic_v3_and_below
        assert topic.results_by_partition[0].partition_error_code == 0

    def send(self, partition: int = 0, at_ms: int | None = None) -> int:
        """Send a record in the transaction, and return its offset."""
        known = {"producer_id": self.producer_id, "producer_epoch": self.epoch, "base_sequence": self.sequence}
        batch = encode_batch([(at_ms or now_ms(), b"k", b"v")], is_transactional=True, **known)
        self.sequence += 1
        R = M.ProduceRequest
        data = R.PartitionProduceData(index=partition, records=batch)
        asked = R(
            acks=-1, transactional_id=self.id, topic_data=[R.TopicProduceData(name=self.topic, partition_data=[data])]
        )
        (answer,) = self.client.call(ApiKey.PRODUCE, 8, asked).responses[0].partition_responses
        assert answer.error_code == 0, answer
        offset: int = answer.base_offset
        return offset

    def end(self) -> None:
        asked = M.EndTxnRequest(
            transactional_id=self.id, producer_id=self.producer_id, producer_epoch=self.epoch, committed=True
        )
        assert self.client.call(ApiKey.END_TXN, 3, asked).error_code == 0

    def hang(self, partition: int = 0) -> int:
        """Write a two hours old record of a transaction that no coordinator knows, and return its offset."""
        self.verify(False)
        try:
            return self.send(partition, now_ms() - 2 * HOUR_MS)
        finally:
            self.verify(True)

    def verify(self, on: bool) -> None:
        R = M.IncrementalAlterConfigsRequest
        config = R.AlterableConfig(
            name="transaction.partition.verification.enable", config_operation=0, value=str(on).lower()
        )
        wanted = R.AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
        (done,) = self.client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, R(resources=[wanted])).responses
        assert done.error_code == 0, done.error_message
        asked = M.DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=4,
            resource_name=str(self.coordinator),
            configuration_keys=["transaction.partition.verification.enable"],
        )

        def is_so() -> bool:
            answer = self.client.call(ApiKey.DESCRIBE_CONFIGS, 4, M.DescribeConfigsRequest(resources=[asked]))
            return bool(answer.results[0].configs[0].value == str(on).lower())

        self.until(is_so)
