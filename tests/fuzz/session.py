"""The target `session`: the input is a program for a few clients; what they are told is compared with a small model.

Every step takes an opcode byte and then as many bytes as it wants; a program that ends early goes on with zeros. Steps
use what earlier answers gave (offsets, member ids, generations, fetch sessions), right or, where a byte says so, wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import Record, encode_batch, read_batches
from tests.fuzz.conversation import BROKER, check_codes
from tests.fuzz.costs import CountingClient, Traffic, check_costs
from tests.fuzz.program import Program
from tests.fuzz.target import Target
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.models.producer import ProducerModel

STEPS = 60
TOPICS = ["a", "b", "a.b", "c" * 249]
SMALL_SEGMENT = 200
FIRST_ZSTD_VERSION = 10
"""Of Fetch."""
PAST = 1_500_000_000_000


@dataclass
class Part:
    """One partition as it has to be."""

    values: list[bytes] = field(default_factory=list)
    start: int = 0
    producers: ProducerModel = field(default_factory=ProducerModel)

    def start_and_end(self) -> tuple[int, int]:
        return self.start, len(self.values)


@dataclass
class Member:
    client: WireClient
    member_id: str = ""
    generation: int = -1
    waits_for: tuple[ApiKey, int, int] | None = None
    """A request whose answer is still to come: key, version, correlation id."""


class Run:
    """One program on one broker."""

    def __init__(self, program: Program, port: int, number: int):
        self.program = program
        self.prefix = f"s{number}-"
        self.port = port
        self.traffic = Traffic()
        self.client = CountingClient(self.traffic, port, "session")
        self.topics: dict[str, list[Part]] = {}
        self.members: list[Member] = []
        self.committed: dict[tuple[str, int], int] = {}
        self.fetch_session = (0, -1)
        self.producer_ids: list[tuple[int, int]] = [(1 << 40, 0)]

    def step(self) -> None:
        STEPS_BY_OPCODE[self.program.byte() % len(STEPS_BY_OPCODE)](self)

    def ask(self, key: ApiKey, version: int, message: M.Message) -> Any:
        answer = self.client.call(key, version, message)
        check_codes(answer, key)
        return answer

    # --- topics
    def name(self) -> str:
        return self.prefix[: 249 - 1] + str(self.program.pick(TOPICS))[: 249 - len(self.prefix)]

    def place(self) -> tuple[str, int, Part | None]:
        """A topic, one of its partitions, and the model's view of it."""
        name = self.name()
        parts = self.topics.get(name, [])
        number = self.program.number(self.program.byte() % max(len(parts), 1), 32)
        return name, number, parts[number] if 0 <= number < len(parts) else None

    def create_topic(self) -> None:
        version, name = self.program.version(ApiKey.CREATE_TOPICS), self.name()
        count = 1 + self.program.byte() % 3
        configs = [
            M.CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
            for key, value in self.program.pick(
                [
                    [],
                    [("segment.bytes", str(SMALL_SEGMENT))],
                    [("compression.type", "zstd")],
                    [("flush.messages", "1")],
                    [("no", "x")],
                ]
            )
        ]
        topic = M.CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=count, replication_factor=1, configs=configs
        )
        answer = self.ask(ApiKey.CREATE_TOPICS, version, M.CreateTopicsRequest(topics=[topic], timeout_ms=1000)).topics[
            0
        ]
        if answer.error_code == 0:
            assert name not in self.topics
            self.topics[name] = [Part() for _ in range(count)]
        else:
            assert (answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS) == (name in self.topics), answer
            assert name in self.topics or configs, answer

    def delete_topic(self) -> None:
        name = self.name()
        request = M.DeleteTopicsRequest(topic_names=[name], timeout_ms=1000)
        error = self.ask(ApiKey.DELETE_TOPICS, self.program.pick([1, 3, 5]), request).responses[0].error_code
        assert error == (0 if name in self.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.topics.pop(name, None)
        self.committed = {at: offset for at, offset in self.committed.items() if at[0] != name}

    def add_partitions(self) -> None:
        name = self.name()
        parts = self.topics.get(name, [])
        count = min(self.program.number(len(parts) + 1, 32), len(parts) + 3)
        topic = M.CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = M.CreatePartitionsRequest(topics=[topic], timeout_ms=1000)
        error = (
            self.ask(ApiKey.CREATE_PARTITIONS, self.program.version(ApiKey.CREATE_PARTITIONS), request)
            .results[0]
            .error_code
        )
        assert (error == 0) == (0 < len(parts) < count), (error, len(parts), count)
        if error == 0:
            parts += [Part() for _ in range(count - len(parts))]

    # --- records
    def produce(self) -> None:
        name, number, part = self.place()
        version, count, codec = (
            self.program.version(ApiKey.PRODUCE),
            1 + self.program.byte() % 4,
            self.program.byte() % 5,
        )
        values = [b"%d:%d" % (self.program.at, at) * (1 + self.program.byte() % 30) for at in range(count)]
        producer = self.program.pick(self.producer_ids) if self.program.byte() % 2 else None
        sequence = -1
        if producer is not None and part is not None:
            known = part.producers.producers.get(producer[0])
            right = (known.batches[-1][1] + 1) % 2**31 if known and known.batches else 0
            sequence = max(self.program.number(right, 32), 0)
        fields: dict[str, int] = {}
        if sequence >= 0 and producer is not None:
            fields = {"producer_id": producer[0], "producer_epoch": producer[1], "base_sequence": sequence}
        batch = bytearray(
            encode_batch([Record(0, PAST + at, b"k", value) for at, value in enumerate(values)], codec=codec, **fields)
        )
        is_hurt = self.program.byte() > 230
        if is_hurt:
            batch[self.program.byte() % len(batch)] ^= 1 + self.program.byte() % 255
        entry = M.ProduceRequest.PartitionProduceData(index=number, records=bytes(batch))
        topic = M.ProduceRequest.TopicProduceData(name=name, partition_data=[entry])
        request = M.ProduceRequest(acks=self.program.pick([1, -1]), timeout_ms=1000, topic_data=[topic])
        answer = self.ask(ApiKey.PRODUCE, version, request).responses[0].partition_responses[0]
        if part is None:
            assert answer.error_code, answer
        elif is_hurt:
            self.after_a_hurt_batch(name, number, part, answer, values)
        elif codec == 4 and version < 7:
            assert answer.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        elif answer.error_code == ErrorCode.RECORD_LIST_TOO_LARGE:
            assert len(batch) > SMALL_SEGMENT or codec, len(batch)
        else:
            self.after_a_batch(part, answer, values, fields)

    def after_a_batch(self, part: Part, answer: Any, values: list[bytes], fields: dict[str, int]) -> None:
        end = part.start_and_end()[1]
        expected, earlier = ErrorCode.NONE, None
        if fields:
            pid, epoch, sequence = fields["producer_id"], fields["producer_epoch"], fields["base_sequence"]
            expected, earlier = part.producers.check(pid, epoch, sequence, len(values))  # type: ignore[assignment]
        assert answer.error_code == expected, (answer, expected)
        if expected == 0:
            assert answer.base_offset == (earlier[0] if earlier else end), (answer, end, earlier)
        if expected == 0 and not earlier:
            if fields:
                part.producers.remember(pid, epoch, sequence, len(values), end, PAST)
            part.values += values

    def after_a_hurt_batch(self, name: str, number: int, part: Part, answer: Any, values: list[bytes]) -> None:
        """A changed byte is nearly always found; the length of the partition's log tells whether it was not."""
        if answer.error_code == 0:  # in the leader epoch, which nobody checks, or a sequence that was taken already
            end = self.end_of(name, number)
            if end != part.start_and_end()[1]:
                part.values += values

    def fetch(self) -> None:
        name, number, part = self.place()
        version = self.program.pick([4, 5, 7, 9, 11, 12])
        low, high = part.start_and_end() if part else (0, 0)
        offset = self.program.number(low + self.program.byte() % max(high - low + 1, 1), 64)
        session_id, epoch = 0, -1
        if version >= 7 and self.program.byte() % 2:
            session_id, epoch = self.fetch_session[0], self.fetch_session[1] + 1
            epoch = self.program.number(epoch, 32)
        wanted = M.FetchRequest.FetchPartition(
            partition=number, fetch_offset=offset, partition_max_bytes=self.program.pick([1 << 16, 1, 200, 0])
        )
        request = M.FetchRequest(
            max_wait_ms=self.program.byte() % 3,
            min_bytes=self.program.byte() % 3,
            max_bytes=1 << 16,
            isolation_level=self.program.byte() % 2,
            session_id=session_id,
            session_epoch=epoch,
            topics=[M.FetchRequest.FetchTopic(topic=name, partitions=[wanted])],
        )
        answer = self.ask(ApiKey.FETCH, version, request)
        if answer.error_code == 0 and answer.session_id:
            self.fetch_session = (answer.session_id, epoch if session_id else 0)
        for topic in answer.responses:
            for data in topic.partitions:
                mine = (topic.topic, data.partition_index) == (name, number)
                if data.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE:
                    assert version < FIRST_ZSTD_VERSION, data  # whatever else is wrong
                else:
                    self.check_fetched(topic.topic, data, offset if mine else None)

    def check_fetched(self, name: str, data: Any, offset: int | None) -> None:
        parts = self.topics.get(name, [])
        part = parts[data.partition_index] if 0 <= data.partition_index < len(parts) else None
        if part is None:
            assert data.error_code, data
            return
        low, high = part.start_and_end()
        if offset is not None:
            assert (data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE) == (not low <= offset <= high), (data, low, high)
        if data.error_code:
            return
        assert data.high_watermark == high, (data, high)
        for batch in read_batches(data.records or b""):
            for record in batch.records():
                assert record.value == part.values[record.offset], (name, record)

    def end_of(self, name: str, number: int) -> int:
        return self.offset_of(name, number, -1, 5)[1]

    def offset_of(self, name: str, number: int, timestamp: int, version: int) -> tuple[int, int]:
        wanted = M.ListOffsetsRequest.ListOffsetsPartition(
            partition_index=number, timestamp=timestamp, max_num_offsets=1
        )
        topic = M.ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[wanted])
        answer = self.ask(ApiKey.LIST_OFFSETS, version, M.ListOffsetsRequest(replica_id=-1, topics=[topic]))
        found = answer.topics[0].partitions[0]
        if version == 0:
            return found.error_code, found.old_style_offsets[0] if found.old_style_offsets else -1
        return found.error_code, found.offset

    def list_offsets(self) -> None:
        name, number, part = self.place()
        timestamp = self.program.number(self.program.pick([-1, -2, PAST, PAST + 2]), 64)
        version = self.program.version(ApiKey.LIST_OFFSETS)
        error, offset = self.offset_of(name, number, timestamp, version)
        if part is None:
            assert error, (name, number)
        elif timestamp in (-1, -2):
            assert (error, offset) == (0, part.start_and_end()[timestamp == -1])

    def delete_records(self) -> None:
        name, number, part = self.place()
        low, high = part.start_and_end() if part else (0, 0)
        before = self.program.number(low + self.program.byte() % (high - low + 1), 64)
        entry = M.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=number, offset=before)
        topic = M.DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=[entry])
        request = M.DeleteRecordsRequest(topics=[topic], timeout_ms=1000)
        answer = self.ask(ApiKey.DELETE_RECORDS, self.program.version(ApiKey.DELETE_RECORDS), request)
        found = answer.topics[0].partitions[0]
        if part is None:
            assert found.error_code
        elif before == -1 or low <= before <= high:
            part.start = max(low, high if before == -1 else before)
            assert (found.error_code, found.low_watermark) == (0, part.start), (found, low, high, before)
        elif 0 <= before < low:
            assert found.error_code or found.low_watermark == low
        else:
            assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE, (found, before)

    def init_producer(self) -> None:
        answer = self.ask(
            ApiKey.INIT_PRODUCER_ID,
            self.program.version(ApiKey.INIT_PRODUCER_ID),
            M.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1),
        )
        assert answer.error_code == 0 and answer.producer_id not in [known for known, _ in self.producer_ids], answer
        self.producer_ids.append((answer.producer_id, answer.producer_epoch))

    def next_epoch(self) -> None:
        pid, epoch = self.producer_ids[-1]
        self.producer_ids.append((pid, (epoch + 1) % 2**15))

    # --- groups
    def group(self) -> str:
        return self.prefix + "g"

    def find_coordinator(self) -> None:
        answer = self.ask(ApiKey.FIND_COORDINATOR, 4, M.FindCoordinatorRequest(coordinator_keys=[self.group()]))
        assert answer.coordinators[0].error_code == 0

    def member(self) -> Member | None:
        """One of up to three, when it does not wait for anything; a new one where there is none."""
        number = self.program.byte() % 3
        if number >= len(self.members):
            self.members.append(Member(CountingClient(self.traffic, self.port, "member")))
            return self.members[-1]
        self.take_answer(self.members[number], 0.0)
        return self.members[number] if self.members[number].waits_for is None else None

    def take_answer(self, member: Member, timeout_s: float) -> None:
        """What a member waits for, if it has come; a member whose connection was closed is forgotten."""
        if member.waits_for is None:
            return
        try:
            member.client.socket.settimeout(timeout_s or 0.001)
            try:
                member.client.socket.recv(1, 2)  # MSG_PEEK
            except TimeoutError:
                return
            member.client.socket.settimeout(5)
            key, version, correlation_id = member.waits_for
            member.waits_for = None
            answer = member.client.receive(key, version, correlation_id)
            check_codes(answer, key)
            if key == ApiKey.JOIN_GROUP:
                member.member_id = answer.member_id or member.member_id
                if answer.error_code == 0:
                    member.generation = answer.generation_id
        except ConnectionClosed as closed:
            raise AssertionError(f"a member's connection was closed: {closed}") from closed

    def send(self, member: Member, key: ApiKey, version: int, message: M.Message) -> None:
        member.waits_for = key, version, member.client.send(key, version, message)
        self.take_answer(member, 0.01)

    def join(self) -> None:
        member = self.member()
        if member is None:
            return
        version = self.program.version(ApiKey.JOIN_GROUP)
        protocols = [
            M.JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=b"\0\0\0\0\0\0\0\0\0\0")
            for name in self.program.pick([["range"], ["range", "sticky"], ["sticky"], []])
        ]
        request = M.JoinGroupRequest(
            group_id=self.group(),
            session_timeout_ms=self.program.number(1000, 32),
            member_id=self.program.pick([member.member_id, "", "stranger"]),
            protocol_type=self.program.pick(["consumer", "consumer", "connect", ""]),
            protocols=protocols,
        )
        if version >= 1:
            request.rebalance_timeout_ms = 5
        if version >= 5:
            request.group_instance_id = self.program.pick([None, None, "static"])
        self.send(member, ApiKey.JOIN_GROUP, version, request)

    def sync(self) -> None:
        member = self.member()
        if member is None:
            return
        version = self.program.version(ApiKey.SYNC_GROUP)
        entry = M.SyncGroupRequest.SyncGroupRequestAssignment
        ids = [known.member_id for known in self.members]
        request = M.SyncGroupRequest(
            group_id=self.group(),
            generation_id=self.program.number(member.generation, 32),
            member_id=member.member_id,
            assignments=[
                entry(member_id=known, assignment=b"\0\1") for known in self.program.pick([ids, [], ["stranger"]])
            ],
        )
        if version >= 5:
            request.protocol_type, request.protocol_name = "consumer", self.program.pick(["range", "sticky", None])
        self.send(member, ApiKey.SYNC_GROUP, version, request)

    def heartbeat(self) -> None:
        if member := self.member():
            request = M.HeartbeatRequest(
                group_id=self.group(),
                generation_id=self.program.number(member.generation, 32),
                member_id=member.member_id,
            )
            self.send(member, ApiKey.HEARTBEAT, self.program.version(ApiKey.HEARTBEAT), request)

    def leave(self) -> None:
        if member := self.member():
            version = self.program.version(ApiKey.LEAVE_GROUP)
            request = M.LeaveGroupRequest(group_id=self.group())
            if version < 3:
                request.member_id = member.member_id
            else:
                identity = M.LeaveGroupRequest.MemberIdentity
                ids = self.program.pick([[member.member_id], [member.member_id] * 2, ["stranger"], []])
                request.members = [identity(member_id=each) for each in ids]
            self.send(member, ApiKey.LEAVE_GROUP, version, request)

    def vanish(self) -> None:
        if self.members:
            self.members.pop(self.program.byte() % len(self.members)).client.close()

    def commit(self) -> None:
        """By a consumer that is in no group, into a group of its own."""
        name, number, part = self.place()
        offset = self.program.number(3, 64)
        entry = M.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=number, committed_offset=offset)
        topic = M.OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=[entry])
        request = M.OffsetCommitRequest(group_id=self.prefix + "alone", topics=[topic])
        version = max(1, self.program.version(ApiKey.OFFSET_COMMIT))  # 0 stores where OffsetFetch 2 does not look
        error = self.ask(ApiKey.OFFSET_COMMIT, version, request).topics[0].partitions[0].error_code
        if part is None:
            assert error
        elif error == 0:
            self.committed[name, number] = offset
        else:
            assert offset < 0 or error in NOT_YET, ErrorCode(error)

    def fetch_offsets(self) -> None:
        request = M.OffsetFetchRequest(group_id=self.prefix + "alone", topics=None)
        answer = self.ask(ApiKey.OFFSET_FETCH, self.program.pick([2, 5, 7]), request)
        if answer.error_code in NOT_YET:
            return
        found = {
            (topic.name, part.partition_index): part.committed_offset
            for topic in answer.topics
            for part in topic.partitions
        }
        assert answer.error_code == 0 and found == self.committed, (found, self.committed)

    def describe(self) -> None:
        self.ask(
            ApiKey.DESCRIBE_GROUPS,
            self.program.version(ApiKey.DESCRIBE_GROUPS),
            M.DescribeGroupsRequest(groups=[self.group()]),
        )
        self.ask(ApiKey.LIST_GROUPS, 1, M.ListGroupsRequest())
        self.ask(ApiKey.METADATA, 8, M.MetadataRequest(topics=None))

    # --- the end
    def finish(self) -> None:
        """What the model says is what the broker has; then nothing is left of this run."""
        for name, parts in self.topics.items():
            for number, part in enumerate(parts):
                assert self.offset_of(name, number, -1, 5) == (0, part.start_and_end()[1])
                assert self.offset_of(name, number, -2, 5) == (0, part.start)

    def close(self) -> None:
        for member in self.members:
            member.client.close()
        if self.topics:
            self.client.call(
                ApiKey.DELETE_TOPICS, 5, M.DeleteTopicsRequest(topic_names=[*self.topics], timeout_ms=5000)
            )
        self.client.close()


