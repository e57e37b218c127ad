"""What the history of a cluster has of clients: producers that are idempotent or transactional, and groups.

Nothing is left to chance but member ids, and times that brokers set.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kbroker.protocol import messages as M
from kbroker.protocol.messages import Message
from kbroker.protocol.records import Record, encode_batch
from tests.oracle.scenarios.group_members import ASSIGNMENT, SUBSCRIPTION

TIME = time.time_ns() // 1_000_000
"""The timestamp of all records, in every history of this process. It is a recent one, so that neither retention nor the
expiry of idempotent producers finds anything to remove."""
TRANSACTION_STATE, GROUP_OFFSETS = "__transaction_state", "__consumer_offsets"
_OF_GROUPS = 0
_END_TIMEOUT_S = 20.0
_SESSION_MS = 30_000


class Brokers(Protocol):
    """The cluster as these clients see it."""

    def ask(self, message: Message, codes: Callable[[Any], Sequence[int]], node_id: int = 0) -> Any:
        """Ask a broker, 0 for the controller, until no code is an error."""
        ...

    def leader(self, topic: str, partition: int) -> int:
        """Return the id of the partition's leader, once that is a broker that runs."""
        ...


class Producer:
    """A producer. Without an id (`begin` has not been called) it is neither idempotent nor transactional."""

    def __init__(self, brokers: Brokers, transactional_id: str | None = None):
        self._brokers = brokers
        self._transactional_id = transactional_id
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[tuple[str, int], int] = {}
        self._values = itertools.count()

    def begin(self, node_id: int = 0) -> None:
        """Get a producer id from the broker, or for a transactional producer from the coordinator."""
        asked = M.InitProducerIdRequest(transactional_id=self._transactional_id, transaction_timeout_ms=60_000)
        answer = self._brokers.ask(asked, lambda a: [a.error_code], node_id or self._coordinator())
        self._producer_id, self._epoch, self._sequences = answer.producer_id, answer.producer_epoch, {}

    def write(self, topic: str, partition: int, word: str = "", count: int = 3) -> None:
        """Send a batch to the leader, whoever it is, in the open transaction if there is one."""
        if self._transactional_id is not None:
            self._add(topic, partition)
        R = M.ProduceRequest
        number = word or f"of {self._transactional_id or 'nobody'} {next(self._values)}"
        records = [Record(at, TIME + at, b"k%d" % at, f"{topic} {number} {at}".encode(), []) for at in range(count)]
        sequence = self._sequences.get((topic, partition), 0)
        batch = encode_batch(
            records,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence if self._producer_id >= 0 else -1,
            is_transactional=self._transactional_id is not None,
        )
        self._sequences[topic, partition] = sequence + count
        data = R.TopicProduceData(name=topic, partition_data=[R.PartitionProduceData(index=partition, records=batch)])
        asked = R(transactional_id=self._transactional_id, acks=-1, timeout_ms=20_000, topic_data=[data])
        leader = self._brokers.leader(topic, partition)
        self._brokers.ask(
            asked, lambda a: [p.error_code for one in a.responses for p in one.partition_responses], leader
        )

    def commit_offsets(self, group: str, topic: str, offset: int) -> None:
        """Commit an offset of partition 0 in the open transaction."""
        asked = M.AddOffsetsToTxnRequest(group_id=group, **self._known())
        self._brokers.ask(asked, lambda answer: [answer.error_code], self._coordinator())
        R = M.TxnOffsetCommitRequest
        one = R.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata="in a transaction"
        )
        topics = [R.TxnOffsetCommitRequestTopic(name=topic, partitions=[one])]
        committed = R(group_id=group, topics=topics, **self._known())
        self._brokers.ask(committed, _codes_of_topics, coordinator(self._brokers, GROUP_OFFSETS))

    def end(self, *, commit: bool) -> None:
        """End the transaction, and wait until all markers are written."""
        asked = M.EndTxnRequest(committed=commit, **self._known())
        self._brokers.ask(asked, lambda answer: [answer.error_code], self._coordinator())
        assert self._transactional_id is not None
        described = M.DescribeTransactionsRequest(transactional_ids=[self._transactional_id])
        deadline = time.monotonic() + _END_TIMEOUT_S
        while True:
            answer = self._brokers.ask(
                described, lambda a: [one.error_code for one in a.transaction_states], self._coordinator()
            )
            state = answer.transaction_states[0].transaction_state
            if state.startswith("Complete"):
                return
            assert time.monotonic() < deadline, f"the transaction is in the state {state}"
            time.sleep(0.05)

    def _add(self, topic: str, partition: int) -> None:
        R = M.AddPartitionsToTxnRequest
        asked = R(
            v3_and_below_topics=[R.AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
            **{f"v3_and_below_{name}": value for name, value in self._known().items()},
        )
        self._brokers.ask(
            asked,
            lambda a: [p.partition_error_code for t in a.results_by_topic_v3_and_below for p in t.results_by_partition],
            self._coordinator(),
        )

    def _known(self) -> dict[str, Any]:
        return {
            "transactional_id": self._transactional_id,
            "producer_id": self._producer_id,
            "producer_epoch": self._epoch,
        }

    def _coordinator(self) -> int:
        return coordinator(self._brokers, TRANSACTION_STATE)


class Group:
    """A group of which one member comes and goes."""

    def __init__(self, brokers: Brokers, name: str):
        self._brokers = brokers
        self._name = name

    def find(self) -> None:
        """Look for the coordinator. The topic is made if this is the first group."""
        asked = M.FindCoordinatorRequest(key_type=_OF_GROUPS, coordinator_keys=[self._name])
        self._brokers.ask(asked, lambda answer: [one.error_code for one in answer.coordinators])

    def commit(self, topic: str, offset: int, **member: Any) -> None:
        """Commit an offset of partition 0: a group without members, or as its member."""
        R = M.OffsetCommitRequest
        one = R.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata="m"
        )
        asked = R(group_id=self._name, topics=[R.OffsetCommitRequestTopic(name=topic, partitions=[one])], **member)
        self._ask(asked, _codes_of_topics)

    def come_and_go(self, topic: str, offset: int) -> None:
        """Join as the only member, get a share, commit an offset, leave."""
        R = M.JoinGroupRequest
        joined = self._ask(
            R(
                group_id=self._name,
                session_timeout_ms=_SESSION_MS,
                rebalance_timeout_ms=_SESSION_MS,
                member_id="",
                protocol_type="consumer",
                protocols=[R.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
            ),
            lambda answer: [answer.error_code],
        )
        member_id, generation = joined.member_id, joined.generation_id
        share = M.SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=ASSIGNMENT)
        asked = M.SyncGroupRequest(
            group_id=self._name, generation_id=generation, member_id=member_id, assignments=[share]
        )
        self._ask(asked, lambda answer: [answer.error_code])
        self.commit(topic, offset, generation_id_or_member_epoch=generation, member_id=member_id)
        leaving = M.LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=None)
        self._ask(M.LeaveGroupRequest(group_id=self._name, members=[leaving]), lambda answer: [answer.error_code])

    def _ask(self, message: Message, codes: Callable[[Any], Sequence[int]]) -> Any:
        return self._brokers.ask(message, codes, coordinator(self._brokers, GROUP_OFFSETS))


def coordinator(brokers: Brokers, topic: str) -> int:
    """Return the id of the broker that leads the only partition of a coordinators' topic."""
    return brokers.leader(topic, 0)


def _codes_of_topics(answer: Any) -> list[int]:
    return [one.error_code for topic in answer.topics for one in topic.partitions]
