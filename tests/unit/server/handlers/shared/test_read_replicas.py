"""Which replica a consumer of another rack is sent to (KIP-392), by what the leader's log knows of its followers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.cluster.image import Broker, MetadataImage
from kbroker.model import Endpoint
from kbroker.rules.read_replica import NO_REPLICA
from kbroker.server.handlers.shared.read_replicas import read_replica_of
from kbroker.storage.log import Log
from tests.kit.logs.home import TOPIC_PARTITION, LogHome, batch_of
from tests.kit.parts.handlers import Caller

ME, NEAR, ALSO_NEAR, FAR = 1, 2, 3, 4
RACKS = {ME: "a", NEAR: "b", ALSO_NEAR: "b", FAR: "c"}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log with ten records, led with all followers in the ISR; each has offsets 2 to 7."""
    home = LogHome(tmp_path)
    made = home.create()
    made.open()
    made.lead(5, {NEAR: -1, ALSO_NEAR: -1, FAR: -1}, [ME, NEAR, ALSO_NEAR, FAR])
    made.append(batch_of([b"x"] * 10), wait=False)
    for node_id in (NEAR, ALSO_NEAR, FAR):
        made.state.follower_fetched(node_id, -1, 8, 2, 1)
    yield made
    home.abandon()


def chosen(log: Log | None, offset: int, rack: str = "b", listener: str = "PLAINTEXT") -> int:
    image = MetadataImage("cluster")
    image.brokers = {
        each: Broker(
            each, (Endpoint("PLAINTEXT" if each != FAR else "INSIDE", "PLAINTEXT", "h", each),), RACKS[each], 1
        )
        for each in RACKS
    }
    services = SimpleNamespace(
        node_id=ME,
        cluster=SimpleNamespace(image=image),
        logs={} if log is None else {TOPIC_PARTITION: log},
        config={"broker.rack": RACKS[ME]},
        endpoints_for=lambda connection: Endpoint(connection.listener, "PLAINTEXT", "h", ME),
    )
    caller = cast(Any, Caller(listener))
    return read_replica_of(
        cast(Any, services), caller, TOPIC_PARTITION.topic, TOPIC_PARTITION.partition_id, rack, offset
    )


def test_a_replica_of_the_rack_is_chosen_that_is_in_sync_and_has_the_offset(log: Log) -> None:
    assert [chosen(log, offset) for offset in (1, 2, 8, 9)] == [NO_REPLICA, ALSO_NEAR, ALSO_NEAR, NO_REPLICA]
    log.state.follower_fetched(NEAR, -1, 10, 0, 1)
    assert [chosen(log, offset) for offset in (1, 2, 8, 9, 10, 11)] == [NEAR] * 5 + [NO_REPLICA]
    log.state.set_in_sync([ME, ALSO_NEAR], [ME, NEAR, ALSO_NEAR])
    assert [chosen(log, offset) for offset in (1, 2, 8, 9)] == [NO_REPLICA, ALSO_NEAR, ALSO_NEAR, NO_REPLICA]
    log.state.set_in_sync([ME], [ME])
    assert chosen(log, 2) == NO_REPLICA


def test_nobody_is_sent_to_a_replica_that_the_client_cannot_reach(log: Log) -> None:
    assert chosen(log, 2, "c") == NO_REPLICA
    assert chosen(log, 2, "c", "INSIDE") == FAR
    assert chosen(log, 2, "b", "INSIDE") == NO_REPLICA


def test_in_the_leaders_rack_in_an_unknown_one_and_without_a_lead_nobody_is_sent_away(log: Log) -> None:
    assert chosen(log, 2, "a") == chosen(log, 2, "d") == chosen(log, 2, "") == chosen(None, 2) == NO_REPLICA
    log.follow(6)
    assert chosen(log, 2) == NO_REPLICA
