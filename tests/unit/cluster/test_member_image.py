"""The image that UpdateMetadata makes, in every version."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

import pytest

from kbroker.cluster.image import Broker, MetadataImage, Partition
from kbroker.cluster.member_image import MAX_UNKNOWN_PARTITIONS, ImageUpdate, image_after
from kbroker.errors import ProtocolError
from kbroker.model import NO_UUID, Endpoint, TopicPartition
from kbroker.protocol import messages as M

U = M.UpdateMetadataRequest
TOPIC_ID = UUID(int=5)


def state(partition_id: int = 0, leader: int = 1, **fields: Any) -> U.UpdateMetadataPartitionState:
    values = {"leader_epoch": 3, "isr": [1, 2], "zk_version": 4, "replicas": [1, 2, 3]} | fields
    return U.UpdateMetadataPartitionState(partition_index=partition_id, leader=leader, controller_epoch=1, **values)


def topic(
    *states: U.UpdateMetadataPartitionState, name: str = "t", topic_id: UUID = TOPIC_ID
) -> U.UpdateMetadataTopicState:
    return U.UpdateMetadataTopicState(topic_name=name, topic_id=topic_id.bytes, partition_states=list(states))


def no_configs(names: Collection[str]) -> Mapping[str, Mapping[str, str]]:
    return {}


def told(image: MetadataImage, *topics: U.UpdateMetadataTopicState, **fields: Any) -> ImageUpdate:
    request = U(controller_id=9, controller_epoch=7, topic_states=list(topics), **fields)
    return image_after(image, U.decode(request.encode(8), 8), no_configs)


EMPTY = MetadataImage("cluster")


def test_partitions_come_with_everything_that_is_told_of_them() -> None:
    update = told(EMPTY, topic(state(0, offline_replicas=[3]), state(1, leader=2)))
    image = update.image
    assert (image.controller_id, image.controller_epoch) == (9, 7)
    assert image.partition(TopicPartition("t", 0)) == Partition(0, 1, 3, (1, 2, 3), (1, 2), (3,), 4)
    assert image.topics["t"].partitions[1].leader == 2
    assert image.topic_by_id(TOPIC_ID) is image.topics["t"]
    assert (update.changed, update.removed) == ([image.topics["t"]], [])


def test_partitions_are_changed_one_by_one_and_what_stays_the_same_is_the_same_object() -> None:
    first = told(EMPTY, topic(state(0), state(1)), topic(state(0), name="u", topic_id=UUID(int=6))).image
    again = told(first, topic(state(0), state(1)))
    assert (again.changed, again.image.topics["t"]) == ([], first.topics["t"])
    assert again.image.topics["t"] is first.topics["t"]
    after = told(first, topic(state(1, leader=2, leader_epoch=4)))
    assert after.image.topics["u"] is first.topics["u"]
    assert after.image.topics["t"].partitions[0] is first.topics["t"].partitions[0]
    assert after.image.topics["t"].partitions[1].leader == 2
    assert first.topics["t"].partitions[1].leader == 1
    grown = told(after.image, topic(state(2)))
    assert [each.partition_id for each in grown.image.topics["t"].partitions] == [0, 1, 2]


def test_the_brokers_replace_all_others() -> None:
    def broker(node_id: int) -> U.UpdateMetadataBroker:
        endpoints = [
            U.UpdateMetadataEndpoint(port=9092, host="h", listener="INSIDE", security_protocol=0),
            U.UpdateMetadataEndpoint(port=9093, host="h", listener="OUTSIDE", security_protocol=3),
        ]
        return U.UpdateMetadataBroker(id=node_id, endpoints=endpoints, rack="r")

    image = told(EMPTY, live_brokers=[broker(1), broker(2)]).image
    endpoints = Endpoint("INSIDE", "PLAINTEXT", "h", 9092), Endpoint("OUTSIDE", "SASL_SSL", "h", 9093)
    assert image.brokers == {each: Broker(each, endpoints, "r", -1) for each in (1, 2)}
    assert told(image, live_brokers=[broker(3)]).image.brokers.keys() == {3}


@pytest.mark.parametrize("version", range(9))
def test_every_version_tells_the_same(version: int) -> None:
    request = U(controller_id=9, controller_epoch=7)
    flat = state(0, offline_replicas=[3] if version >= 4 else [])
    if version >= 5:
        request.topic_states = [topic(flat, topic_id=TOPIC_ID if version >= 7 else NO_UUID)]
    else:
        flat.topic_name = "t"
        request.ungrouped_partition_states = [flat]
    broker = U.UpdateMetadataBroker(id=1, rack="r" if version >= 2 else None)
    if version == 0:
        broker.v0_host, broker.v0_port = "h", 9092
    else:
        name = "SSL" if version >= 3 else ""
        broker.endpoints = [U.UpdateMetadataEndpoint(port=9092, host="h", listener=name, security_protocol=1)]
    request.live_brokers = [broker]
    image = image_after(EMPTY, U.decode(request.encode(version), version), no_configs).image
    assert image.topics["t"].topic_id == (TOPIC_ID if version >= 7 else NO_UUID)
    assert (image.topic_by_id(TOPIC_ID) is not None) == (version >= 7)
    assert image.topic_by_id(NO_UUID) is None
    offline = (3,) if version >= 4 else ()
    assert image.topics["t"].partitions == (Partition(0, 1, 3, (1, 2, 3), (1, 2), offline, 4),)
    protocol = "PLAINTEXT" if version == 0 else "SSL"
    assert image.brokers[1].endpoints == (Endpoint(protocol, protocol, "h", 9092),)
    assert image.brokers[1].rack == ("r" if version >= 2 else None)


def test_a_topic_goes_when_its_last_partition_does() -> None:
    image = told(EMPTY, topic(state(0), state(1))).image
    half = told(image, topic(state(1, leader=-2)))
    assert len(half.image.topics["t"].partitions) == 1
    gone = told(half.image, topic(state(0, leader=-2)))
    assert (gone.image.topics, gone.image.names) == ({}, {})
    assert [each.name for each in gone.removed] == ["t"]
    unknown = told(EMPTY, topic(state(0, leader=-2)))
    assert (unknown.changed, unknown.removed, unknown.image.topics) == ([], [], {})


def test_a_topic_that_was_made_again_keeps_nothing_of_the_old_one() -> None:
    old = told(EMPTY, topic(state(0), state(1))).image
    update = told(old, topic(state(0), topic_id=UUID(int=6)))
    (new,) = update.changed
    assert (new.topic_id, len(new.partitions), update.removed) == (UUID(int=6), 1, [old.topics["t"]])
    assert update.image.topic_by_id(TOPIC_ID) is None
    assert update.image.topic_by_id(UUID(int=6)) is new


def test_a_topic_gets_its_id_later() -> None:
    without = told(EMPTY, topic(state(0), topic_id=NO_UUID)).image
    update = told(without, topic(state(0)))
    assert update.image.topic_by_id(TOPIC_ID) is update.image.topics["t"]
    assert told(update.image, topic(state(0), topic_id=NO_UUID)).image.topics["t"].topic_id == TOPIC_ID


def test_configs_are_asked_for_once_for_the_topics_that_are_new() -> None:
    asked = []

    def configs_of(names: Collection[str]) -> Mapping[str, Mapping[str, str]]:
        asked.append(sorted(names))
        return {"t": {"retention.ms": "1"}}

    request = U(topic_states=[topic(state(0)), topic(state(0), name="u", topic_id=UUID(int=6))])
    image = image_after(EMPTY, request, configs_of).image
    assert image.topics["t"].configs == {"retention.ms": "1"}
    assert image.topics["u"].configs == {}
    changed = image_after(image, U(topic_states=[topic(state(0, leader=2))]), configs_of).image
    assert asked == [["t", "u"]]
    assert changed.topics["t"].configs == {"retention.ms": "1"}


def test_a_partition_that_is_not_told_of_has_neither_leader_nor_replicas() -> None:
    image = told(EMPTY, topic(state(2))).image
    assert image.topics["t"].partitions[0] == Partition(0, -1, 0, (), ())
    assert told(image, topic(state(2, leader=-2))).image.topics == {}


@pytest.mark.parametrize("bad", [-1, 2**31 - 1, MAX_UNKNOWN_PARTITIONS + 2])
def test_a_topic_with_a_partition_that_cannot_be_stays_as_it_was_and_others_are_told(bad: int) -> None:
    before = told(EMPTY, topic(state(0))).image
    update = told(before, topic(state(0, leader=3), state(bad)), topic(state(0), name="u", topic_id=UUID(int=9)))
    assert update.passed_over == ["t"]
    assert update.image.topics["t"] is before.topics["t"]
    assert [each.name for each in update.changed] == ["u"]
    assert update.removed == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 250, "\u00e4"])
def test_a_topic_whose_name_cannot_be_is_passed_over(name: str) -> None:
    update = told(EMPTY, topic(state(0), name=name, topic_id=UUID(int=9)), topic(state(0)))
    assert update.passed_over == [name]
    assert list(update.image.topics) == ["t"]


def test_the_partitions_that_a_request_leaves_out_are_counted_over_all_its_topics() -> None:
    each = MAX_UNKNOWN_PARTITIONS // 10
    topics = [topic(state(each), name=f"t{number}", topic_id=UUID(int=number + 1)) for number in range(11)]
    assert told(EMPTY, *topics[:10]).passed_over == []
    assert told(EMPTY, *topics).passed_over == ["t10"]


def test_a_security_protocol_that_nobody_knows_is_refused() -> None:
    endpoint = U.UpdateMetadataEndpoint(port=1, host="h", listener="L", security_protocol=4)
    with pytest.raises(ProtocolError):
        told(EMPTY, live_brokers=[U.UpdateMetadataBroker(id=1, endpoints=[endpoint])])


def test_ten_thousand_partitions_take_well_under_a_second() -> None:
    topics = [topic(*map(state, range(10)), name=f"t{each}", topic_id=UUID(int=each + 1)) for each in range(1000)]
    body = U(topic_states=topics).encode(8)
    started = time.process_time()
    image = image_after(EMPTY, U.decode(body, 8), no_configs).image
    image_after(image, U.decode(body, 8), no_configs)
    assert time.process_time() - started < 1.0
    assert len(image.topics) == 1000
