"""What the codec promises besides the right bytes: versions, defaults, hostile bytes, errors that say where."""

from __future__ import annotations

import copy
import gc
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.base.build_info import BUILD
from kbroker.errors import ErrorCode, MalformedBytes, ProtocolError
from kbroker.protocol import messages as M
from tests.kit.models.message import check_messages, fields_of, schema_of, served_messages, versions_of
from tests.kit.wire.parser_cases import feed

METADATA = M.MetadataResponse(
    cluster_id="c",
    controller_id=1,
    brokers=[M.MetadataResponse.MetadataResponseBroker(node_id=1, host="localhost", port=9092, rack="r")],
    topics=[
        M.MetadataResponse.MetadataResponseTopic(
            name="topic-ä",
            topic_id=bytes(range(16)),
            partitions=[
                M.MetadataResponse.MetadataResponsePartition(
                    partition_index=0, leader_id=1, leader_epoch=3, replica_nodes=[1, 2], isr_nodes=[1]
                )
            ],
        )
    ],
)
FETCH = M.FetchRequest(
    cluster_id="c",
    replica_state=M.FetchRequest.ReplicaState(replica_id=3, replica_epoch=9),
    topics=[
        M.FetchRequest.FetchTopic(
            topic_id=b"t" * 16,
            partitions=[M.FetchRequest.FetchPartition(partition=4, fetch_offset=5, replica_directory_id=b"d" * 16)],
        )
    ],
)


# --- versions and defaults --------------------------------------------------------------------------------------------


def test_a_value_that_a_version_cannot_carry_is_refused() -> None:
    with pytest.raises(ProtocolError) as refused:
        M.CreateTopicsRequest(validate_only=True).encode(0)
    assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
    assert "validate_only" in str(refused.value)


def test_a_value_that_the_schema_allows_to_drop_is_dropped() -> None:
    response = M.MetadataResponse(throttle_time_ms=7, cluster_id="c")
    read = M.MetadataResponse.decode(response.encode(0), 0)
    assert (read.throttle_time_ms, read.cluster_id) == (0, None)


def test_fields_that_do_not_exist_in_a_version_decode_to_their_defaults() -> None:
    read = M.FetchRequest.decode(M.FetchRequest().encode(4), 4)
    assert (read.session_id, read.session_epoch, read.rack_id, read.forgotten_topics_data) == (0, -1, "", [])
    assert read.replica_state == M.FetchRequest.ReplicaState(replica_id=-1, replica_epoch=-1)


def test_null_is_refused_where_a_version_has_no_null() -> None:
    assert M.MetadataRequest.decode(M.MetadataRequest(topics=None).encode(1), 1).topics is None
    with pytest.raises(ProtocolError) as refused:
        M.MetadataRequest(topics=None).encode(0)
    assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
    with pytest.raises(TypeError, match=r"HeartbeatRequest\.group_id"):
        M.HeartbeatRequest(group_id=None).encode(0)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [-1, 13, 32767, -32768])
def test_a_version_that_does_not_exist_is_refused(version: int) -> None:
    for call in (lambda: METADATA.encode(version), lambda: M.MetadataResponse.decode(b"", version)):
        with pytest.raises(ProtocolError) as refused:
            call()
        assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_every_message_with_defaults_round_trips_in_every_version() -> None:
    for name in M.NAMES:
        cls: type[M.Message] = getattr(M, name)
        for version in versions_of(cls):
            message = cls()
            try:
                body = message.encode(version)
            except (ProtocolError, TypeError):
                continue  # some have no valid default
            assert cls.decode(body, version) == message, (name, version)


def test_each_message_gets_defaults_of_its_own() -> None:
    one, other = M.MetadataRequest(), M.MetadataRequest()
    assert one.topics is not None
    one.topics.append(M.MetadataRequest.MetadataRequestTopic(name="t"))
    assert other.topics == []


# --- classes ----------------------------------------------------------------------------------------------------------


def test_messages_compare_by_their_fields() -> None:
    assert M.HeartbeatRequest(group_id="g") == M.HeartbeatRequest(group_id="g")
    assert M.HeartbeatRequest(group_id="g") != M.HeartbeatRequest(group_id="h")
    assert M.HeartbeatRequest() != M.LeaveGroupRequest()
    assert copy.copy(METADATA) == METADATA
    assert copy.deepcopy(METADATA) == METADATA
    with pytest.raises(TypeError):
        hash(METADATA)


def test_a_message_shows_its_fields() -> None:
    assert repr(M.HeartbeatResponse(error_code=3)) == "HeartbeatResponse(throttle_time_ms=0, error_code=3)"


