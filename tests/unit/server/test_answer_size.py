"""How large answers may be, and what they cost while they are made."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker._core.server.request import Request
from kbroker._core.wire.codec import lazily
from kbroker.errors import AnswerTooLarge, ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import encode_batch
from tests.kit.brokers.whole import WholeBroker
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.parts.processors import ProcessorRig

LIMIT = 1 << 20
METADATA = "m" * 4096


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeBroker]:
    settings: dict[str, object] = {"kbroker.response.max.bytes": LIMIT, "offsets.topic.num.partitions": 1}
    with WholeBroker(tmp_path_factory.mktemp("broker"), settings) as whole:
        whole.create_topic("t", 1000)
        yield whole


def commit(broker: WholeBroker, group_id: str, partitions: int) -> None:
    P = M.OffsetCommitRequest.OffsetCommitRequestPartition
    topic = M.OffsetCommitRequest.OffsetCommitRequestTopic(
        name="t",
        partitions=[P(partition_index=n, committed_offset=1, committed_metadata=METADATA) for n in range(partitions)],
    )
    asked = M.OffsetCommitRequest(group_id=group_id, generation_id_or_member_epoch=-1, topics=[topic])
    broker.call(ApiKey.FIND_COORDINATOR, 0, M.FindCoordinatorRequest(key=group_id))
    answer = broker.call(ApiKey.OFFSET_COMMIT, 7, asked)
    assert {one.error_code for one in answer.topics[0].partitions} == {0}


def fetch_offsets(broker: WholeBroker, version: int, group_id: str, partition_ids: list[int]) -> Any:
    topic = M.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=partition_ids)
    return broker.call(ApiKey.OFFSET_FETCH, version, M.OffsetFetchRequest(group_id=group_id, topics=[topic]))


def test_an_offset_that_is_named_again_and_again_is_told_once(broker: WholeBroker) -> None:
    commit(broker, "again", 1)
    for version in range(1, 8):
        answer = fetch_offsets(broker, version, "again", [0] * 10_000)
        assert [one.metadata for topic in answer.topics for one in topic.partitions] == [METADATA]


def test_an_offset_of_a_group_that_is_named_again_and_again_is_told_once(broker: WholeBroker) -> None:
    commit(broker, "groups", 2)
    Group, Topics = M.OffsetFetchRequest.OffsetFetchRequestGroup, M.OffsetFetchRequest.OffsetFetchRequestTopics
    first, both = [Topics(name="t", partition_indexes=ids) for ids in ([0], [0, 1])]
    groups = [Group(group_id="groups", topics=[topic]) for topic in [first, *[both] * 1000]]
    answer = broker.call(ApiKey.OFFSET_FETCH, 8, M.OffsetFetchRequest(groups=groups))
    told = [one.partition_index for group in answer.groups for topic in group.topics for one in topic.partitions]
    assert told == [0, 1]


def test_what_is_named_again_and_again_is_told_once(broker: WholeBroker) -> None:
    for number in range(3):
        broker.append("t", number, [b"x"], producer_id=7, producer_epoch=0, base_sequence=0)
    asked = M.DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[1, 2] * 1000)
    producers = broker.call(ApiKey.DESCRIBE_PRODUCERS, 0, M.DescribeProducersRequest(topics=[asked] * 3))
    told = [(one.partition_index, len(one.active_producers)) for one in producers.topics[0].partitions]
    assert (len(producers.topics), told) == (1, [(1, 1), (2, 1)])
    ids = M.DescribeTransactionsRequest(transactional_ids=["a", "b"] * 1000)
    described = broker.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, ids).transaction_states
    assert [one.transactional_id for one in described] == ["a", "b"]


def test_a_marker_that_is_asked_for_again_and_again_is_written_once(broker: WholeBroker) -> None:
    R = M.WriteTxnMarkersRequest
    named = R.WritableTxnMarkerTopic(name="t", partition_indexes=[7, 8] * 1000)
    marker = R.WritableTxnMarker(producer_id=5, transaction_result=False, topics=[named] * 2)
    (answer,) = broker.call(ApiKey.WRITE_TXN_MARKERS, 1, R(markers=[marker, marker])).markers
    assert [(each.partition_index, each.error_code) for each in answer.topics[0].partitions] == [(7, 0), (8, 0)]
    assert [broker.log_of("t", number).log_end_offset for number in (7, 8)] == [1, 1]


def test_all_producers_of_a_partition_are_told_if_there_is_room(broker: WholeBroker) -> None:
    log = broker.log_of("t", 5)
    asked = M.DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[5])
    for upto in (1000, 32_000):
        for producer_id in range(upto - 1000 if upto == 1000 else 1000, upto):
            log.append(encode_batch([(1, None, b"x")], producer_id=producer_id, producer_epoch=0, base_sequence=0))
        answer = broker.call(ApiKey.DESCRIBE_PRODUCERS, 0, M.DescribeProducersRequest(topics=[asked]))
        (told,) = answer.topics[0].partitions
        if upto == 1000:
            assert [one.producer_id for one in told.active_producers] == list(range(upto))
        else:
            assert (told.error_code, told.active_producers) == (ErrorCode.INVALID_REQUEST, [])


def test_an_answer_over_the_limit_is_the_apis_error_before_its_memory_is_taken(broker: WholeBroker) -> None:
    for number in range(0, 300, 100):
        commit(broker, f"large-{number}", 100)
    groups = [M.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=f"large-{n}", topics=None) for n in (0, 100, 200)]
    answer = broker.call(ApiKey.OFFSET_FETCH, 8, M.OffsetFetchRequest(groups=groups))
    assert [group.error_code for group in answer.groups] == [ErrorCode.INVALID_REQUEST] * 3
    assert len(fetch_offsets(broker, 5, "large-0", list(range(100))).topics[0].partitions) == 100


def test_an_error_that_is_over_the_limit_closes_the_connection(broker: WholeBroker) -> None:
    keys = [f"{number}" for number in range(60_000)]
    asked = M.FindCoordinatorRequest(key_type=0, coordinator_keys=keys)
    with WireClient("127.0.0.1", broker.port) as client, pytest.raises(ConnectionClosed):
        client.call(ApiKey.FIND_COORDINATOR, 4, asked)


def test_elements_of_a_lazy_array_are_made_one_after_the_other() -> None:
    """No more than a few elements exist at any time."""
    count, response = 50_000, M.FindCoordinatorResponse()
    Coordinator = M.FindCoordinatorResponse.Coordinator
    made = (Coordinator(key=str(number), node_id=number, host="h", port=1) for number in range(count))
    response.coordinators = lazily(count, made)
    tracemalloc.start()
    try:
        body = response.encode(4)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(body) * 2
    decoded = M.FindCoordinatorResponse.decode(body, 4)
    assert [one.node_id for one in decoded.coordinators] == list(range(count))


@pytest.mark.parametrize("given", [2, 4])
def test_a_lazy_array_that_lies_about_its_length_is_our_mistake(given: int) -> None:
    Group = M.DescribeGroupsResponse.DescribedGroup
    response = M.DescribeGroupsResponse(groups=lazily(3, (Group(group_id=str(n)) for n in range(given))))
    with pytest.raises((TypeError, ValueError)):
        response.encode(5)


def test_an_error_of_an_element_leaves_the_request_to_be_answered(tmp_path: Path) -> None:
    """The same holds for an answer that gets too long, at whichever element that happens."""
    outcomes: list[str] = []

    def elements(count: int) -> Iterator[M.DescribeGroupsResponse.DescribedGroup]:
        for number in range(count):
            if number == 900:
                raise ZeroDivisionError
            yield M.DescribeGroupsResponse.DescribedGroup(group_id=f"{number:1000}")

    def handle(request: Request) -> None:
        for count in (1000, 800, 0):
            try:
                request.respond_with(M.DescribeGroupsResponse(groups=lazily(count, elements(count))))
                break
            except (AnswerTooLarge, ZeroDivisionError) as error:
                outcomes.append(type(error).__name__)

    for limit in (10 << 20, 500_000):
        with (
            ProcessorRig(tmp_path / str(limit), handle=handle, max_response_size=limit) as rig,
            rig.connect() as client,
        ):
            answer = client.call(ApiKey.DESCRIBE_GROUPS, 5, M.DescribeGroupsRequest(groups=["g"]))
            assert len(answer.groups) == (800 if limit == 10 << 20 else 0)
    assert outcomes == ["ZeroDivisionError", "AnswerTooLarge", "AnswerTooLarge"]
