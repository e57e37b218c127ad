"""Produce as a client writes and reads it, against the schema-driven codec."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.client.producer.frame import ProduceFrame
from kbroker.errors import KbrokerError
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.headers import decode_request
from tests.kit.wire.parser_cases import feed

Batch = tuple[str, int, bytes]
names = st.text("abc.é", min_size=1, max_size=8)
batches = st.dictionaries(
    names, st.dictionaries(st.integers(0, 5), st.binary(max_size=200), max_size=4), max_size=4
).map(lambda topics: [(t, p, data) for t, found in topics.items() for p, data in found.items()])
versions = st.integers(3, 12)
texts = st.none() | st.text(st.characters(codec="utf-8"), max_size=10)
int16, int32, int64 = (st.integers(-(1 << n), (1 << n) - 1) for n in (15, 31, 63))
Response = M.ProduceResponse
Partition = Response.PartitionProduceResponse


@given(batches, versions, texts, texts, int16, int32)
def test_a_request_is_what_the_schemas_say(
    sent: list[Batch], version: int, client_id: str | None, transactional_id: str | None, acks: int, timeout_ms: int
) -> None:
    frame = ProduceFrame(sent).encode(version, client_id, transactional_id, acks, timeout_ms)
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    header, message = decode_request(frame[4:])
    assert isinstance(message, M.ProduceRequest)
    assert (header.request_api_key, header.request_api_version, header.client_id) == (
        ApiKey.PRODUCE,
        version,
        client_id,
    )
    assert (message.transactional_id, message.acks, message.timeout_ms) == (transactional_id, acks, timeout_ms)
    found = [(t.name, p.index, bytes(p.records or b"")) for t in message.topic_data for p in t.partition_data]
    assert found == sent


def response_of(sent: list[Batch], data: st.DataObject, version: int) -> tuple[M.ProduceResponse, list[object]]:
    """A response, and what is to be read of it."""
    made: dict[str, M.ProduceResponse.TopicProduceResponse] = {}
    expected: list[object] = []
    for topic, partition, _ in sent:
        answer = Partition(index=partition, error_code=data.draw(int16), base_offset=data.draw(int64))
        answer.log_append_time_ms = data.draw(int64)
        if version >= 5:
            answer.log_start_offset = data.draw(int64)
        if version >= 8:
            answer.error_message = data.draw(texts)
            error = Response.BatchIndexAndErrorMessage
            answer.record_errors = [
                error(batch_index=i, batch_index_error_message=data.draw(texts)) for i in range(partition)
            ]
        if version >= 10 and data.draw(st.booleans()):
            answer.current_leader = Response.LeaderIdAndEpoch(leader_id=data.draw(int32), leader_epoch=data.draw(int32))
        made.setdefault(topic, Response.TopicProduceResponse(name=topic)).partition_responses.append(answer)
        leader = answer.current_leader
        start = answer.log_start_offset if version >= 5 else -1
        expected.append(
            (
                answer.error_code,
                answer.base_offset,
                answer.log_append_time_ms,
                start,
                answer.error_message,
                leader.leader_id,
                leader.leader_epoch,
            )
        )
    topics = data.draw(st.permutations(list(made.values())))
    for topic_response in topics:
        topic_response.partition_responses = data.draw(st.permutations(topic_response.partition_responses))
    response = Response(responses=topics, throttle_time_ms=data.draw(int32))
    if version >= 10:
        response.node_endpoints = [Response.NodeEndpoint(node_id=1, host="h", port=2, rack=None)]
    return response, expected


@given(batches, versions, st.data())
def test_a_response_is_read_as_the_schemas_say(sent: list[Batch], version: int, data: st.DataObject) -> None:
    response, expected = response_of(sent, data, version)
    assert ProduceFrame(sent).decode(version, response.encode(version)) == expected


@pytest.mark.parametrize("version", range(3, 13))
def test_no_byte_of_a_response_is_believed(version: int) -> None:
    sent = [("topic", 0, b""), ("topic", 3, b""), ("other", 1, b"")]
    topics = [
        Response.TopicProduceResponse(
            name=name,
            partition_responses=[Partition(index=p, base_offset=5, log_append_time_ms=-1) for p in partitions],
        )
        for name, partitions in (("topic", [0, 3]), ("other", [1]))
    ]
    if version >= 10:
        topics[0].partition_responses[0].current_leader = Response.LeaderIdAndEpoch(leader_id=3, leader_epoch=4)
    if version >= 8:
        topics[1].partition_responses[0].error_message = "a text"
        error = Response.BatchIndexAndErrorMessage
        topics[1].partition_responses[0].record_errors = [error(batch_index=7, batch_index_error_message="why")]
    frame = ProduceFrame(sent)
    whole = Response(responses=topics).encode(version)

    def agree(body: bytes) -> None:
        try:
            message = Response.decode(body, version)
        except KbrokerError:
            message = None
        found = frame.decode(version, body)
        # What the client reads, the schemas read too.
        assert message is not None
        assert len(found) == sum(len(topic.partition_responses) for topic in message.responses)

    assert feed(agree, whole) > len(whole)


@pytest.mark.parametrize("version", [3, 12])
@pytest.mark.parametrize("answered", [[], [0], [0, 0], [0, 1, 2], [1, 2]])
def test_each_batch_is_answered_once(version: int, answered: list[int]) -> None:
    topic = Response.TopicProduceResponse(name="t", partition_responses=[Partition(index=p) for p in answered])
    with pytest.raises(KbrokerError):
        ProduceFrame([("t", 0, b""), ("t", 1, b"")]).decode(version, Response(responses=[topic]).encode(version))