def test_only_known_fields_by_keyword_make_a_message() -> None:
    make: Any = M.HeartbeatResponse
    with pytest.raises(TypeError, match="keyword"):
        make(1)
    with pytest.raises(TypeError, match="no_such"):
        make(no_such=1)
    with pytest.raises(AttributeError):
        make().no_such = 1
    with pytest.raises(AttributeError, match="NoSuchRequest"):
        M.NoSuchRequest  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("throttle_time_ms", "1"),
        ("throttle_time_ms", 1.0),
        ("throttle_time_ms", None),
        ("throttle_time_ms", 2**31),
        ("throttle_time_ms", -(2**31) - 1),
        ("throttle_time_ms", 2**70),
        ("cluster_id", 5),
        ("cluster_id", b"bytes"),
        ("cluster_id", "x" * 32768),
        ("cluster_id", "\ud800"),
        ("brokers", 5),
        ("brokers", [None]),
        ("brokers", [METADATA]),
        ("topics", {}),
        ("topics", [M.MetadataRequest.MetadataRequestTopic()]),
    ],
)
def test_a_value_of_the_wrong_type_is_named(field: str, value: object) -> None:
    message = copy.copy(METADATA)
    setattr(message, field, value)
    with pytest.raises(TypeError, match=field):
        message.encode(12)
    assert METADATA.encode(12) == METADATA.encode(12)  # the scratch buffer survived


def test_a_deleted_field_is_named() -> None:
    message = copy.copy(METADATA)
    del message.cluster_id
    with pytest.raises(TypeError, match="cluster_id is not set"):
        message.encode(12)
    assert "cluster_id=?" in repr(message)
    assert message != METADATA


def test_bytes_fields_take_what_holds_bytes() -> None:
    data = b"0123456789"
    bodies = [M.SaslAuthenticateRequest(auth_bytes=data).encode(2)]
    for value in (bytearray(data), memoryview(data), memoryview(b"xx" + data)[2:]):
        request: Any = M.SaslAuthenticateRequest()
        request.auth_bytes = value
        bodies.append(request.encode(2))
    assert set(bodies) == {b"\x0b0123456789\x00"}
    assert M.SaslAuthenticateRequest.decode(bytearray(bodies[0]), 2).auth_bytes == data
    assert M.SaslAuthenticateRequest.decode(memoryview(bodies[0]), 2).auth_bytes == data


def test_tuples_do_as_arrays() -> None:
    request: Any = M.DescribeGroupsRequest(groups=("a", "b"))  # type: ignore[arg-type]
    assert request.encode(5) == M.DescribeGroupsRequest(groups=["a", "b"]).encode(5)


def test_int_enums_do_as_numbers() -> None:
    assert M.HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR).encode(0) == b"\0\x10"


# --- tagged fields ----------------------------------------------------------------------------------------------------


def test_unknown_tags_are_skipped() -> None:
    tags = bytes.fromhex("02 05 03 aabbcc  8001 00")
    assert M.HeartbeatResponse.decode(bytes(6) + tags, 4) == M.HeartbeatResponse()


def test_known_tags_are_read_in_any_order_and_the_last_of_a_repeated_one_counts() -> None:
    body = M.FetchRequest(cluster_id="b").encode(17)
    assert body.endswith(bytes.fromhex("01 00 02 02 62"))
    body = body[:-5] + bytes.fromhex("03  09 01 ff  00 02 02 61  00 02 02 62")
    assert M.FetchRequest.decode(body, 17).cluster_id == "b"


def test_a_tagged_field_must_end_where_it_says() -> None:
    body = M.FetchRequest(cluster_id="b").encode(17)[:-5]
    for tags in ("01 00 03 02 62 00", "01 00 01 02 62", "01 00 02 03 62 63"):
        with pytest.raises(MalformedBytes):
            M.FetchRequest.decode(body + bytes.fromhex(tags), 17)


@pytest.mark.parametrize("size", [126, 127, 128, 200, 16382, 16383, 16384, 32000])
def test_tagged_fields_of_every_width_of_size_round_trip(size: int) -> None:
    request = M.FetchRequest(cluster_id="c" * size)
    assert M.FetchRequest.decode(request.encode(17), 17) == request


# --- hostile bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "version"),
    [(METADATA, 1), (METADATA, 12), (FETCH, 17), (M.MetadataRequest(topics=None), 12)],
    ids=lambda one: type(one).__name__ if isinstance(one, M.Message) else str(one),
)
def test_mangled_bytes_are_refused_or_read_as_something_else(message: M.Message, version: int) -> None:
    refused = feed(lambda data: type(message).decode(data, version), message.encode(version), every_bit=True)
    assert refused > len(message.encode(version))


