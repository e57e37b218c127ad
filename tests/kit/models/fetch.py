"""A slow model of what a broker has to answer to Fetch: partitions are lists of batches, sessions are dicts.

Written from KIP-74 (limits), KIP-227 (sessions) and KIP-516 (topic ids). One segment per partition, no waiting, no
followers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M

NO_ID = bytes(16)
Key = tuple[str | bytes, int]  # topic name or id, partition


@dataclass
class ModelPartition:
    """A log of one segment. `batches` are (base offset, last offset, bytes as stored)."""

    leader_epoch: int
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    log_start_offset: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1][1] + 1 if self.batches else 0

    def read(self, offset: int, max_bytes: int, at_least_one: bool) -> bytes:
        wanted = [data for _, last, data in self.batches if last >= offset]
        if not wanted:
            return b""
        if len(wanted[0]) > max_bytes:
            return wanted[0] if at_least_one else b""
        return b"".join(wanted)[:max_bytes]


@dataclass
class ModelTopic:
    topic_id: bytes
    partitions: list[ModelPartition]


@dataclass
class Asked:
    """What a client asked of one partition."""

    offset: int
    max_bytes: int
    current_leader_epoch: int


@dataclass
class Cached(Asked):
    """What a session asks of one partition, with what the client was told last."""

    high_watermark: int = -1
    log_start_offset: int = -1
    is_named: bool = False
    """Whether the topic id was known in this session: if it is gone later, the partition is unknown, not the id."""


@dataclass
class ModelSession:
    by_id: bool
    created_ms: int
    last_used_ms: int
    partitions: dict[Key, Cached]
    epoch: int = 1
    listed_size: int = 0


@dataclass
class Outcome:
    """An expected response. Its session id is not set: `session` is the session that it must name."""

    response: M.FetchResponse
    session: ModelSession | None


class FetchModel:
    """A model of a broker. `fetch` returns what the broker has to answer at once (max_wait_ms 0)."""

    def __init__(self, slots: int, min_eviction_ms: int, fetch_max_bytes: int, port: int):
        self.topics: dict[str, ModelTopic] = {}
        self.sessions: dict[int, ModelSession] = {}  # by the id that the broker gave
        self.slots = slots
        self.min_eviction_ms = min_eviction_ms
        self.fetch_max_bytes = fetch_max_bytes
        self.node = M.FetchResponse.NodeEndpoint(node_id=0, host="127.0.0.1", port=port)
        self.now_ms = 0
        self.evictions = 0

    # --- partitions ---------------------------------------------------------------------------------

    def find(self, key: Key) -> ModelPartition | ErrorCode:
        topic = (
            self.topics.get(key[0])
            if isinstance(key[0], str)
            else next((each for each in self.topics.values() if each.topic_id == key[0]), None)
        )
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if isinstance(key[0], str) else ErrorCode.UNKNOWN_TOPIC_ID
        if not 0 <= key[1] < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return topic.partitions[key[1]]

    # --- sessions -----------------------------------------------------------------------------------

    def fetch(self, version: int, request: M.FetchRequest) -> Outcome:
        by_id = version >= 13
        asked: dict[Key, Asked] = {}
        for topic in request.topics:
            for part in topic.partitions:
                key = (topic.topic_id if by_id else topic.topic, part.partition)
                asked[key] = Asked(
                    part.fetch_offset, part.partition_max_bytes, part.current_leader_epoch if version >= 9 else -1
                )
        epoch = request.session_epoch if version >= 7 else -1
        session_id = request.session_id if version >= 7 else 0

        if epoch in (0, -1):
            self.sessions.pop(session_id, None)
            answers = self.read_all(asked, version, request)
            session = self.new_session(by_id, asked, answers) if epoch == 0 else None
            return self.outcome(version, answers, session)

        session = self.sessions.get(session_id)
        if session is None:
            return self.refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return self.refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            return self.refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        for key, one in asked.items():
            if key in session.partitions:
                cached = session.partitions[key]
                cached.offset, cached.max_bytes = one.offset, one.max_bytes
                cached.current_leader_epoch = one.current_leader_epoch
            else:
                session.partitions[key] = Cached(one.offset, one.max_bytes, one.current_leader_epoch)
        for forgotten in request.forgotten_topics_data:
            for partition_id in forgotten.partitions:
                session.partitions.pop((forgotten.topic_id if by_id else forgotten.topic, partition_id), None)
        if not session.partitions:
            del self.sessions[session_id]
            return self.outcome(version, self.read_all(asked, version, request), None)

        session.last_used_ms = self.now_ms
        session.listed_size = len(session.partitions)
        session.epoch += 1
        told = {}
        for key, answer in self.read_all(dict(session.partitions), version, request).items():
            cached = session.partitions[key]
            has_data = bool(answer.records)
            if (
                has_data
                or answer.error_code
                or cached.high_watermark != answer.high_watermark
                or cached.log_start_offset != answer.log_start_offset
            ):
                told[key] = answer
            cached.high_watermark = -1 if answer.error_code else answer.high_watermark
            cached.log_start_offset = answer.log_start_offset
            if has_data:
                session.partitions[key] = session.partitions.pop(key)
        return self.outcome(version, told, session)

    def new_session(
        self, by_id: bool, asked: dict[Key, Asked], answers: dict[Key, M.FetchResponse.PartitionData]
    ) -> ModelSession | None:
        if len(self.sessions) >= self.slots and not self.evict(len(answers)):
            return None
        cached = {
            key: Cached(
                asked[key].offset,
                asked[key].max_bytes,
                asked[key].current_leader_epoch,
                answer.high_watermark,
                answer.log_start_offset,
                answer.error_code != ErrorCode.UNKNOWN_TOPIC_ID,
            )
            for key, answer in answers.items()
        }
        return ModelSession(by_id, self.now_ms, self.now_ms, cached, listed_size=len(cached))

    def evict(self, size: int) -> bool:
        if not self.sessions:
            return False
        stalest = min(self.sessions, key=lambda each: (self.sessions[each].last_used_ms, each))
        if self.now_ms - self.sessions[stalest].last_used_ms <= self.min_eviction_ms:
            settled = [
                each
                for each, session in self.sessions.items()
                if session.last_used_ms - session.created_ms > self.min_eviction_ms
            ]
            if not settled:
                return False
            stalest = min(settled, key=lambda each: (self.sessions[each].listed_size, each))
            if self.sessions[stalest].listed_size >= size:
                return False
        del self.sessions[stalest]
        self.evictions += 1
        return True

    # --- reading ------------------------------------------------------------------------------------

    def read_all(
        self, asked: dict[Key, Asked], version: int, request: M.FetchRequest
    ) -> dict[Key, M.FetchResponse.PartitionData]:
        """Return answers in the response's order: known partitions, then unknown ids, then unknown partitions."""
        known: dict[Key, M.FetchResponse.PartitionData] = {}
        unknown: dict[ErrorCode, dict[Key, M.FetchResponse.PartitionData]] = {
            ErrorCode.UNKNOWN_TOPIC_ID: {},
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: {},
        }
        left = min(request.max_bytes, self.fetch_max_bytes)
        committed = request.isolation_level == 1
        at_least_one = True
        for key, one in asked.items():
            partition = self.find(key)
            if isinstance(one, Cached):
                if partition == ErrorCode.UNKNOWN_TOPIC_ID and one.is_named:
                    partition = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                one.is_named = partition != ErrorCode.UNKNOWN_TOPIC_ID
            if isinstance(partition, ErrorCode):
                unknown[partition][key] = self.error(key, partition, [])
                continue
            error = ErrorCode.NONE
            if one.current_leader_epoch != -1 and one.current_leader_epoch < partition.leader_epoch:
                error = ErrorCode.FENCED_LEADER_EPOCH
            elif one.current_leader_epoch > partition.leader_epoch:
                error = ErrorCode.UNKNOWN_LEADER_EPOCH
            elif not partition.log_start_offset <= one.offset <= partition.end:
                error = ErrorCode.OFFSET_OUT_OF_RANGE
            if error:
                known[key] = self.error(key, error, None)
                if version >= 16 and error == ErrorCode.FENCED_LEADER_EPOCH:
                    known[key].current_leader = M.FetchResponse.LeaderIdAndEpoch(
                        leader_id=self.node.node_id, leader_epoch=partition.leader_epoch
                    )
                continue
            records = partition.read(one.offset, min(one.max_bytes, left), at_least_one)
            if records:
                at_least_one = False
                left = max(left - len(records), 0)
            known[key] = M.FetchResponse.PartitionData(
                partition_index=key[1],
                high_watermark=partition.end,
                last_stable_offset=partition.end,
                log_start_offset=partition.log_start_offset if version >= 5 else -1,
                aborted_transactions=[] if committed else None,
                records=records,
            )
        return known | unknown[ErrorCode.UNKNOWN_TOPIC_ID] | unknown[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    @staticmethod
    def error(key: Key, error: ErrorCode, aborted: list[object] | None) -> M.FetchResponse.PartitionData:
        return M.FetchResponse.PartitionData(
            partition_index=key[1], error_code=error, high_watermark=-1, aborted_transactions=aborted, records=b""
        )

    # --- answering ----------------------------------------------------------------------------------

    @staticmethod
    def refused(error: ErrorCode) -> Outcome:
        return Outcome(M.FetchResponse(error_code=error, responses=[]), None)

    def outcome(
        self, version: int, answers: dict[Key, M.FetchResponse.PartitionData], session: ModelSession | None
    ) -> Outcome:
        topics: list[M.FetchResponse.FetchableTopicResponse] = []
        last: str | bytes | None = None
        for (topic, _), answer in answers.items():
            if topic != last:
                name = {"topic_id": topic} if isinstance(topic, bytes) else {"topic": topic}
                topics.append(M.FetchResponse.FetchableTopicResponse(partitions=[], **name))
                last = topic
            topics[-1].partitions.append(answer)
        leaders = [self.node] if any(answer.current_leader.leader_id >= 0 for answer in answers.values()) else []
        return Outcome(M.FetchResponse(responses=topics, node_endpoints=leaders), session)
