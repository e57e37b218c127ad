"""What a broker holds while it is attacked. Everything that has a name is called `heavy`, and is as large as allowed.

Things that a request may change, delete or end are called `doomed`: they are made again before each request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from tests.kit.clients.wire import WireClient

HEAVY, DOOMED, CONSUMERS = "heavy", "doomed", "heavy-consumers"
PARTITIONS = 1_000
COMMITTED = 20
"""The number of partitions with a committed offset, which has the longest metadata."""
LONGEST_TEXTS = ("\N{GRINNING FACE}" * 4096, "x" * 4096)
SEGMENTS = 500
PRODUCERS = 5_000
ABORTED = 200
SMALL_BATCHES = 20_000
"""The number of batches in the last segment, whose index is sparse."""
FAR = 1_000
MEMBER_BYTES = 100_000
TIME = 1_700_000_000_000
PATIENCE_S = 30.0
SETTINGS: dict[str, object] = {
    "num.network.threads": 1,
    "auto.create.topics.enable": "false",
    "group.min.session.timeout.ms": 1,
    "group.max.session.timeout.ms": 3_600_000,
    "group.consumer.max.session.timeout.ms": 3_600_000,
    "group.consumer.session.timeout.ms": 3_600_000,
    "transaction.max.timeout.ms": 3_600_000,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "kbroker.zookeeper.offsets.max.nodes": 10_000,
    "kbroker.producers.max.bytes": 8 << 20,
}
"""One processor serves all connections. Members and transactions live at least as long as a run may take."""


class Furnisher:
    """Makes `heavy` and `doomed` in a broker, over one connection."""

    def __init__(self, client: WireClient):
        self.client = client
        self.heavy_producer = self.doomed_producer = (-1, -1)
        """Producer ids and epochs of the open transactions."""
        self.deep_offset = 0
        """An offset in partition 0 of `heavy`, far from an index entry and from the end, which is found quickly."""
        self.topic_ids: dict[str, bytes] = {}

    def furnish(self) -> None:
        for key_type in (0, 1):
            find = M.FindCoordinatorRequest(key=HEAVY, key_type=key_type)
            self._until_known(lambda: self.client.call(ApiKey.FIND_COORDINATOR, 1, find))  # noqa: B023
        self.create(HEAVY, PARTITIONS, **{"segment.bytes": "100", "index.interval.bytes": "2147483647"})
        self.create(DOOMED, 2)
        self.produce(HEAVY, (encode_batch([(TIME, None, b"")]) for _ in range(SEGMENTS)))
        self.alter(HEAVY, **{"segment.bytes": "1073741824"})
        self.abort_transactions()
        self.produce(
            HEAVY,
            (
                encode_batch([(TIME, None, b"")], producer_id=1 << 40 | at, producer_epoch=0, base_sequence=0)
                for at in range(PRODUCERS)
            ),
        )
        self.produce(HEAVY, (encode_batch([(TIME, None, b"")]) for _ in range(SMALL_BATCHES)))
        self.commit_offsets(HEAVY)
        self.join_classic()
        self.join_consumer()
        self.begin_transaction()
        for put in (self.doomed_records, self.doomed_group, self.doomed_transaction):
            put()

    # --- topics and records
    def create(self, name: str, partitions: int, **configs: str) -> None:
        """Create a topic if it is not there."""
        R = M.CreateTopicsRequest
        topic = R.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[R.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
        (made,) = self.client.call(ApiKey.CREATE_TOPICS, 7, R(topics=[topic], timeout_ms=30_000)).topics
        assert made.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS), made
        if made.error_code == 0:
            self.topic_ids[name] = made.topic_id

    def alter(self, name: str, **configs: str) -> None:
        R = M.IncrementalAlterConfigsRequest
        changes = [R.AlterableConfig(name=key, config_operation=0, value=value) for key, value in configs.items()]
        asked = R(resources=[R.AlterConfigsResource(resource_type=2, resource_name=name, configs=changes)])
        (answer,) = self.client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, asked).responses
        assert answer.error_code == 0, answer

    def produce(self, topic: str, batches: Iterable[bytes]) -> None:
        """Produce batches to partition 0, one in each request, with up to 200 requests under way."""
        R = M.ProduceRequest
        requests: Iterator[M.ProduceRequest] = (
            R(
                acks=1,
                timeout_ms=30_000,
                topic_data=[
                    R.TopicProduceData(name=topic, partition_data=[R.PartitionProduceData(index=0, records=one)])
                ],
            )
            for one in batches
        )
        waiting: list[int] = []
        for request in requests:
            waiting.append(self.client.send(ApiKey.PRODUCE, 8, request))
            if len(waiting) == 200:
                self._produced(topic, waiting)
        self._produced(topic, waiting)

    def _produced(self, topic: str, waiting: list[int]) -> None:
        for correlation_id in waiting:
            answer = self.client.receive(ApiKey.PRODUCE, 8, correlation_id).responses[0].partition_responses[0]
            assert answer.error_code == 0, answer
            if topic == HEAVY:
                self.deep_offset = answer.base_offset - FAR
        waiting.clear()

    def end_offset(self, topic: str) -> int:
        """Return the end offset of partition 0."""
        R = M.ListOffsetsRequest
        part = R.ListOffsetsPartition(partition_index=0, timestamp=-1)
        asked = R(replica_id=-1, topics=[R.ListOffsetsTopic(name=topic, partitions=[part])])
        offset: int = self.client.call(ApiKey.LIST_OFFSETS, 1, asked).topics[0].partitions[0].offset
        return offset

    def doomed_records(self) -> None:
        self.create(DOOMED, 2)
        self.produce(DOOMED, (encode_batch([(TIME, None, b"x")]) for _ in range(3)))

    # --- transactions
    def init_producer(self, transactional_id: str) -> tuple[int, int]:
        asked = M.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=3_600_000)
        answer = self._until_known(lambda: self.client.call(ApiKey.INIT_PRODUCER_ID, 4, asked))
        return answer.producer_id, answer.producer_epoch

    def add_partitions(self, transactional_id: str, producer: tuple[int, int], count: int) -> None:
        R = M.AddPartitionsToTxnRequest
        asked = R(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[R.AddPartitionsToTxnTopic(name=HEAVY, partitions=[*range(count)])],
        )

        def ask() -> Any:
            topic = self.client.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, asked).results_by_topic_v3_and_below[0]
            return Answered(topic.results_by_partition[0].partition_error_code)

        self._until_known(ask)

    def abort_transactions(self) -> None:
        R = M.ProduceRequest
        producer = self.init_producer("aborted")
        for sequence in range(ABORTED):
            self.add_partitions("aborted", producer, 1)
            batch = encode_batch(
                [(TIME, None, b"")],
                producer_id=producer[0],
                producer_epoch=producer[1],
                base_sequence=sequence,
                is_transactional=True,
            )
            part = R.PartitionProduceData(index=0, records=batch)
            topic = R.TopicProduceData(name=HEAVY, partition_data=[part])
            sent = R(acks=-1, transactional_id="aborted", timeout_ms=30_000, topic_data=[topic])
            (answer,) = self.client.call(ApiKey.PRODUCE, 8, sent).responses[0].partition_responses
            assert answer.error_code == 0, answer
            end = M.EndTxnRequest(
                transactional_id="aborted", producer_id=producer[0], producer_epoch=producer[1], committed=False
            )
            self._until_known(lambda: self.client.call(ApiKey.END_TXN, 3, end))  # noqa: B023

    def begin_transaction(self) -> None:
        self.heavy_producer = self.init_producer(HEAVY)
        self.add_partitions(HEAVY, self.heavy_producer, PARTITIONS)

    def doomed_transaction(self) -> None:
        self.doomed_producer = self.init_producer(DOOMED)
        self.add_partitions(DOOMED, self.doomed_producer, 2)

    # --- groups
    def commit_offsets(self, group: str) -> None:
        """Commit offsets with the longest metadata that is accepted.

        The limit counts characters, which may have four bytes.
        """
        R = M.OffsetCommitRequest
        for text in LONGEST_TEXTS:
            parts = [
                R.OffsetCommitRequestPartition(partition_index=at, committed_offset=1, committed_metadata=text)
                for at in range(COMMITTED)
            ]
            asked = R(group_id=group, topics=[R.OffsetCommitRequestTopic(name=HEAVY, partitions=parts)])

            def ask() -> Any:
                (topic,) = self.client.call(ApiKey.OFFSET_COMMIT, 7, asked).topics  # noqa: B023
                return Answered(topic.partitions[0].error_code)

            if self._until_known(ask, but=ErrorCode.OFFSET_METADATA_TOO_LARGE).error_code == 0:
                return
        raise AssertionError("no text is short enough")

    def join_classic(self) -> None:
        R = M.JoinGroupRequest
        protocol = R.JoinGroupRequestProtocol(name="range", metadata=bytes(MEMBER_BYTES))
        joining = R(
            group_id=HEAVY,
            session_timeout_ms=3_600_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[protocol],
        )
        member_id = self._until_known(lambda: self.client.call(ApiKey.JOIN_GROUP, 3, joining)).member_id
        S = M.SyncGroupRequest
        assigned = S.SyncGroupRequestAssignment(member_id=member_id, assignment=bytes(MEMBER_BYTES))
        syncing = S(group_id=HEAVY, generation_id=1, member_id=member_id, assignments=[assigned])
        assert self.client.call(ApiKey.SYNC_GROUP, 3, syncing).error_code == 0

    def join_consumer(self) -> None:
        joining = M.ConsumerGroupHeartbeatRequest(
            group_id=CONSUMERS,
            member_id="m" * 22,
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=[HEAVY],
            topic_partitions=[],
        )
        self._until_known(lambda: self.client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, joining))

    def doomed_group(self) -> None:
        R = M.OffsetCommitRequest
        part = R.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
        topic = R.OffsetCommitRequestTopic(name=HEAVY, partitions=[part])
        self.client.call(ApiKey.OFFSET_COMMIT, 7, R(group_id=DOOMED, topics=[topic]))

    def _until_known(self, ask: Callable[[], Any], but: int = 0) -> Any:
        """Ask again until the coordinator is ready, and return the answer."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = ask()
            if answer.error_code in (0, but):
                return answer
            assert answer.error_code in NOT_YET and time.monotonic() < deadline, answer
            time.sleep(0.002)


class Answered:
    """An answer's error code, for answers that do not have it at the top level."""

    def __init__(self, error_code: int):
        self.error_code = error_code


NOT_YET = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
