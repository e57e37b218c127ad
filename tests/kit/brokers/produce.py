"""An obvious model of a broker that takes records: lists, the state of producers, and faults on request."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from dataclasses import dataclass, field

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import read_batches
from tests.kit.brokers import answers
from tests.kit.brokers.answers import ALL, Ranges
from tests.kit.brokers.scripted import Asked, Peer, ScriptedBroker

Key = tuple[str, int]
Response = M.ProduceResponse
REMEMBERED = 5
FAULTS = ("refuse", "refuse and drop", "append and refuse", "append and drop", "drop", "lose state")


@dataclass
class ProducerEntry:
    """What a partition remembers of a producer."""

    epoch: int
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # base sequence, count, base offset

    @property
    def next_sequence(self) -> int:
        return (self.batches[-1][0] + self.batches[-1][1]) % (1 << 31) if self.batches else 0


class ProduceBroker(ScriptedBroker):
    """A broker. With `probability`, one of the `faults` (names of FAULTS) happens to a partition's batch."""

    def __init__(
        self,
        partitions: int = 3,
        *,
        seed: int = 0,
        faults: tuple[str, ...] = (),
        probability: float = 0.0,
        versions: tuple[int, int] = (3, 12),
        largest_batch: int = 1 << 20,
    ):
        super().__init__(self.serve)
        self.partitions = partitions
        self.random = random.Random(seed)
        self.faults = faults
        self.probability = probability
        self.versions = versions
        self.largest_batch = largest_batch
        self.lock = threading.Lock()  # guards the fields below
        self.appended = threading.Condition(self.lock)
        self.logs: dict[Key, list[bytes | None]] = defaultdict(list)
        self.producers: dict[tuple[Key, int], ProducerEntry] = {}
        self.next_producer_id = 1000
        self.epochs_given = 0
        self.batches = 0
        self.met: dict[str, int] = defaultdict(int)
        self.leader = 1
        self.fatal: ErrorCode | None = None
        self.silent = False
        self.codecs: set[int] = set()

    def served(self) -> Ranges:
        return ALL | {ApiKey.PRODUCE: self.versions}

    def serve(self, peer: Peer) -> None:
        for asked in peer.requests(self.served()):
            if asked.api_key == ApiKey.METADATA:
                peer.respond(asked, self.metadata(asked))
            elif asked.api_key == ApiKey.INIT_PRODUCER_ID:
                with self.lock:
                    self.next_producer_id += 1
                    self.epochs_given += 1
                    peer.respond(asked, M.InitProducerIdResponse(producer_id=self.next_producer_id, producer_epoch=0))
            elif asked.api_key == ApiKey.PRODUCE:
                if not self.produce(peer, asked):
                    peer.reset()
                    return
            else:
                raise AssertionError(asked)

    def metadata(self, asked: Asked) -> M.MetadataResponse:
        message = asked.message
        assert isinstance(message, M.MetadataRequest)
        topics = [answers.topic(wanted.name, [self.leader] * self.partitions) for wanted in message.topics or []]
        return answers.metadata({1: self.port}, topics)

    def produce(self, peer: Peer, asked: Asked) -> bool:
        """Answer a Produce request. Return False if the connection is to be dropped."""
        message = asked.message
        assert isinstance(message, M.ProduceRequest)
        topics = []
        drop = False
        with self.lock:
            for topic in message.topic_data:
                answers = []
                for partition in topic.partition_data:
                    answer, dropped = self.batch((topic.name, partition.index), bytes(partition.records or b""))
                    drop |= dropped
                    answers.append(answer)
                topics.append(Response.TopicProduceResponse(name=topic.name, partition_responses=answers))
            if self.silent:
                return True
        if not drop and message.acks != 0:
            peer.respond(asked, Response(responses=topics))
        return not drop

    def batch(self, key: Key, data: bytes) -> tuple[M.ProduceResponse.PartitionProduceResponse, bool]:
        self.batches += 1
        fault = self.random.choice(self.faults) if self.faults and self.random.random() < self.probability else ""
        if fault:
            self.met[fault] += 1
        if fault == "lose state":
            self.producers = {of: entry for of, entry in self.producers.items() if of[0] != key}
        code, offset = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        if fault not in ("refuse", "refuse and drop", "drop") and not self.silent:
            code, offset = self.append(key, data)
        if fault == "append and refuse" and code == ErrorCode.NONE:
            code, offset = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1
        answer = Response.PartitionProduceResponse(index=key[1], error_code=code, base_offset=offset)
        return answer, "drop" in fault

    def wait_until_read(self, key: Key, count: int) -> None:
        """Wait until a partition has `count` records, for a producer that gets no answers."""
        with self.appended:
            assert self.appended.wait_for(lambda: len(self.logs[key]) >= count, 30)

    def append(self, key: Key, data: bytes) -> tuple[ErrorCode, int]:
        (batch,) = read_batches(data)
        info = batch.info
        if self.fatal is not None:
            return self.fatal, -1
        if len(data) > self.largest_batch:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        self.codecs.add(info.codec)
        values = [record.value for record in batch.records()]
        log = self.logs[key]
        if info.producer_id >= 0:
            entry = self.producers.get((key, info.producer_id))
            if entry is None or entry.epoch != info.producer_epoch:
                # As in Kafka: an unknown producer may begin anywhere; a new epoch of a known one begins with 0.
                if info.base_sequence != 0 and (entry is not None or "lose state" in self.faults):
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                entry = ProducerEntry(info.producer_epoch)
            for sequence, count, offset in entry.batches:
                if (sequence, count) == (info.base_sequence, len(values)):
                    return ErrorCode.NONE, offset
            if entry.batches and info.base_sequence != entry.next_sequence:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            entry.batches = [*entry.batches, (info.base_sequence, len(values), len(log))][-REMEMBERED:]
            self.producers[key, info.producer_id] = entry
        log.extend(values)
        self.appended.notify_all()
        return ErrorCode.NONE, len(log) - len(values)
