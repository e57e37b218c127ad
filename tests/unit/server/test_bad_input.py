"""Wrong input from peers, each to a whole broker: the answer is Kafka's code, or a closed connection with one line.

Meanwhile another client goes on, and the broker's memory does not grow by sizes that were only announced.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeVar

import psutil
import pytest

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import SERVED, ApiKey, is_flexible
from kbroker.protocol.compression import Codec, deflate
from kbroker.protocol.headers import encode_request
from kbroker.protocol.records import encode_batch, read_records
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.parts.processors import QUARANTINE
from tests.kit.wire.batches import changed

MESSAGE_MAX = 50_000
REQUEST_MAX = 2 << 20
INFLATED_MAX = 4 << 20
MEMORY_BOUND = 48 << 20
SETTINGS = {
    "message.max.bytes": MESSAGE_MAX,
    "socket.request.max.bytes": REQUEST_MAX,
    "kbroker.inflated.batch.max.bytes": INFLATED_MAX,
    "group.min.session.timeout.ms": 1000,
    "offsets.topic.num.partitions": 2,
    "num.partitions": 1,
}
TOPIC, BYSTANDER = "orders", "bystander"
Answer = TypeVar("Answer")


# --- a broker, and a client that is not to be disturbed -----------------------------------------------------


class Bystander:
    """Produces a record and reads it back, again and again, on a connection of its own."""

    def __init__(self, port: int):
        self.client = WireClient("127.0.0.1", port)
        create_topic(self.client, BYSTANDER)
        self.rounds = 0
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self.stopping.wait(0.005):
                value = b"round %d" % self.rounds
                answer = produce(self.client, encode_batch([(0, None, value)]), topic=BYSTANDER)
                assert answer.error_code == 0, ErrorCode(answer.error_code)
                (record,) = read_records(fetch(self.client, answer.base_offset, topic=BYSTANDER).records)
                assert record.value == value
                self.rounds += 1
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(20)
        self.client.close()


@pytest.fixture(scope="module")
def process() -> Iterator[BrokerProcess]:
    with BrokerProcess(SETTINGS) as started:
        with WireClient("127.0.0.1", started.port) as client:
            create_topic(client, TOPIC)
        yield started


@pytest.fixture
def broker(process: BrokerProcess) -> Iterator[BrokerProcess]:
    """The broker, with a bystander that must not have noticed anything at the test's end."""
    bystander = Bystander(process.port)
    yield process
    before = bystander.rounds
    done = threading.Event()
    while bystander.failure is None and bystander.rounds < before + 2 and not done.wait(0.005):
        assert bystander.thread.is_alive()
    bystander.stop()
    assert bystander.failure is None, bystander.failure
    assert "Traceback" not in process.output


def create_topic(client: WireClient, name: str, **configs: str) -> None:
    topic = M.CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=1,
        replication_factor=1,
        configs=[M.CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    (created,) = client.call(ApiKey.CREATE_TOPICS, 5, M.CreateTopicsRequest(topics=[topic], timeout_ms=5000)).topics
    assert created.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)


def produce_request(batch: bytes | None, topic: str = TOPIC, acks: int = 1) -> M.ProduceRequest:
    part = M.ProduceRequest.PartitionProduceData(index=0, records=batch)
    entry = M.ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    return M.ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[entry])


def produce(client: WireClient, batch: bytes | None, topic: str = TOPIC, acks: int = 1) -> Any:
    answer = client.call(ApiKey.PRODUCE, 9, produce_request(batch, topic, acks))
    return answer.responses[0].partition_responses[0]


def fetch(client: WireClient, offset: int, topic: str = TOPIC, leader_epoch: int = -1, partition: int = 0) -> Any:
    part = M.FetchRequest.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=leader_epoch
    )
    topics = [M.FetchRequest.FetchTopic(topic=topic, partitions=[part])]
    request = M.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics)
    return client.call(ApiKey.FETCH, 12, request).responses[0].partitions[0]


def log_end(client: WireClient) -> int:
    part = M.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topics = [M.ListOffsetsRequest.ListOffsetsTopic(name=TOPIC, partitions=[part])]
    answer = client.call(ApiKey.LIST_OFFSETS, 5, M.ListOffsetsRequest(replica_id=-1, topics=topics))
    end: int = answer.topics[0].partitions[0].offset
    return end


