"""Fetch requests written and responses read by consumers and followers, against the codec made from the schemas."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.client.consumer.fetch_request import encode_fetch
from kbroker._core.client.consumer.fetch_response import decode_fetch
from kbroker.errors import MalformedBytes
from kbroker.protocol import messages as M
from kbroker.protocol.headers import decode_request_header
from tests.kit.wire import parser_cases

versions = st.integers(0, 12)
"""Those in which topics have names."""
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
topics = st.text(min_size=1, max_size=6).filter(lambda text: len(text.encode("utf-8", "ignore")) > 0)
asks = st.lists(st.tuples(topics.map(lambda text: text.encode("utf-8", "replace")), int32s, int32s, int64s), max_size=6)


def asked_of(message: Any, version: int) -> list[tuple[bytes, int, int, int]]:
    return [
        (topic.topic.encode(), ask.partition, ask.current_leader_epoch if version >= 9 else -1, ask.fetch_offset)
        for topic in message.topics
        for ask in topic.partitions
    ]


@given(versions, asks, asks, st.integers(0, 1), int32s, st.text(max_size=5).map(str.encode))
def test_a_request_says_what_was_asked(
    version: int,
    asked: list[tuple[bytes, int, int, int]],
    forgotten: list[tuple[bytes, int, int, int]],
    isolation_level: int,
    number: int,
    rack: bytes,
) -> None:
    frame = encode_fetch(
        version, asked, forgotten, client_id=b"me", rack=rack, isolation_level=isolation_level, min_bytes=2,
        max_wait_ms=3, max_bytes=4, max_partition_bytes=5, session_id=number, session_epoch=6,
    )  # fmt: skip
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    header, size = decode_request_header(frame[4:])
    assert (header.request_api_key, header.request_api_version, header.client_id) == (1, version, "me")
    message = M.FetchRequest.decode(frame[4 + size :], version)
    expected = [ask if version >= 9 else (*ask[:2], -1, ask[3]) for ask in asked]
    assert asked_of(message, version) == expected
    assert (message.min_bytes, message.max_wait_ms, message.replica_id) == (2, 3, -1)
    assert message.max_bytes == (4 if version >= 3 else 2**31 - 1)
    assert message.isolation_level == (isolation_level if version >= 4 else 0)
    assert {ask.partition_max_bytes for topic in message.topics for ask in topic.partitions} <= {5}
    if version >= 7:
        assert (message.session_id, message.session_epoch) == (number, 6)
        left = [(topic.topic.encode(), part) for topic in message.forgotten_topics_data for part in topic.partitions]
        assert left == [row[:2] for row in forgotten]
    if version >= 11:
        assert message.rack_id == rack.decode()


ids = st.binary(min_size=16, max_size=16)
follower_asks = st.lists(st.tuples(st.just(b"t"), int32s, int32s, int64s, ids, int32s, int64s), max_size=6)


@given(st.integers(12, 17), follower_asks, follower_asks, st.integers(0, 2**31 - 1), int64s)
def test_a_followers_request_says_what_was_asked(
    version: int,
    asked: list[tuple[bytes, int, int, int, bytes, int, int]],
    forgotten: list[tuple[bytes, int, int, int, bytes, int, int]],
    replica_id: int,
    replica_epoch: int,
) -> None:
    """Topics stand in the order of the asks; here each has the same name, so they are one in a request by names."""
    asked, forgotten = ([(*row[:4], rows[0][4], *row[5:]) for row in rows] for rows in (asked, forgotten))
    frame = encode_fetch(
        version, asked, forgotten, client_id=b"me", max_partition_bytes=5, session_id=7, session_epoch=6,
        replica_id=replica_id, replica_epoch=replica_epoch,
    )  # fmt: skip
    _, size = decode_request_header(frame[4:])
    message = M.FetchRequest.decode(frame[4 + size :], version)
    if version >= 15:
        assert (message.replica_state.replica_id, message.replica_state.replica_epoch) == (replica_id, replica_epoch)
    else:
        assert message.replica_id == replica_id
    found = [
        (
            topic.topic.encode() if version < 13 else b"t", ask.partition, ask.current_leader_epoch, ask.fetch_offset,
            bytes(topic.topic_id) if version >= 13 else asked[0][4], ask.last_fetched_epoch, ask.log_start_offset,
        )
        for topic in message.topics
        for ask in topic.partitions
    ]  # fmt: skip
    assert found == asked
    left = [part for topic in message.forgotten_topics_data for part in topic.partitions]
    assert left == [row[1] for row in forgotten]
    if version >= 13:
        assert {bytes(topic.topic_id) for topic in message.forgotten_topics_data} <= {row[4] for row in forgotten}


@st.composite
def responses(draw: st.DrawFn) -> tuple[int, Any]:
    version = draw(st.integers(0, 17))
    partition = M.FetchResponse.PartitionData

    def answer() -> Any:
        made = partition(
            partition_index=draw(int32s), error_code=draw(st.integers(-1, 106)), high_watermark=draw(int64s),
            records=draw(st.none() | st.binary(max_size=20)),
        )  # fmt: skip
        if version >= 4:
            made.last_stable_offset = draw(int64s)
            made.aborted_transactions = draw(
                st.none()
                | st.lists(
                    st.builds(M.FetchResponse.AbortedTransaction, producer_id=int64s, first_offset=int64s), max_size=3
                )
            )
        if version >= 5:
            made.log_start_offset = draw(int64s)
        if version >= 11:
            made.preferred_read_replica = draw(int32s)
        if version >= 12 and draw(st.booleans()):
            made.current_leader = M.FetchResponse.LeaderIdAndEpoch(leader_id=draw(int32s), leader_epoch=draw(int32s))
        if version >= 12 and draw(st.booleans()):
            made.diverging_epoch = M.FetchResponse.EpochEndOffset(epoch=draw(int32s), end_offset=draw(int64s))
        return made

    message = M.FetchResponse(throttle_time_ms=draw(int32s) if version >= 1 else 0)
    if version >= 7:
        message.error_code, message.session_id = draw(st.integers(-1, 106)), draw(int32s)
    for _ in range(draw(st.integers(0, 3))):
        partitions = [answer() for _ in range(draw(st.integers(0, 3)))]
        topic = M.FetchResponse.FetchableTopicResponse(partitions=partitions)
        if version >= 13:
            topic.topic_id = draw(ids)
        else:
            topic.topic = draw(topics)
        message.responses.append(topic)
    if version >= 16 and draw(st.booleans()):
        message.node_endpoints = [M.FetchResponse.NodeEndpoint(node_id=draw(int32s), host="h", port=1)]
    return version, message


@given(responses())
def test_a_response_is_read_as_the_schema_says(case: tuple[int, Any]) -> None:
    version, message = case
    throttle, error, session_id, found = decode_fetch(version, message.encode(version))
    assert throttle == message.throttle_time_ms
    assert (error, session_id) == ((message.error_code, message.session_id) if version >= 7 else (0, 0))
    expected = [
        {
            "topic": bytes(topic.topic_id) if version >= 13 else topic.topic.encode(),
            "partition": answer.partition_index,
            "error": answer.error_code,
            "high_watermark": answer.high_watermark,
            "last_stable_offset": answer.last_stable_offset if version >= 4 else -1,
            "log_start_offset": answer.log_start_offset if version >= 5 else -1,
            "aborted": [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()],
            "preferred_replica": answer.preferred_read_replica if version >= 11 else -1,
            "records": bytes(answer.records or b""),
            "leader": (answer.current_leader.leader_id, answer.current_leader.leader_epoch),
            "diverging": (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset),
        }
        for topic in message.responses
        for answer in topic.partitions
    ]
    assert found == expected


def example(version: int) -> bytes:
    answer = M.FetchResponse.PartitionData(partition_index=1, error_code=0, high_watermark=9, records=b"records")
    if version >= 4:
        answer.last_stable_offset = 8
        answer.aborted_transactions = [M.FetchResponse.AbortedTransaction(producer_id=5, first_offset=6)]
    if version >= 12:
        answer.current_leader = M.FetchResponse.LeaderIdAndEpoch(leader_id=3, leader_epoch=4)
    topic = M.FetchResponse.FetchableTopicResponse(partitions=[answer, answer])
    if version >= 13:
        topic.topic_id = bytes(range(16))
    else:
        topic.topic = "orders"
    return bytes(M.FetchResponse(throttle_time_ms=0, responses=[topic]).encode(version))


@pytest.mark.parametrize("version", [0, 3, 4, 7, 11, 12, 13, 17])
def test_rubbish_gives_only_errors_of_ours(version: int) -> None:
    assert parser_cases.feed(lambda body: decode_fetch(version, body), example(version), every_bit=True) > 100


@pytest.mark.parametrize("version", [4, 12])
def test_counts_are_not_believed(version: int) -> None:
    body = bytearray(example(version))
    at = 4 if version == 4 else 10
    body[at : at + 4] = b"\x7f\xff\xff\xff" if version == 4 else b"\xff\xff\xff\x7f"
    with pytest.raises(MalformedBytes):
        decode_fetch(version, body)