@pytest.mark.parametrize(("cls", "versions"), list(served_messages()), ids=lambda one: getattr(one, "__name__", None))
def test_every_served_message_survives_mangling(cls: type[M.Message], versions: range) -> None:
    for version in (versions[0], versions[-1]):
        check_messages(
            cls,
            version,
            lambda message, version=version: feed(lambda data: cls.decode(data, version), message.encode(version)),
            examples=2,
        )


@given(st.binary(max_size=200), st.sampled_from(list(served_messages())), st.data())
def test_random_bytes_give_a_message_or_say_where_they_are_wrong(data: bytes, one: Any, choice: Any) -> None:
    cls, versions = one
    version = choice.draw(st.sampled_from(list(versions)))
    try:
        message = cls.decode(data, version)
    except MalformedBytes as error:
        assert 0 <= error.position <= len(data)
    else:
        assert cls.decode(message.encode(version), version) == message


def test_bytes_cut_short_are_refused_at_every_length() -> None:
    body = METADATA.encode(12)
    for size in range(len(body)):
        with pytest.raises(MalformedBytes):
            M.MetadataResponse.decode(body[:size], 12)


def test_bytes_behind_a_message_are_refused() -> None:
    body = METADATA.encode(12)
    with pytest.raises(MalformedBytes, match="3 bytes too many") as refused:
        M.MetadataResponse.decode(body + b"abc", 12)
    assert refused.value.position == len(body)
    message, size = M.MetadataResponse.decode_prefix(body + b"abc", 12)
    assert (message, size) == (METADATA, len(body))


def test_invalid_utf8_is_refused_with_its_position() -> None:
    with pytest.raises(MalformedBytes, match=r"MetadataRequestTopic\.name version 0: not UTF-8") as refused:
        M.MetadataRequest.decode(b"\0\0\0\x01\0\x04ab\xffc", 0)
    assert refused.value.position == 8


@pytest.mark.parametrize("count", [2**31 - 1, 2**30, 1_000_000, 5])
def test_a_count_is_believed_only_as_far_as_bytes_reach(count: int) -> None:
    with pytest.raises(MalformedBytes, match="more elements than bytes"):
        M.MetadataRequest.decode(count.to_bytes(4) + bytes(8), 0)
    with pytest.raises(MalformedBytes, match="more elements than bytes"):
        M.DeleteRecordsRequest.decode(b"\xff\xff\xff\xff\x0f" + bytes(100), 2)


@pytest.mark.parametrize("size", ["8000", "ff00", "fffe"])
def test_negative_sizes_are_refused(size: str) -> None:
    with pytest.raises(MalformedBytes):
        M.HeartbeatRequest.decode(bytes.fromhex(size) + bytes(40), 0)
    with pytest.raises(MalformedBytes):
        M.MetadataRequest.decode(bytes.fromhex(size + "0000") + bytes(40), 0)


def test_a_message_has_a_limit_of_elements() -> None:
    groups = [""] * (1 << 20)
    assert len(M.DescribeGroupsRequest.decode(M.DescribeGroupsRequest(groups=groups).encode(5), 5).groups) == 1 << 20
    groups.append("")
    with pytest.raises(MalformedBytes, match="elements in one message"):
        M.DescribeGroupsRequest.decode(M.DescribeGroupsRequest(groups=groups).encode(5), 5)


@pytest.mark.parametrize("replication_factor", [3, 5])
def test_a_cluster_of_two_hundred_thousand_partitions_fits_into_one_message(replication_factor: int) -> None:
    """A broker that starts is told of all partitions in one request, and Kafka has been run with as many as these."""
    brokers = list(range(1000, 1000 + replication_factor))
    R = M.UpdateMetadataRequest
    state = R.UpdateMetadataPartitionState(leader=1000, isr=brokers, replicas=brokers)
    topics = [
        R.UpdateMetadataTopicState(topic_name=f"topic-{at}", partition_states=[state] * 2_000) for at in range(100)
    ]
    body = R(topic_states=topics).encode(8)
    told = R.decode(body, 8)
    assert sum(len(topic.partition_states) for topic in told.topic_states) == 200_000
    assert told.topic_states[99].partition_states[1_999].replicas == brokers
    roles = M.LeaderAndIsrRequest.LeaderAndIsrPartitionState(leader=1000, isr=brokers, replicas=brokers)
    named = [M.LeaderAndIsrRequest.LeaderAndIsrTopicState(topic_name="t", partition_states=[roles] * 200_000)]
    given = M.LeaderAndIsrRequest.decode(M.LeaderAndIsrRequest(topic_states=named).encode(7), 7)
    assert len(given.topic_states[0].partition_states) == 200_000


