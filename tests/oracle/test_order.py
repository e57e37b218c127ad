"""The order of answers, which the matrix does not compare: in Kafka it is that of a hash table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient
from tests.oracle.scenarios.requests import offsets_of, produce_all, records

TOPICS = ("z", "a", "m", "b")


@pytest.fixture(scope="module")
def client() -> Iterator[WireClient]:
    with BrokerProcess({"num.partitions": 3}) as broker, WireClient("127.0.0.1", broker.port) as connected:
        wanted = [M.MetadataRequest.MetadataRequestTopic(name=name) for name in TOPICS]
        connected.call(ApiKey.METADATA, 12, M.MetadataRequest(topics=wanted))
        yield connected


def test_topics_and_partitions_are_answered_in_the_order_of_the_request(client: WireClient) -> None:
    produced = client.call(ApiKey.PRODUCE, 9, produce_all({name: {2: records(), 0: records()} for name in TOPICS}))
    assert [(topic.name, [one.index for one in topic.partition_responses]) for topic in produced.responses] == [
        (name, [2, 0]) for name in TOPICS
    ]
    asked = M.ListOffsetsRequest(replica_id=-1, topics=[offsets_of(name, [(1, -1), (0, -1)]) for name in TOPICS])
    found = client.call(ApiKey.LIST_OFFSETS, 7, asked)
    assert [(topic.name, [one.partition_index for one in topic.partitions]) for topic in found.topics] == [
        (name, [1, 0]) for name in TOPICS
    ]
