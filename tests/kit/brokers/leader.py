"""A leader that serves replicas' Fetch from real logs, in the caller's thread. It fails as a test tells it to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kbroker._core.client.pump import Pump
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.storage.log import Log
from tests.kit.brokers.fetch_socket import FetchSocket

NODE = 3


@dataclass
class Led:
    """A partition that the leader leads."""

    log: Log
    leader_epoch: int
    high_watermark: int | None = None
    """None: the log's end."""
    log_start_offset: int | None = None
    """None: that of the log."""


@dataclass
class Session:
    """A fetch session (KIP-227): for each partition what was asked last, by (topic name or id, partition)."""

    session_id: int
    epoch: int = 1
    asked: dict[tuple[str | bytes, int], Any] = field(default_factory=dict)


class ReplicaLeader(FetchSocket):
    """Answers Fetch requests of one follower over a socket pair."""

    def __init__(self, version: int = 17, node_id: int = NODE):
        super().__init__(version)
        self.node_id = node_id
        self.partitions: dict[tuple[str, int], Led] = {}
        self.ids: dict[str, bytes] = {}
        self.sessions = True
        self.session: Session | None = None
        self.session_ids = 0
        self.told: dict[tuple[str | bytes, int], tuple[int, int]] = {}
        """The high watermarks and log starts of the last answers."""
        self.errors: dict[tuple[str, int], int] = {}  # each is answered once
        self.error = 0  # of the next answer as a whole
        self.damage: Callable[[bytes], bytes] = bytes
        """What becomes of the records of a partition before they are sent."""

    def lead(self, topic: str, partition: int, log: Log, leader_epoch: int) -> Led:
        led = self.partitions[topic, partition] = Led(log, leader_epoch)
        self.ids[topic] = log.topic_id.bytes
        return led

    def connect(self, pump: Pump) -> None:
        self.session = None
        self.connect_to(pump, self.node_id)

    def exchange(self, pump: Pump, wanted: list[int]) -> None:
        """Let an engine ask, and answer it. `wanted` has the nodes that the pump has asked a connection for."""
        pump.run(0)
        if self.node_id in wanted:
            wanted.remove(self.node_id)
            self.connect(pump)
            pump.run(0)
        self.serve(pump)

    def serve(self, pump: Pump) -> bool:
        """Answer one request, if one has come, and let the pump take the answer in. Return whether one had come."""
        request = self.take_request()
        if request is None or self.socket is None:
            return False
        header, message = request
        response = self.encode(header, self.answer(message, header.request_api_version))
        self.socket.setblocking(False)
        while response:
            try:
                response = response[self.socket.send(response) :]
            except BlockingIOError:
                pump.run(0)
            except OSError:
                self.close()
                return True
        pump.run(0)
        return True

    def answer(self, message: Any, version: int) -> Any:
        by_id = version >= 13
        asked = {
            (topic.topic_id if by_id else topic.topic, ask.partition): ask
            for topic in message.topics
            for ask in topic.partitions
        }
        response = M.FetchResponse()
        if self.error:
            response.error_code, self.error, self.session = self.error, 0, None
            return response
        incremental = message.session_epoch > 0
        if incremental:
            if self.session is None or self.session.session_id != message.session_id:
                response.error_code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
                return response
            if self.session.epoch != message.session_epoch:
                response.error_code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
                return response
            self.session.epoch += 1
            self.session.asked |= asked
            for topic in message.forgotten_topics_data:
                for partition in topic.partitions:
                    self.session.asked.pop((topic.topic_id if by_id else topic.topic, partition), None)
        elif self.sessions:
            self.session_ids += 1
            self.session = Session(self.session_ids, 1, dict(asked))
        if self.session is not None:
            asked = self.session.asked
            response.session_id = self.session.session_id
        for (name, partition), ask in asked.items():
            answer = self.answer_partition(name, partition, ask, message.max_bytes)
            quiet = not answer.error_code and not answer.records and answer.diverging_epoch.epoch < 0
            tells = (answer.high_watermark, answer.log_start_offset)
            if incremental and quiet and self.told.get((name, partition)) == tells:
                continue
            self.told[name, partition] = tells
            topic = M.FetchResponse.FetchableTopicResponse(partitions=[answer])
            if by_id:
                topic.topic_id = name
            else:
                topic.topic = name
            response.responses.append(topic)
        return response

    def answer_partition(self, name: str | bytes, partition: int, ask: Any, max_bytes: int) -> Any:
        answer = M.FetchResponse.PartitionData(partition_index=partition, high_watermark=-1, records=b"")
        topic = next((at for at, topic_id in self.ids.items() if name in (at, topic_id)), "")
        led = self.partitions.get((topic, partition))
        answer.error_code = self.errors.pop((topic, partition), 0)
        if answer.error_code:
            return answer
        if led is None:
            answer.error_code = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if isinstance(name, str) else ErrorCode.UNKNOWN_TOPIC_ID
            )
            return answer
        if ask.current_leader_epoch != led.leader_epoch:
            is_old = ask.current_leader_epoch < led.leader_epoch
            answer.error_code = ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH
            return answer
        log = led.log
        start = log.log_start_offset if led.log_start_offset is None else led.log_start_offset
        if not start <= ask.fetch_offset <= log.log_end_offset:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return answer
        if ask.last_fetched_epoch >= 0:
            epoch, end_offset = log.end_offset_for_epoch(ask.last_fetched_epoch)
            if end_offset < 0:
                answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                return answer
            if epoch < ask.last_fetched_epoch or end_offset < ask.fetch_offset:
                answer.diverging_epoch = M.FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
                return answer
        answer.high_watermark = log.log_end_offset if led.high_watermark is None else led.high_watermark
        answer.last_stable_offset = answer.high_watermark
        answer.log_start_offset = start
        _, records = log.state.read(ask.fetch_offset, min(ask.partition_max_bytes, max_bytes), True, False, True)
        answer.records = self.damage(records)
        return answer
