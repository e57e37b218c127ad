"""A transactional producer with an epoch for each transaction (KIP-890), on a raw connection.

It does what clients of transactions of version 2 do: it adds no partition before writing to it, EndTxn answers with
the epoch to go on with, and requests without an answer are repeated with the same epoch and sequence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from tests.kit.clients.wire import ConnectionClosed, WireClient

PRODUCE_VERSION, COMMIT_VERSION, END_VERSION, INIT_VERSION = 12, 5, 5, 5
TRIED_AGAIN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


class Unanswered(Exception):
    """No answer came in time that the producer could go on with."""


class Refused(Exception):
    """The broker has refused a request. `code` is the error code."""

    def __init__(self, code: int):
        super().__init__(ErrorCode(code).name)
        self.code = ErrorCode(code)


class EpochProducer:
    """One producer, to be used after `init`. For one thread."""

    def __init__(self, port: int, transactional_id: str, timeout_ms: int = 60_000, patience_s: float = 30.0):
        self.port, self.id, self.timeout_ms, self.patience_s = port, transactional_id, timeout_ms, patience_s
        self.client: WireClient | None = None
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None

    def ask(self, api: ApiKey, version: int, message: Any, code_of: Callable[[Any], int]) -> Any:
        """Ask, again after errors that clients retry.

        Raises Refused after other errors, Unanswered if time runs out.
        """
        deadline = time.monotonic() + self.patience_s
        while True:
            if time.monotonic() > deadline:
                raise Unanswered(f"{api.label} of {self.id}")
            try:
                if self.client is None:
                    self.client = WireClient("127.0.0.1", self.port, timeout_s=self.patience_s)
                answer = self.client.call(api, version, message)
            except (OSError, ConnectionClosed):
                self.close()
                time.sleep(0.02)
                continue
            code = code_of(answer)
            if not code:
                return answer
            if code not in TRIED_AGAIN:
                raise Refused(code)
            time.sleep(0.005)

    def known(self) -> dict[str, Any]:
        return {"transactional_id": self.id, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    def take(self, answer: Any) -> None:
        self.producer_id, self.epoch, self.sequences = answer.producer_id, answer.producer_epoch, {}

    def init(self) -> None:
        message = M.InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=self.timeout_ms)
        self.find_coordinator(self.id, 1)
        self.take(self.ask(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, message, lambda answer: answer.error_code))

    def find_coordinator(self, key: str, key_type: int) -> None:
        message = M.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        self.ask(ApiKey.FIND_COORDINATOR, 4, message, lambda answer: answer.coordinators[0].error_code)

    def send(self, topic: str, partition: int, values: Sequence[bytes], key: bytes = b"k") -> int:
        """Send a batch in the transaction, and return its offset. If no transaction is open, one begins with it."""
        sequence = self.sequences.get((topic, partition), 0)
        batch = encode_batch(
            [(time.time_ns() // 1_000_000, key, value) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        R = M.ProduceRequest
        data = R.PartitionProduceData(index=partition, records=batch)
        message = R(
            acks=-1,
            timeout_ms=30_000,
            transactional_id=self.id,
            topic_data=[R.TopicProduceData(name=topic, partition_data=[data])],
        )

        def partition_of(answer: Any) -> Any:
            return answer.responses[0].partition_responses[0]

        answer = self.ask(ApiKey.PRODUCE, PRODUCE_VERSION, message, lambda answer: partition_of(answer).error_code)
        self.sequences[topic, partition] = sequence + len(values)
        return int(partition_of(answer).base_offset)

    def commit_offsets(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Commit offsets in the transaction. If no transaction is open, one begins with them."""
        self.find_coordinator(group, 0)
        R = M.TxnOffsetCommitRequest
        partitions = [
            R.TxnOffsetCommitRequestPartition(partition_index=at, committed_offset=offset, committed_metadata="")
            for at, offset in offsets.items()
        ]
        topics = [R.TxnOffsetCommitRequestTopic(name=topic, partitions=partitions)]
        message = R(group_id=group, topics=topics, **self.known())
        self.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            COMMIT_VERSION,
            message,
            lambda answer: answer.topics[0].partitions[0].error_code,
        )

    def end(self, commit: bool) -> None:
        """End the transaction. The producer has a new epoch afterwards."""
        message = M.EndTxnRequest(committed=commit, **self.known())
        self.take(self.ask(ApiKey.END_TXN, END_VERSION, message, lambda answer: answer.error_code))