def resident(broker: BrokerProcess) -> int:
    used: int = psutil.Process(broker.pid).memory_info().rss
    return used


def lines_after(broker: BrokerProcess, data: bytes) -> list[str]:
    """Return the broker's lines about a connection that it closes because of these bytes.

    The broker leaves some lines out if a second has many: then the bytes are sent again.
    """

    def closed_with() -> list[str]:
        with WireClient("127.0.0.1", broker.port) as client:
            said_before = len(broker.output)  # maybe of this port already, in an earlier test
            client.send_raw(data)
            assert client.is_closed()
            host, port = client.socket.getsockname()
            return [line for line in broker.output[said_before:].splitlines() if f"{host}:{port} on" in line]

    return wait_for(closed_with)


# --- batches ----------------------------------------------------------------------------------------------

GOOD = encode_batch([(1, b"k", b"first"), (2, b"k", b"second"), (3, b"k", b"third")])
LENGTH, MAGIC, CRC, ATTRIBUTES, LAST_DELTA, PRODUCER, COUNT, RECORDS = 8, 16, 17, 21, 23, 43, 57, 61


def compressed(codec: int, payload: bytes) -> bytes:
    made = bytearray(GOOD[:RECORDS] + payload)
    struct.pack_into(">i", made, LENGTH, len(made) - 12)
    struct.pack_into(">h", made, ATTRIBUTES, codec)
    return changed(made, 0, b"")


def bombs() -> dict[str, bytes]:
    """Return bombs as large as each codec makes them within MESSAGE_MAX, but none of snappy: its ratio is too low."""
    sizes = {Codec.GZIP: 40 << 20, Codec.LZ4: 8 << 20, Codec.ZSTD: 40 << 20}
    return {
        f"a bomb of {codec.name.lower()}": compressed(codec, deflate(codec, bytes(sizes[codec]))) for codec in sizes
    }


