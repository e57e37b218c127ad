"""A client that asks the wrong broker is told the newest leader that this broker has heard of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from kbroker.cluster.image import Broker, MetadataImage, Partition, Topic
from kbroker.model import Endpoint, TopicPartition
from kbroker.replication.hosted import Hosted, Role
from kbroker.server.handlers.shared.current_leader import current_leader
from tests.kit.parts.handlers import Caller

AT, ME = TopicPartition("t", 0), 1
TOPIC_ID = UUID(int=5)


def leader_by(metadata: tuple[int, int], told: tuple[int, int] | None, node_ids: tuple[int, ...] = (1, 2, 3)) -> Any:
    """Return (leader, its epoch, its port) by the metadata and the role that the controller has told, if it has."""
    image = MetadataImage(
        "cluster",
        topics={"t": Topic("t", TOPIC_ID, (Partition(0, *metadata, node_ids, node_ids),), {})},
        names={TOPIC_ID: "t"},
    )
    image.brokers = {each: Broker(each, (Endpoint("PLAINTEXT", "PLAINTEXT", "h", each),), None, 1) for each in node_ids}
    hosted = told and Hosted(Role.FOLLOWER, TOPIC_ID, *told, 0, node_ids, node_ids, (), ())
    services = SimpleNamespace(
        node_id=ME,
        cluster=SimpleNamespace(image=image),
        logs={},
        partitions=SimpleNamespace(get={AT: hosted}.get),
        endpoints_for=lambda connection: Endpoint("PLAINTEXT", "PLAINTEXT", "h", ME),
    )
    found = current_leader(cast(Any, services), cast(Any, Caller()), "t", None, 0)
    return found and (found.node_id, found.leader_epoch, found.port)


@pytest.mark.parametrize(
    ("metadata", "told", "named"),
    [
        ((1, 4), (2, 5), (2, 5, 2)),  # it led until now: UpdateMetadata comes after LeaderAndIsr
        ((3, 6), (2, 5), (3, 6, 3)),
        ((3, 6), None, (3, 6, 3)),  # no replica of it
        ((1, 4), (9, 5), (9, 5, -1)),  # a broker that this one does not know yet
    ],
)
def test_the_newer_of_metadata_and_role_is_named(metadata: Any, told: Any, named: Any) -> None:
    assert leader_by(metadata, told) == named
