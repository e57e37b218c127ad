"""AlterPartition, as leaders ask it of the controller: one request at a time, with one change for each partition."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from itertools import islice
from typing import NamedTuple, TypeAlias
from uuid import UUID

from kbroker.clock import Clock
from kbroker.errors import ErrorCode
from kbroker.model import NO_UUID, TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages import Message
from kbroker.replication.surroundings import AskController
from kbroker.rules.in_sync import Committed, Next, Proposal

LOG = logging.getLogger(__name__)

HIGHEST_VERSION = 3
HIGHEST_WITHOUT_TOPIC_IDS = 1
FIRST_WITH_BROKER_EPOCHS = 3

RETRY_MS = 50
"""How long the next request waits after one that the controller did not take, or after which changes are left."""

MAX_CHANGES = 10_000
"""The most changes in one request: the controller writes them to ZooKeeper before it does anything else."""

UNKNOWN_EPOCH = -1

Q = M.AlterPartitionRequest


class Change(NamedTuple):
    """A change of one partition's ISR that the controller is to commit."""

    topic_id: UUID
    proposal: Proposal
    broker_epochs: Mapping[int, int]
    """The epoch of each replica's registration, where it is known, by node id (KIP-903)."""


Settle: TypeAlias = Callable[[TopicPartition, Proposal, "Committed | ErrorCode"], Next]
"""Told the answer to a proposal; returns what comes next."""


class InSyncRequests:
    """Sends changes of ISRs to the controller until each has its answer. Thread-safe; never waits."""

    def __init__(
        self,
        node_id: int,
        ask: AskController,
        broker_epoch: Callable[[], int],
        settle: Settle,
        settled: Callable[[], None],
        clock: Clock,
        on_due: Callable[[], None],
    ):
        """`settled` is called when `settle` was called for all changes of an answer. `on_due` is called by any thread
        when `due_ms` has become less."""
        self._node_id = node_id
        self._ask = ask
        self._broker_epoch = broker_epoch
        self._settle = settle
        self._settled = settled
        self._clock = clock
        self._on_due = on_due
        self._lock = threading.Lock()  # guards what follows; nothing is called under it
        self._changes: dict[TopicPartition, Change] = {}
        """Every change without an answer yet, those of the request in flight among them."""
        self._is_in_flight = False
        self._is_stopped = False
        self._not_before = 0.0
        self._refused_with = 0
        """The error of the last answer: without a controller it is the same for each request until there is one."""

    def put(self, topic_partition: TopicPartition, change: Change) -> None:
        """Have the controller asked for this change; it takes the place of an older one of the partition."""
        with self._lock:
            self._changes[topic_partition] = change

    def withdraw(self, topic_partition: TopicPartition) -> None:
        """Forget the partition's change: this broker does not lead it any more."""
        with self._lock:
            self._changes.pop(topic_partition, None)

    def stop(self) -> None:
        """Send no further request."""
        with self._lock:
            self._is_stopped = True

    @property
    def due_ms(self) -> int | None:
        """Milliseconds until `send` has something to do; None if nothing waits for time to pass."""
        with self._lock:
            if self._is_in_flight or self._is_stopped or not self._changes:
                return None
            return max(0, round((self._not_before - self._clock.monotonic()) * 1000))

    def send(self) -> None:
        """Send a request with what waits, unless one is in flight or the pause after the last one is not over."""
        with self._lock:
            is_free = not self._is_in_flight and not self._is_stopped
            if not is_free or not self._changes or self._clock.monotonic() < self._not_before:
                return
            self._is_in_flight = True
            sent = dict(islice(self._changes.items(), MAX_CHANGES))
        has_ids = all(change.topic_id != NO_UUID for change in sent.values())
        self._ask(
            lambda version: self._request(sent, version),
            ApiKey.ALTER_PARTITION,
            HIGHEST_VERSION if has_ids else HIGHEST_WITHOUT_TOPIC_IDS,
            lambda answer, version: self._answered(sent, answer, version),
        )

    def _request(self, changes: Mapping[TopicPartition, Change], version: int) -> Message:
        topics: dict[str, Q.TopicData] = {}
        for (name, partition_id), change in changes.items():
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = Q.TopicData(topic_name=name, topic_id=change.topic_id.bytes, partitions=[])
            proposal = change.proposal
            part = Q.PartitionData(
                partition_index=partition_id,
                leader_epoch=proposal.leader_epoch,
                partition_epoch=proposal.partition_epoch,
            )
            if version >= FIRST_WITH_BROKER_EPOCHS:
                part.new_isr_with_epochs = [
                    Q.BrokerState(broker_id=each, broker_epoch=change.broker_epochs.get(each, UNKNOWN_EPOCH))
                    for each in proposal.isr
                ]
            else:
                part.new_isr = list(proposal.isr)
            topic.partitions.append(part)
        return Q(broker_id=self._node_id, broker_epoch=self._broker_epoch(), topics=list(topics.values()))

    def _answered(self, sent: Mapping[TopicPartition, Change], answer: Message | None, version: int) -> None:
        assert answer is None or isinstance(answer, M.AlterPartitionResponse), answer
        all_done = False
        if answer is None:
            LOG.debug("no answer to AlterPartition of %d partitions", len(sent))
        elif answer.error_code:
            level = logging.DEBUG if answer.error_code == self._refused_with else logging.INFO
            LOG.log(level, "AlterPartition of %d partitions: %s", len(sent), _error(answer.error_code).name)
        else:
            all_done = self._take(sent, _answers(sent, answer, version))
        with self._lock:
            self._is_in_flight = False
            if answer is not None:
                self._refused_with = answer.error_code
            if not all_done:
                self._not_before = self._clock.monotonic() + RETRY_MS / 1000
        if all_done:
            self.send()
        else:
            self._on_due()

    def _take(
        self, sent: Mapping[TopicPartition, Change], answers: Mapping[TopicPartition, Committed | ErrorCode]
    ) -> bool:
        """Settle the changes that have an answer. Returns whether none of those sent has to be sent again."""
        all_done = True
        for topic_partition, change in sent.items():
            answer = answers.get(topic_partition)
            if answer is None or self._settle(topic_partition, change.proposal, answer) is Next.ASK_AGAIN:
                all_done = False
                continue
            with self._lock:
                if self._changes.get(topic_partition) is change:
                    del self._changes[topic_partition]
        self._settled()
        return all_done


def _answers(
    sent: Mapping[TopicPartition, Change], answer: M.AlterPartitionResponse, version: int
) -> dict[TopicPartition, Committed | ErrorCode]:
    """Return what the controller says of each partition; it may leave some out."""
    names = {change.topic_id.bytes: topic for (topic, _), change in sent.items()}
    answers: dict[TopicPartition, Committed | ErrorCode] = {}
    for topic in answer.topics:
        name = topic.topic_name if version <= HIGHEST_WITHOUT_TOPIC_IDS else names.get(topic.topic_id)
        if not name:
            LOG.warning("the answer to AlterPartition names a topic that was not asked for: %r", topic)
            continue
        for part in topic.partitions:
            answers[TopicPartition(name, part.partition_index)] = (
                _error(part.error_code)
                if part.error_code
                else Committed(part.leader_epoch, part.partition_epoch, tuple(part.isr))
            )
    return answers


def _error(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