# The coordinator of the first group has not been asked for, or its partition is being read.
NOT_YET = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
STEPS_BY_OPCODE: list[Callable[[Run], None]] = [
    Run.create_topic, Run.produce, Run.fetch, Run.list_offsets, Run.delete_records, Run.init_producer, Run.next_epoch,
    Run.find_coordinator, Run.join, Run.sync, Run.heartbeat, Run.leave, Run.vanish, Run.commit, Run.fetch_offsets,
    Run.describe, Run.add_partitions, Run.delete_topic, Run.produce, Run.fetch,
]  # fmt: skip


def feed_session(data: bytes) -> None:
    """A program of requests: every answer is what the model says, none costs more than it weighs, and everybody else
    goes on."""
    BROKER.ready()
    check_costs(lambda: run_program(data))
    BROKER.check_log()


def run_program(data: bytes) -> Traffic:
    BROKER.runs += 1
    run = Run(Program(data), BROKER.port, BROKER.runs)
    try:
        for _ in range(STEPS):
            if run.program.is_over:
                break
            run.step()
        run.finish()
    finally:
        run.close()
    return run.traffic


def session_seeds() -> Iterator[bytes]:
    names = [step.__name__ for step in STEPS_BY_OPCODE]

    def op(name: str, *arguments: int) -> bytes:
        return bytes([names.index(name), *arguments])

    create, produce = op("create_topic", 0, 0, 2, 0), op("produce", 0, 0, 0, 7, 2)
    yield create + produce + bytes(9) + op("fetch", 0, 0, 0, 5) + bytes(9) + op("list_offsets", 0, 0, 0, 0, 0)
    yield (
        op("init_producer", 3)
        + create
        + produce
        + bytes([1, 1, 1, 1, 1, 0, 0, 0])
        + op("delete_records", 0, 0, 0, 1, 0, 0)
    )
    yield op("find_coordinator") + op("join", 0, 3, 0, 0, 1, 0) + op("join", 0, 3, 0, 0, 0, 0) + op("sync", 0, 1, 0, 0)
    yield op("find_coordinator") + create + op("commit", 0, 0, 0, 0, 3) + op("fetch_offsets", 1) + op("delete_topic", 0)


TARGETS = [Target("session", feed_session, session_seeds, 1024, share=6)]