BAD_BATCHES: dict[str, tuple[bytes | None, ErrorCode]] = {
    "null": (None, ErrorCode.INVALID_RECORD),
    "nothing": (b"", ErrorCode.INVALID_RECORD),
    "half a header": (GOOD[:30], ErrorCode.INVALID_RECORD),
    "half a batch": (GOOD[:-3], ErrorCode.INVALID_RECORD),
    "magic 3": (changed(GOOD, MAGIC, b"\3"), ErrorCode.CORRUPT_MESSAGE),
    "magic -1": (changed(GOOD, MAGIC, b"\xff"), ErrorCode.CORRUPT_MESSAGE),
    "magic 0 in a version for magic 2": (changed(GOOD, MAGIC, b"\0"), ErrorCode.INVALID_RECORD),
    "a bad CRC": (changed(GOOD, CRC, b"\1\2\3\4", crc=False), ErrorCode.CORRUPT_MESSAGE),
    "a flipped bit": (changed(GOOD, 70, bytes([GOOD[70] ^ 1]), crc=False), ErrorCode.CORRUPT_MESSAGE),
    "a length that is negative": (changed(GOOD, LENGTH, b"\xff\xff\xff\xff"), ErrorCode.CORRUPT_MESSAGE),
    "a length beyond the request": (changed(GOOD, LENGTH, b"\0\x0f\xff\xff"), ErrorCode.INVALID_RECORD),
    "a length beyond everything": (changed(GOOD, LENGTH, b"\x7f\xff\xff\xff"), ErrorCode.CORRUPT_MESSAGE),
    "a count too high": (changed(GOOD, COUNT, struct.pack(">i", 4)), ErrorCode.INVALID_RECORD),
    "a count too low": (changed(GOOD, COUNT, struct.pack(">i", 2)), ErrorCode.INVALID_RECORD),
    "a count of billions": (
        changed(changed(GOOD, COUNT, struct.pack(">i", 0x7FFFFFFF)), LAST_DELTA, struct.pack(">i", 0x7FFFFFFE)),
        ErrorCode.INVALID_RECORD,
    ),
    "a negative count": (changed(GOOD, COUNT, struct.pack(">i", -3)), ErrorCode.INVALID_RECORD),
    "a last offset delta that lies": (changed(GOOD, LAST_DELTA, struct.pack(">i", 7)), ErrorCode.INVALID_RECORD),
    "an offset delta that lies": (changed(GOOD, RECORDS + 3, b"\x08"), ErrorCode.INVALID_RECORD),
    "a record longer than the batch": (changed(GOOD, RECORDS, b"\x7e"), ErrorCode.INVALID_RECORD),
    "a key longer than its record": (changed(GOOD, RECORDS + 4, b"\x7e"), ErrorCode.INVALID_RECORD),
    "a codec that does not exist": (changed(GOOD, ATTRIBUTES, b"\0\7"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "what does not inflate": (compressed(2, b"\xff" * 40), ErrorCode.INVALID_RECORD),
    "two batches": (GOOD + GOOD, ErrorCode.INVALID_RECORD),
    "a control batch": (changed(GOOD, ATTRIBUTES, b"\0\x20"), ErrorCode.INVALID_RECORD),
    "over message.max.bytes": (encode_batch([(0, None, b"x" * MESSAGE_MAX)]), ErrorCode.MESSAGE_TOO_LARGE),
    "a producer without a sequence": (changed(GOOD, PRODUCER, struct.pack(">qhi", 7, 0, -1)), ErrorCode.INVALID_RECORD),
    **{name: (batch, ErrorCode.MESSAGE_TOO_LARGE) for name, batch in bombs().items()},
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_bad_batch_gets_kafkas_code_and_is_not_kept(broker: BrokerProcess, client: WireClient, name: str) -> None:
    batch, error = BAD_BATCHES[name]
    end, memory = log_end(client), resident(broker)
    answer = produce(client, batch)
    assert (ErrorCode(answer.error_code), answer.base_offset) == (error, -1)
    assert log_end(client) == end
    assert resident(broker) - memory < MEMORY_BOUND
    assert produce(client, GOOD).error_code == 0, "the connection lives on"


def test_sequences_are_held_to(client: WireClient) -> None:
    create_topic(client, "sequences")

    def send(sequence: int, epoch: int = 0) -> Any:
        batch = encode_batch([(0, None, b"v")], producer_id=9, producer_epoch=epoch, base_sequence=sequence)
        return produce(client, batch, topic="sequences", acks=-1)

    assert send(0).error_code == 0
    assert send(5).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (send(0).error_code, send(0).base_offset) == (0, 0)
    assert send(0, epoch=3).error_code == 0
    assert send(1, epoch=2).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(2, epoch=4).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


# --- names, generations and epochs that are not so --------------------------------------------------------------


def join(group: str, member: str = "") -> M.JoinGroupRequest:
    protocol = M.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    return M.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=1000,
        member_id=member,
        protocol_type="consumer",
        protocols=[protocol],
    )


def a_member(client: WireClient, group: str) -> tuple[str, int]:
    """Return id and generation of the only member of a stable group."""
    find = M.FindCoordinatorRequest(coordinator_keys=[group])
    assert client.call(ApiKey.FIND_COORDINATOR, 4, find).coordinators[0].error_code == 0
    named = client.call(ApiKey.JOIN_GROUP, 7, join(group))
    assert named.error_code == ErrorCode.MEMBER_ID_REQUIRED
    joined = client.call(ApiKey.JOIN_GROUP, 7, join(group, named.member_id))
    assert joined.error_code == 0
    entry = M.SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")
    sync = M.SyncGroupRequest(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[entry]
    )
    assert client.call(ApiKey.SYNC_GROUP, 3, sync).error_code == 0
    return joined.member_id, joined.generation_id


def commit(group: str, member: str, generation: int, topic: str = TOPIC) -> M.OffsetCommitRequest:
    part = M.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [M.OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[part])]
    return M.OffsetCommitRequest(
        group_id=group, member_id=member, generation_id_or_member_epoch=generation, topics=topics
    )


def test_a_topic_that_is_not_there_is_said_to_be_unknown(client: WireClient) -> None:
    assert produce(client, GOOD, topic="nowhere").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(client, 0, topic="nowhere").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(client, 0, partition=7).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(client, 0, partition=-1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    delete = M.DeleteTopicsRequest(topic_names=["nowhere"], timeout_ms=1000)
    assert client.call(ApiKey.DELETE_TOPICS, 5, delete).responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_that_are_not_there_are_out_of_range(client: WireClient) -> None:
    for offset in (-1, -(1 << 63), 1 << 40, (1 << 63) - 1):
        assert fetch(client, offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_an_epoch_of_a_leader_that_will_be_is_unknown(client: WireClient) -> None:
    """An epoch of an earlier leader is fenced: tests of that are in test_fetch.py and handlers/."""
    assert produce(client, GOOD).error_code == 0
    assert fetch(client, 0, leader_epoch=1000).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_fetch_sessions_that_are_not_there_are_refused(client: WireClient) -> None:
    request = M.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1000, session_id=12345, session_epoch=1)
    assert client.call(ApiKey.FETCH, 12, request).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_groups_members_and_generations_that_are_not_there_get_their_codes(client: WireClient) -> None:
    member, generation = a_member(client, "g")

    def beat(group: str, who: str, when: int) -> int:
        request = M.HeartbeatRequest(group_id=group, member_id=who, generation_id=when)
        error: int = client.call(ApiKey.HEARTBEAT, 3, request).error_code
        return error

    assert beat("g", member, generation) == 0
    assert beat("nobody", "m", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat("g", "m", generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat("g", member, generation + 1) == ErrorCode.ILLEGAL_GENERATION
    assert beat("", "m", 1) == ErrorCode.INVALID_GROUP_ID
    unknown = client.call(ApiKey.JOIN_GROUP, 7, join("g", "somebody"))
    assert unknown.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    for who, when, error in [
        (member, generation + 1, ErrorCode.ILLEGAL_GENERATION),
        ("somebody", generation, ErrorCode.UNKNOWN_MEMBER_ID),
        (member, generation, ErrorCode.NONE),
    ]:
        answer = client.call(ApiKey.OFFSET_COMMIT, 7, commit("g", who, when))
        assert answer.topics[0].partitions[0].error_code == error
    delete = client.call(ApiKey.DELETE_GROUPS, 2, M.DeleteGroupsRequest(groups_names=["g", "nobody"]))
    assert [result.error_code for result in delete.results] == [
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]


# --- what is no request -----------------------------------------------------------------------------------------


class Nonsense(NamedTuple):
    data: bytes
    why: str


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def header(key: int, version: int) -> bytes:
    return struct.pack(">hhih", key, version, 7, -1)


NONSENSE = {
    "a huge frame": Nonsense(struct.pack(">i", 0x7FFFFFFF), "larger than socket.request.max.bytes"),
    "a frame of negative size": Nonsense(struct.pack(">i", -5), "socket.request.max.bytes"),
    "one byte over the limit": Nonsense(struct.pack(">i", REQUEST_MAX + 1), "larger than socket.request.max.bytes"),
    "an empty frame": Nonsense(framed(b""), "header"),
    "HTTP": Nonsense(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", "socket.request.max.bytes"),
    "a TLS greeting": Nonsense(bytes.fromhex("16030100f8010000f40303"), "socket.request.max.bytes"),
    "an unknown API": Nonsense(framed(header(999, 0)), "API"),
    "an API that is not served": Nonsense(framed(header(ApiKey.LEADER_AND_ISR, 0) + bytes(8)), "API"),
    "an unknown version": Nonsense(framed(header(ApiKey.METADATA, 99) + bytes(8)), "version"),
    "a version that is not there yet": Nonsense(framed(header(ApiKey.FETCH, 18) + bytes(40)), "version"),
    "a body of nothing": Nonsense(framed(header(ApiKey.LIST_OFFSETS, 1)), "does not parse"),
    "an array of two billion": Nonsense(framed(header(ApiKey.METADATA, 1) + b"\x7f\xff\xff\xff"), "does not parse"),
    "a produce request that is cut": Nonsense(
        framed(encode_request(ApiKey.PRODUCE, 9, 7, "c", produce_request(GOOD))[4:-20]), "pars"
    ),
    "a fetch request that is cut": Nonsense(framed(header(ApiKey.FETCH, 11) + bytes(9)), "pars"),
}


def uvarint(value: int) -> bytes:
    made = b""
    while value > 0x7F:
        made += bytes([value & 0x7F | 0x80])
        value >>= 7
    return made + bytes([value])


def named(key: ApiKey, version: int, name: bytes, forgotten: bool = False) -> bytes:
    """Return a Produce or Fetch request with these bytes as the topic's name."""
    here = "HERE" if not forgotten else "other"
    if key == ApiKey.PRODUCE:
        request: M.Message = produce_request(GOOD, topic=here)
    else:
        part = M.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)
        gone = [M.FetchRequest.ForgottenTopic(topic="HERE", partitions=[0])] if forgotten else []
        topics = [M.FetchRequest.FetchTopic(topic=here, partitions=[part])]
        request = M.FetchRequest(
            max_wait_ms=20, min_bytes=1, max_bytes=100, session_epoch=-1, topics=topics, forgotten_topics_data=gone
        )
    flexible = is_flexible(key, version)
    old, size = (b"\5HERE", uvarint(len(name) + 1)) if flexible else (b"\0\4HERE", struct.pack(">H", len(name)))
    before, after = request.encode(version).split(old)
    return framed(header(key, version) + b"\0" * flexible + before + size + name + after)


NOT_TEXTS = [b"\xff\xfe", b"\xc3(", b"\xed\xa0\x80", b"\xc0\x80", b"orders\xf4\x90\x80\x80", b"12345678\x80"]


@pytest.mark.parametrize("name", NOT_TEXTS, ids=bytes.hex)
@pytest.mark.parametrize(
    ("key", "version"), [(ApiKey.PRODUCE, 3), (ApiKey.PRODUCE, 9), (ApiKey.FETCH, 4), (ApiKey.FETCH, 12)]
)
def test_a_topics_name_that_is_no_text_is_not_echoed(
    broker: BrokerProcess, key: ApiKey, version: int, name: bytes
) -> None:
    """Kafka replaces the bytes by replacement characters, and answers that the topic is unknown."""
    with WireClient("127.0.0.1", broker.port) as client:
        client.send_raw(named(key, version, name))
        assert client.is_closed()
    (line,) = lines_after(broker, named(key, version, name))
    assert "does not parse" in line


@pytest.mark.parametrize("size", [0x8000, 40_000, 0xFFFF, 0x10000, 70_000, 200_000])
@pytest.mark.parametrize(
    ("key", "version", "forgotten"),
    [(ApiKey.PRODUCE, 9, False), (ApiKey.FETCH, 12, False), (ApiKey.FETCH, 12, True)],
)
def test_a_compact_name_longer_than_any_name_closes_its_connection(
    broker: BrokerProcess, key: ApiKey, version: int, forgotten: bool, size: int
) -> None:
    """Such a size does not fit into the field for the sizes of names. Kafka refuses it as well."""
    with WireClient("127.0.0.1", broker.port) as client:
        client.send_raw(named(key, version, b"x" * size, forgotten))
        assert client.is_closed()


def test_the_longest_name_is_only_unknown(broker: BrokerProcess, client: WireClient) -> None:
    name = b"x" * 0x7FFF
    client.send_raw(named(ApiKey.PRODUCE, 9, name) + named(ApiKey.FETCH, 12, name))
    produced = client.receive(ApiKey.PRODUCE, 9, 7).responses[0]
    assert produced.partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    fetched = client.receive(ApiKey.FETCH, 12, 7).responses[0]
    assert fetched.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert produced.name == fetched.topic == name.decode()


@pytest.mark.parametrize("name", NONSENSE)
def test_what_is_no_request_closes_its_connection_with_one_line(broker: BrokerProcess, name: str) -> None:
    memory = resident(broker)
    (line,) = lines_after(broker, NONSENSE[name].data)
    assert NONSENSE[name].why in line
    assert resident(broker) - memory < MEMORY_BOUND


def test_bytes_behind_a_request_are_ignored_as_kafka_does(client: WireClient) -> None:
    client.send_raw(framed(header(ApiKey.HEARTBEAT, 0) + bytes(8) + b"more"))
    assert client.read_frame() == struct.pack(">ih", 7, ErrorCode.INVALID_GROUP_ID)


def test_what_came_before_the_nonsense_is_answered(broker: BrokerProcess, client: WireClient) -> None:
    request = M.MetadataRequest(topics=[])
    client.send_raw(
        encode_request(ApiKey.METADATA, 5, 1, "c", request) + NONSENSE["an unknown API"].data + framed(b"never read")
    )
    assert client.receive(ApiKey.METADATA, 5, 1).brokers
    assert client.is_closed()


def test_an_api_versions_request_of_tomorrow_is_answered_in_version_0(client: WireClient) -> None:
    client.send_raw(framed(header(ApiKey.API_VERSIONS, 99) + b"\0\5hello\5world"))
    answer = client.read_frame()
    assert struct.unpack_from(">ih", answer) == (7, ErrorCode.UNSUPPORTED_VERSION)
    response = M.ApiVersionsResponse.decode(answer[4:], 0)
    served = SERVED[ApiKey.API_VERSIONS]
    assert [(key.api_key, key.min_version, key.max_version) for key in response.api_keys] == [
        (ApiKey.API_VERSIONS, served.min, served.max)
    ]
    assert client.call(ApiKey.API_VERSIONS, 0, M.ApiVersionsRequest()).error_code == 0


@pytest.mark.parametrize("batch", [changed(GOOD, CRC, b"\1\2\3\4", crc=False), compressed(2, b"\xff" * 40)])
def test_an_error_without_acks_closes_the_connection_with_one_line(broker: BrokerProcess, batch: bytes) -> None:
    (line,) = lines_after(broker, encode_request(ApiKey.PRODUCE, 9, 7, "c", produce_request(batch, acks=0)))
    assert "a produce request with acks=0 that was refused (newest request: API key 0, version 9)" in line


# --- what takes its time ----------------------------------------------------------------------------------------

MANY = 100_000
UNKNOWN = [f"t{number}" for number in range(MANY)]


def long_requests() -> dict[str, tuple[ApiKey, int, M.Message]]:
    """Return requests with as many names as fit in REQUEST_MAX, on which a processor would work for a while."""
    by_name = [M.MetadataRequest.MetadataRequestTopic(name=name) for name in UNKNOWN]
    one = M.DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name=TOPIC)
    fetched = M.OffsetFetchRequest.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=list(range(4 * MANY)))
    return {
        "Metadata": (
            ApiKey.METADATA,
            9,
            M.MetadataRequest(topics=by_name, allow_auto_topic_creation=False),
        ),
        "Metadata that creates": (ApiKey.METADATA, 9, M.MetadataRequest(topics=by_name)),
        "OffsetFetch": (ApiKey.OFFSET_FETCH, 7, M.OffsetFetchRequest(group_id="g", topics=[fetched])),
        "FindCoordinator": (ApiKey.FIND_COORDINATOR, 4, M.FindCoordinatorRequest(coordinator_keys=UNKNOWN)),
        "DescribeConfigs": (ApiKey.DESCRIBE_CONFIGS, 4, M.DescribeConfigsRequest(resources=[one] * MANY)),
        "DescribeGroups": (ApiKey.DESCRIBE_GROUPS, 5, M.DescribeGroupsRequest(groups=UNKNOWN)),
        "DeleteTopics": (ApiKey.DELETE_TOPICS, 4, M.DeleteTopicsRequest(topic_names=UNKNOWN, timeout_ms=1000)),
    }


@pytest.mark.parametrize("name", long_requests())
def test_while_a_long_request_is_worked_on_others_are_answered(broker: BrokerProcess, name: str) -> None:
    """Clients on every processor are answered meanwhile. One that is answered after the long request had to wait."""
    key, version, message = long_requests()[name]
    find = M.FindCoordinatorRequest(key="g", key_type=0)
    frame = encode_request(key, version, 1, "long", message)
    assert len(frame) < REQUEST_MAX
    with ExitStack() as stack:
        others = [stack.enter_context(WireClient("127.0.0.1", broker.port)) for _ in range(4)]
        long = stack.enter_context(WireClient("127.0.0.1", broker.port, timeout_s=60))
        for other in others:
            assert other.call(ApiKey.FIND_COORDINATOR, 3, find).error_code == 0
        memory = resident(broker)
        for _ in range(10):  # while this process stands still the broker goes on, and nobody asks it anything
            said = len(broker.output)
            long.socket.settimeout(60)
            long.send_raw(frame)
            long.socket.setblocking(False)
            rounds = 0
            while not has_come(long.socket):
                for other in others:
                    assert other.call(ApiKey.FIND_COORDINATOR, 3, find).error_code == 0
                rounds += 1
            assert resident(broker) - memory < 4 * MEMORY_BOUND + QUARANTINE
            assert broker.output.count("\n", said) < 20, "a line for each name"
            if rounds > (name != "DescribeConfigs"):
                return
            long.socket.settimeout(60)
            long.read_frame()
        pytest.fail("nobody was answered until it was")


def has_come(waiting: socket.socket) -> bool:
    try:
        return len(waiting.recv(1, socket.MSG_PEEK)) > 0
    except BlockingIOError:
        return False


# --- who is slow, or silent, or many ----------------------------------------------------------------------------


def wait_for(condition: Callable[[], Answer]) -> Answer:
    pause = threading.Event()
    for _ in range(2000):
        if answer := condition():
            return answer
        pause.wait(0.005)
    raise AssertionError("waited in vain")


def test_half_a_request_and_silence_costs_next_to_nothing(broker: BrokerProcess) -> None:
    """Two hundred connections announce two megabytes each, send a little and then nothing."""
    with ExitStack() as stack:
        memory = resident(broker)
        for number in range(200):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
            silent.sendall(struct.pack(">i", REQUEST_MAX) + header(ApiKey.PRODUCE, 9) + bytes(number))
        with WireClient("127.0.0.1", broker.port) as client:
            assert produce(client, GOOD).error_code == 0
        assert resident(broker) - memory < MEMORY_BOUND


def test_a_thousand_requests_of_100_megabytes_that_never_come_cost_next_to_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the default settings; one byte of each request is sent."""
    # Of what the interpreter frees while it accepts them the sanitizer would hold back 15 to 25 MB.
    options = os.environ.get("ASAN_OPTIONS", "")
    monkeypatch.setenv("ASAN_OPTIONS", f"{options}:quarantine_size_mb=1:thread_local_quarantine_size_kb=64")
    with BrokerProcess() as broker, WireClient("127.0.0.1", broker.port) as client, ExitStack() as stack:
        create_topic(client, TOPIC)
        memory = resident(broker)
        for _ in range(1000):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
            silent.sendall(struct.pack(">i", 100 << 20) + b"\0")
        assert produce(client, GOOD).error_code == 0
        assert resident(broker) - memory < 16 << 20


def test_a_reader_that_never_reads_is_not_waited_for(broker: BrokerProcess, client: WireClient) -> None:
    """The reader asks for megabytes thousands of times and reads nothing.

    The broker keeps only what fits in its sockets.
    """
    create_topic(client, "large")
    for _ in range(40):
        assert produce(client, encode_batch([(0, None, b"x" * 45_000)]), topic="large").error_code == 0
    part = M.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 21)
    topics = [M.FetchRequest.FetchTopic(topic="large", partitions=[part])]
    fetch_frame = encode_request(
        ApiKey.FETCH, 11, 1, "lazy", M.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 21, topics=topics)
    )
    metadata_frame = encode_request(ApiKey.METADATA, 5, 2, "lazy", M.MetadataRequest(topics=None))
    memory = resident(broker)
    with ExitStack() as stack:
        for frame in (fetch_frame, metadata_frame) * 5:
            lazy = stack.enter_context(socket.socket())
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect(("127.0.0.1", broker.port))
            lazy.setblocking(False)
            sent = 0
            while sent < 3000 * len(frame):
                try:
                    sent += lazy.send(frame * 50)
                except BlockingIOError:
                    break
        assert produce(client, GOOD).error_code == 0
        assert resident(broker) - memory < 16 << 20


def test_a_client_that_resets_its_connection_in_the_middle_leaves_nothing(broker: BrokerProcess) -> None:
    descriptors = psutil.Process(broker.pid).num_fds
    before = descriptors()
    for cut in range(1, 60):
        with socket.create_connection(("127.0.0.1", broker.port)) as rude:
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            frame = encode_request(ApiKey.PRODUCE, 9, 7, "rude", produce_request(GOOD))
            rude.sendall((frame * 3)[: 3 * cut])
    wait_for(lambda: descriptors() <= before + 1)


def test_garbage_of_many_kinds_leaves_the_broker_as_it_was(broker: BrokerProcess) -> None:
    descriptors = psutil.Process(broker.pid).num_fds
    before, memory = descriptors(), resident(broker)
    frame = encode_request(ApiKey.PRODUCE, 9, 7, "c", produce_request(GOOD))
    for at in range(len(frame)):
        with WireClient("127.0.0.1", broker.port, timeout_s=0.02) as hostile:
            hostile.socket.sendall(frame[:at] + bytes([frame[at] ^ 0xFF]) + frame[at + 1 :])
            try:
                hostile.read_frame()
            except (ConnectionClosed, TimeoutError):
                pass
    wait_for(lambda: descriptors() <= before + 1)
    assert resident(broker) - memory < MEMORY_BOUND
