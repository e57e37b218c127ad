"""Random histories of Fetch against a broker and `FetchModel`, side by side: every response has to be the model's.

The broker may be ours or Apache Kafka: a `FetchWorld` needs little besides a socket.
"""

from __future__ import annotations

import itertools
from typing import Any, Protocol

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from tests.kit.clients.wire import WireClient
from tests.kit.models.fetch import FetchModel, ModelPartition, ModelSession, ModelTopic

VERSIONS = st.integers(4, 17)
FETCH_MAX_BYTES = 3000
"""fetch.max.bytes of the broker under test."""
_names = itertools.count()


class FetchWorld(Protocol):
    """A broker with FETCH_MAX_BYTES, without auto-creation of topics, and with no session in its cache."""

    port: int
    session_slots: int
    min_eviction_ms: int
    leader_epoch: int
    """The leader epoch of every new partition."""

    def create_topic(self, name: str, partition_count: int) -> bytes: ...
    def delete_topic(self, name: str) -> None: ...
    def delete_records(self, name: str, partition_id: int, offset: int) -> None: ...
    def advance_ms(self, milliseconds: int) -> None:
        """Let time pass for the session cache. A broker that cannot must have more slots than any history fills."""


def stamped(batch: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """Return a batch as a broker stores it, with base offset and leader epoch."""
    return base_offset.to_bytes(8, "big") + batch[8:12] + leader_epoch.to_bytes(4, "big") + batch[16:]


def partition_request(
    topic: str | bytes, partition_id: int, offset: int, max_bytes: int = 1 << 20, epoch: int = -1
) -> Any:
    """Return (topic, FetchPartition) for `fetch_request`."""
    return topic, M.FetchRequest.FetchPartition(
        partition=partition_id, fetch_offset=offset, partition_max_bytes=max_bytes, current_leader_epoch=epoch
    )


def fetch_request(
    version: int,
    parts: list[Any],
    forgotten: list[tuple[str | bytes, int]] = [],  # noqa: B006 (never changed)
    **fields: Any,
) -> M.FetchRequest:
    """Return a consumer's request in a version. Consecutive `parts` of one topic share an entry of the topic."""
    settings = {"replica_id": -1, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20} | fields
    if version < 9:
        for _, part in parts:
            part.current_leader_epoch = -1
    if version < 7:
        settings = {name: value for name, value in settings.items() if not name.startswith("session_")}
    else:
        settings = {"session_epoch": -1} | settings
    if version >= 15:
        del settings["replica_id"]
    return M.FetchRequest(
        topics=[
            M.FetchRequest.FetchTopic(partitions=[part for _, part in group], **_naming(version, topic))
            for topic, group in itertools.groupby(parts, key=lambda each: each[0])
        ],
        forgotten_topics_data=[
            M.FetchRequest.ForgottenTopic(partitions=[partition_id], **_naming(version, topic))
            for topic, partition_id in forgotten
        ]
        if version >= 7
        else [],
        **settings,
    )


def _naming(version: int, topic: str | bytes) -> dict[str, Any]:
    assert isinstance(topic, bytes) == (version >= 13)
    return {"topic_id": topic} if version >= 13 else {"topic": topic}


class FetchMachine(RuleBasedStateMachine):
    """One history. Its topics have unique names, and it ends all sessions that are left at its end."""

    def __init__(self, world: FetchWorld):
        super().__init__()
        self.world = world
        self.client = WireClient("127.0.0.1", world.port)
        self.model = FetchModel(world.session_slots, world.min_eviction_ms, FETCH_MAX_BYTES, world.port)
        self.gone: list[tuple[str, bytes]] = [(f"never-{next(_names)}", bytes([7]) * 16)]

    def teardown(self) -> None:
        for session_id in list(self.model.sessions):
            self.fetch(17, fetch_request(17, [], session_id=session_id, session_epoch=-1))
        for name in list(self.model.topics):
            self.world.delete_topic(name)
        self.client.close()

    # --- the log ------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.create_topic(2)

    @rule(partition_count=st.integers(1, 3))
    @precondition(lambda self: len(self.model.topics) < 3)
    def create_topic(self, partition_count: int) -> None:
        name = f"fetch-{next(_names)}"
        topic_id = self.world.create_topic(name, partition_count)
        self.model.topics[name] = ModelTopic(
            topic_id, [ModelPartition(self.world.leader_epoch) for _ in range(partition_count)]
        )

    @rule(data=st.data())
    @precondition(lambda self: len(self.model.topics) > 1)
    def delete_topic(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.model.topics)))
        self.world.delete_topic(name)
        self.gone.append((name, self.model.topics.pop(name).topic_id))

    @rule(data=st.data(), sizes=st.lists(st.integers(1, 900), min_size=1, max_size=4))
    def produce(self, data: st.DataObject, sizes: list[int]) -> None:
        name, partition_id, partition = self.draw_partition(data)
        for size in sizes:
            count = 1 + size % 3
            batch = encode_batch([(1, None, bytes([65 + i]) * (size // count)) for i in range(count)])
            response = self.client.call(ApiKey.PRODUCE, 9, produce_request(name, partition_id, batch))
            answer = response.responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (0, partition.end)
            base = partition.end
            partition.batches.append((base, base + count - 1, stamped(batch, base, partition.leader_epoch)))

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        name, partition_id, partition = self.draw_partition(data)
        offset = data.draw(st.integers(partition.log_start_offset, partition.end))
        self.world.delete_records(name, partition_id, offset)
        partition.log_start_offset = offset

    # --- fetching -----------------------------------------------------------------------------------

    @rule(
        data=st.data(), version=VERSIONS, limit=st.sampled_from([0, 100, 700, 2000, 1 << 20]), level=st.integers(0, 1)
    )
    def fetch_without_session(self, data: st.DataObject, version: int, limit: int, level: int) -> None:
        parts = self.draw_parts(data, version, at_least=0)
        self.fetch(version, fetch_request(version, parts, max_bytes=limit, isolation_level=level))

    # Ids are random and decide between sessions of equal worth: what is drawn must not depend on which are left, nor on
    # how many (what ends one is refused by another).
    @rule(
        data=st.data(), version=st.integers(7, 17), which=st.integers(0, 27), limit=st.sampled_from([100, 700, 1 << 20])
    )
    def begin_session(self, data: st.DataObject, version: int, which: int, limit: int) -> None:
        replaceable = [0, 0, 0, 123, *self.model.sessions]
        replaced = replaceable[which % len(replaceable)]
        parts = self.draw_parts(data, version, at_least=1)
        self.fetch(version, fetch_request(version, parts, session_id=replaced, session_epoch=0, max_bytes=limit))

    @rule(
        data=st.data(),
        which=st.integers(0, 11),
        forget=st.lists(st.integers(0, 59), max_size=2),
        limit=st.sampled_from([100, 700, 1 << 20]),
        level=st.integers(0, 1),
    )
    def go_on_with_session(self, data: st.DataObject, which: int, forget: list[int], limit: int, level: int) -> None:
        session_id, session = self.session(which)
        version = [13, 15, 17][which % 3] if session.by_id else [7, 9, 11, 12][which % 4]
        parts = self.draw_parts(data, version, at_least=0) if data.draw(st.booleans()) else []
        forgettable = [*session.partitions, *self.keys(version)]
        forgotten = [forgettable[each % len(forgettable)] for each in forget]
        self.fetch(
            version,
            fetch_request(
                version,
                parts,
                forgotten,
                session_id=session_id,
                session_epoch=session.epoch,
                max_bytes=limit,
                isolation_level=level,
            ),
        )

    @rule(which=st.integers(0, 11))
    def ask_session_for_news(self, which: int) -> None:
        session_id, session = self.session(which)
        version = 17 if session.by_id else 12
        self.fetch(version, fetch_request(version, [], session_id=session_id, session_epoch=session.epoch))

    @rule(data=st.data(), version=st.integers(7, 17), which=st.integers(0, 11), epoch=st.integers(-1, 4))
    def confuse_session(self, data: st.DataObject, version: int, which: int, epoch: int) -> None:
        """Fetch in a session with any epoch, also with names in a session of topic ids: mostly refused."""
        session_id = [*self.model.sessions, 5][which % (len(self.model.sessions) + 1)]
        parts = self.draw_parts(data, version, at_least=1)
        self.fetch(version, fetch_request(version, parts, session_id=session_id, session_epoch=epoch))

    @rule(milliseconds=st.sampled_from([1, 600, 1100]))
    def let_time_pass(self, milliseconds: int) -> None:
        self.world.advance_ms(milliseconds)
        self.model.now_ms += milliseconds

    @invariant()
    def nothing_is_left_over(self) -> None:
        """Check that the broker has sent no bytes beyond the responses that were read."""
        self.client.socket.setblocking(False)
        try:
            assert self.client.socket.recv(1) is None, "bytes nobody asked for"
        except BlockingIOError:
            pass
        finally:
            self.client.socket.settimeout(10)

    # --- helpers ------------------------------------------------------------------------------------

    def fetch(self, version: int, request: M.FetchRequest) -> None:
        response = self.client.call(ApiKey.FETCH, version, request)
        known = set(self.model.sessions)
        outcome = self.model.fetch(version, request)
        expected = outcome.response
        if outcome.session is not None:
            ids = [session_id for session_id, each in self.model.sessions.items() if each is outcome.session]
            if ids:
                expected.session_id = ids[0]
            else:
                assert response.session_id > 0 and response.session_id not in known
                expected.session_id = response.session_id
                self.model.sessions[response.session_id] = outcome.session
        wanted = M.FetchResponse.decode(expected.encode(version), version)
        assert response == wanted, f"v{version} {request}\n got    {response}\n wanted {wanted}"

    def session(self, which: int) -> tuple[int, ModelSession]:
        """One of the sessions that exist; if none does, one that never existed."""
        sessions = list(self.model.sessions.items()) or [(5, ModelSession(True, 0, 0, {}))]
        return sessions[which % len(sessions)]

    def keys(self, version: int) -> list[tuple[str | bytes, int]]:
        """The keys of all partitions that exist, and of some that do not."""
        topics = [(name, topic.topic_id) for name, topic in self.model.topics.items()] + self.gone[-2:]
        keys: list[tuple[str | bytes, int]] = []
        for name, topic_id in topics:
            partition_ids = [*range(len(self.model.topics[name].partitions)), 9] if name in self.model.topics else [0]
            keys += [(topic_id if version >= 13 else name, partition_id) for partition_id in partition_ids]
        return keys

    def draw_parts(self, data: st.DataObject, version: int, at_least: int) -> list[Any]:
        # A partition may be named again: it is answered once, for what was asked last.
        keys = data.draw(st.lists(st.sampled_from(self.keys(version)), min_size=at_least, max_size=4))
        parts = []
        for key in keys:
            partition = self.model.find(key)
            end = 3 if isinstance(partition, ErrorCode) else partition.end
            offset = data.draw(st.one_of(st.integers(0, end), st.sampled_from([-1, end, end + 1])))
            max_bytes = data.draw(st.sampled_from([0, 100, 500, 1 << 20]))
            epoch = data.draw(st.sampled_from([-1, -1, -1, 0, 1, 2]))
            parts.append(partition_request(*key, offset, max_bytes, epoch))
        return parts

    def draw_partition(self, data: st.DataObject) -> tuple[str, int, ModelPartition]:
        name = data.draw(st.sampled_from(list(self.model.topics)))
        partition_id = data.draw(st.integers(0, len(self.model.topics[name].partitions) - 1))
        return name, partition_id, self.model.topics[name].partitions[partition_id]


def produce_request(topic: str, partition_id: int, batch: bytes) -> M.ProduceRequest:
    part = M.ProduceRequest.PartitionProduceData(index=partition_id, records=batch)
    return M.ProduceRequest(
        acks=1, timeout_ms=5000, topic_data=[M.ProduceRequest.TopicProduceData(name=topic, partition_data=[part])]
    )


class WireWorld:
    """Topics that are made and changed through the protocol, for whole brokers, Apache Kafka included."""

    leader_epoch = 0

    def __init__(self, port: int, session_slots: int = 1000, min_eviction_ms: int = 120_000):
        self.port = port
        self.session_slots = session_slots
        self.min_eviction_ms = min_eviction_ms
        self.client = WireClient("127.0.0.1", port, timeout_s=30)

    def create_topic(self, name: str, partition_count: int) -> bytes:
        topic = M.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partition_count, replication_factor=1)
        request = M.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        made = self.client.call(ApiKey.CREATE_TOPICS, 7, request).topics[0]
        assert made.error_code == 0, made
        self.wait_until_served(name, partition_count)
        return bytes(made.topic_id)

    def wait_until_served(self, name: str, partition_count: int) -> None:
        """Wait until every partition answers ListOffsets: a broker may make logs after it has answered CreateTopics."""
        parts = [
            M.ListOffsetsRequest.ListOffsetsPartition(partition_index=each, timestamp=-1)
            for each in range(partition_count)
        ]
        topic = M.ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=parts)
        while True:
            response = self.client.call(ApiKey.LIST_OFFSETS, 5, M.ListOffsetsRequest(replica_id=-1, topics=[topic]))
            if not any(part.error_code for part in response.topics[0].partitions):
                return

    def delete_topic(self, name: str) -> None:
        self.client.call(ApiKey.DELETE_TOPICS, 4, M.DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000))
        topic = M.MetadataRequest.MetadataRequestTopic(name=name)
        while True:
            request = M.MetadataRequest(topics=[topic], allow_auto_topic_creation=False)
            if self.client.call(ApiKey.METADATA, 9, request).topics[0].error_code:
                return

    def delete_records(self, name: str, partition_id: int, offset: int) -> None:
        part = M.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition_id, offset=offset)
        topic = M.DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=[part])
        response = self.client.call(ApiKey.DELETE_RECORDS, 2, M.DeleteRecordsRequest(topics=[topic], timeout_ms=10_000))
        assert response.topics[0].partitions[0].error_code == 0

    def advance_ms(self, milliseconds: int) -> None:
        pass