def test_four_numbers_count_as_one_element() -> None:
    W = M.OffsetFetchRequest
    topic = W.OffsetFetchRequestTopic(name="t", partition_indexes=[7] * ((1 << 22) - 4))
    assert len(W.decode(W(group_id="g", topics=[topic]).encode(1), 1).topics[0].partition_indexes) == (1 << 22) - 4
    topic.partition_indexes += [7] * 5
    with pytest.raises(MalformedBytes, match="elements in one message"):
        W.decode(W(group_id="g", topics=[topic]).encode(1), 1)


def test_nothing_leaks_from_refused_bytes() -> None:
    body = METADATA.encode(12)

    def refuse_all() -> None:
        for size in range(len(body)):
            try:
                M.MetadataResponse.decode(body[:size], 12)
            except MalformedBytes:
                pass

    refuse_all()
    before = sys.getallocatedblocks()
    for _ in range(10):
        refuse_all()
    assert sys.getallocatedblocks() - before < len(body)


# --- long messages ----------------------------------------------------------------------------------------------------


def test_the_collector_of_cycles_has_no_work_with_messages() -> None:
    """A message of a million parts would have it walk millions of objects, again and again, while nobody else runs."""
    decoded = M.MetadataResponse.decode(METADATA.encode(12), 12)
    for message in (decoded, M.MetadataResponse(), METADATA.topics[0]):
        assert not gc.is_tracked(message)
    assert not gc.is_tracked(decoded.topics)
    assert not gc.is_tracked(decoded.topics[0].partitions[0].isr_nodes)


def test_other_threads_run_while_a_long_message_is_read_written_and_forgotten() -> None:
    """Each of the three is one call that does not come back to the interpreter before it is done."""
    names = [M.MetadataRequest.MetadataRequestTopic(name=f"t{number}") for number in range(300_000)]
    body = M.MetadataRequest(topics=names).encode(9)
    turns = 0
    stopping = threading.Event()

    def take_turns() -> None:
        nonlocal turns
        while not stopping.is_set():
            turns += 1
            select.select((), (), (), 0)  # the next turn comes when the GIL is given up again

    def turns_during(work: Callable[[], Any]) -> tuple[int, Any]:
        before = turns
        result = work()
        return turns - before, result

    most = [0, 0, 0]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    other = threading.Thread(target=take_turns)
    other.start()
    try:
        for _ in range(40):  # on a busy machine the other thread may miss its chances
            read, decoded = turns_during(lambda: [M.MetadataRequest.decode(body, 9)])
            written, _ = turns_during(lambda message=decoded[0]: message.encode(9))
            forgotten, _ = turns_during(decoded.clear)
            most = [max(pair) for pair in zip(most, (read, written, forgotten), strict=True)]
            if min(most) > 5:
                break
    finally:
        stopping.set()
        other.join()
        sys.setswitchinterval(interval)
    assert min(most) > 5, "all turns of one kind came before or after the call"


def test_messages_are_written_by_several_threads_at_once() -> None:
    """The room that one writes in is nobody else's until it is done."""
    sent = [M.DescribeGroupsRequest(groups=[f"{thread}-{number}" for number in range(50_000)]) for thread in range(4)]
    expected = [message.encode(5) for message in sent]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(lambda message: message.encode(5), sent)) == expected


# --- the schema data --------------------------------------------------------------------------------------------------


def test_no_array_element_takes_no_bytes() -> None:
    """Else a count could not be held against the bytes that are there."""
    for name in M.NAMES:
        cls: type[M.Message] = getattr(M, name)
        structs = schema_of(cls)[5]
        for struct in structs:
            for version in versions_of(cls):
                flexible = cls.FLEXIBLE_FROM is not None and version >= cls.FLEXIBLE_FROM
                present = [field for field in fields_of(cls, struct) if field.exists(version)]
                used = any(
                    field.element == struct and field.is_array and field.exists(version)
                    for place in (None, *structs)
                    for field in fields_of(cls, place)
                )
                assert flexible or present or not used, (name, struct, version)


def test_importing_the_protocol_is_cheap() -> None:
    code = (
        "import sys, time; from kbroker import errors; start = time.process_time();"
        "import kbroker.protocol.api, kbroker.protocol.messages;"
        "print(time.process_time() - start, *sorted(sys.modules))"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    seconds, *modules = runs[0].stdout.split()
    if BUILD == "release":
        assert min(float(run.stdout.split()[0]) for run in runs) < 0.05, seconds
    assert not {"numpy", "hypothesis", "kbroker.server"} & set(modules)
