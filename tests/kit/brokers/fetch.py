"""A broker that serves only Fetch, from logs in memory, in the caller's thread. It fails as a test tells it to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kbroker._core.client.pump import Pump
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from tests.kit.brokers.fetch_socket import FetchSocket
from tests.kit.models.consumer import Log

Key = tuple[str, int]
NODE = 3


@dataclass
class Session:
    """A fetch session (KIP-227): for each partition, the offset that was asked for and what was last answered."""

    session_id: int
    epoch: int = 1
    offsets: dict[Key, int] = field(default_factory=dict)


class FetchBroker(FetchSocket):
    def __init__(self, logs: dict[Key, Log], version: int = 12, *, sessions: bool = True, max_bytes: int = 1 << 20):
        super().__init__(version)
        self.logs = logs
        self.sessions = sessions
        self.max_bytes = max_bytes
        self.session: Session | None = None
        self.session_ids = 0
        self.errors: dict[Key, int] = {}  # each is answered once
        self.preferred = -1  # the replica that its clients are told to read from
        self.session_error = 0  # answered once to a request of a session
        self.cut = -1  # bytes of the next response that are sent before the connection is closed

    def connect(self, pump: Pump, node_id: int = NODE) -> None:
        self.connect_to(pump, node_id)

    def serve(self) -> bool:
        """Answer one request, if one has come. Return whether one had."""
        request = self.take_request()
        if request is None or self.socket is None:
            return False
        header, message = request
        response = self.encode(header, self.answer(message))
        if self.cut >= 0:
            self.socket.sendall(response[: self.cut])
            self.cut = -1
            self.close()
        else:
            self.socket.sendall(response)
        return True

    def answer(self, message: Any) -> Any:
        asked = {(topic.topic, ask.partition): ask.fetch_offset for topic in message.topics for ask in topic.partitions}
        response = M.FetchResponse()
        if self.session_error and self.version >= 7 and message.session_epoch > 0:
            response.error_code, self.session_error, self.session = self.session_error, 0, None
            return response
        if self.version >= 7 and message.session_epoch > 0:
            if self.session is None or self.session.session_id != message.session_id:
                response.error_code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
                return response
            if self.session.epoch != message.session_epoch:
                response.error_code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
                return response
            self.session.epoch += 1
            self.session.offsets |= asked
            for topic in message.forgotten_topics_data:
                for partition in topic.partitions:
                    self.session.offsets.pop((topic.topic, partition), None)
        elif self.version >= 7 and self.sessions:
            self.session_ids += 1
            self.session = Session(self.session_ids, 1, dict(asked))
        incremental = self.version >= 7 and message.session_epoch > 0
        offsets = self.session.offsets if self.version >= 7 and self.session is not None else asked
        if self.version >= 7 and self.session is not None:
            response.session_id = self.session.session_id
        for (topic, partition), offset in offsets.items():
            answer = self.answer_partition((topic, partition), offset, committed=message.isolation_level == 1)
            if incremental and not answer.error_code and not answer.records:
                continue
            response.responses.append(M.FetchResponse.FetchableTopicResponse(topic=topic, partitions=[answer]))
        return response

    def answer_partition(self, key: Key, offset: int, *, committed: bool) -> Any:
        answer = M.FetchResponse.PartitionData(partition_index=key[1], high_watermark=-1, records=b"")
        log = self.logs.get(key)
        answer.error_code = self.errors.pop(key, 0)
        if log is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif not answer.error_code and not 0 <= offset <= log.end_offset:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        if answer.error_code or log is None:
            return answer
        answer.high_watermark = log.end_offset
        if self.version >= 4:
            answer.last_stable_offset = log.end_offset
        if self.preferred >= 0:
            answer.preferred_read_replica = self.preferred
            return answer
        batches = [batch.encode() for batch in log.batches if batch.last_offset >= offset]
        if batches:
            answer.records = b"".join(batches)[: max(self.max_bytes, len(batches[0]))]
        if committed:
            answer.aborted_transactions = [
                M.FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first)
                for producer_id, first in log.aborted
                if log.end_of_transaction(producer_id, first) >= offset
            ]
        return answer
