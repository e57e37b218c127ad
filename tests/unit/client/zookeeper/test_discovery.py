"""Brokers found in a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.config.network import NETWORK
from kbroker.client.config.option import Options
from kbroker.client.config.parsing import parse_options
from kbroker.client.config.zookeeper import ZOOKEEPER
from kbroker.client.errors import ConnectionFailed
from kbroker.client.network.cluster import Cluster, begin
from kbroker.client.zookeeper.discovery import Discovery, registered_brokers
from kbroker.coordination.paths import BROKER_IDS, BrokerRegistration, broker_path, encode_broker
from kbroker.coordination.zookeeper import ZooKeeperStore
from kbroker.model import Endpoint
from tests.kit.brokers.whole import WholeBroker
from tests.kit.kafka.zookeeper import ZooKeeperProcess
from tests.kit.parts.processors import wait_until


def options_of(address: str, **more: Any) -> Options:
    return parse_options(NETWORK | ZOOKEEPER, None, {"zookeeper_connect": address, **more})


def await_brokers(is_so: Callable[[], bool]) -> None:
    wait_until(is_so, "the brokers are not as they should be", 30)


def registration(*endpoints: str) -> bytes:
    made = []
    for each in endpoints:
        protocol, _, place = each.partition("://")
        host, _, port = place.rpartition(":")
        made.append(Endpoint(protocol, protocol, host, int(port)))
    return encode_broker(BrokerRegistration(tuple(made), None, 0))


@pytest.fixture
def ids(tree: ZooKeeperStore) -> ZooKeeperStore:
    tree.create("/brokers")
    tree.create(BROKER_IDS)
    return tree


@pytest.fixture
def discovery_of(address: str) -> Iterator[Callable[..., Discovery]]:
    made: list[Discovery] = []

    def make(**more: Any) -> Discovery:
        made.append(Discovery(options_of(address, **more)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_brokers_come_in_order_of_their_ids_with_the_endpoint_of_the_wanted_protocol(ids: ZooKeeperStore) -> None:
    ids.create(broker_path(10), registration("PLAINTEXT://ten:1", "SSL://ten:2"))
    ids.create(broker_path(9), registration("SSL://nine:2", "PLAINTEXT://nine:1"))
    ids.create(broker_path(11), registration("SSL://eleven:2"))
    assert registered_brokers(ids, "PLAINTEXT") == (("nine", 1), ("ten", 1))
    assert registered_brokers(ids, "SSL") == (("nine", 2), ("ten", 2), ("eleven", 2))
    assert registered_brokers(ids, "SASL_SSL") == ()


def test_registrations_of_kafka_0_8_are_plaintext(ids: ZooKeeperStore) -> None:
    ids.create(broker_path(1), b'{"jmx_port":-1,"timestamp":"1","host":"old","version":1,"port":9092}')
    assert registered_brokers(ids, "PLAINTEXT") == (("old", 9092),)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"endpoints":["x"]}', b'{"host":"a","port":"x"}', b"\xff", b"[" * 100_000]
)
def test_a_registration_that_cannot_be_read_is_left_out(ids: ZooKeeperStore, data: bytes) -> None:
    ids.create(broker_path(1), data)
    ids.create(broker_path(2), registration("PLAINTEXT://good:1"))
    assert registered_brokers(ids, "PLAINTEXT") == (("good", 1),)


def test_what_is_registered_is_followed(ids: ZooKeeperStore, discovery_of: Callable[..., Discovery]) -> None:
    found = discovery_of()
    assert found.brokers == ()
    ids.create(broker_path(1), registration("PLAINTEXT://one:1"))
    await_brokers(lambda: found.brokers == (("one", 1),))
    ids.create(broker_path(2), registration("PLAINTEXT://two:2"))
    await_brokers(lambda: found.brokers == (("one", 1), ("two", 2)))
    ids.set(broker_path(1), registration("PLAINTEXT://moved:1"))
    await_brokers(lambda: found.brokers == (("moved", 1), ("two", 2)))
    ids.delete(broker_path(1))
    await_brokers(lambda: found.brokers == (("two", 2),))


def test_a_chroot_that_comes_later_is_seen(address: str, discovery_of: Callable[..., Discovery]) -> None:
    found = discovery_of()
    assert found.brokers == ()
    store = ZooKeeperStore(address, 10)
    try:
        store.make_chroot()
        store.create("/brokers")
        store.create(BROKER_IDS)
        store.create(broker_path(1), registration("PLAINTEXT://one:1"))
        await_brokers(lambda: found.brokers == (("one", 1),))
    finally:
        store.close()


def test_a_session_that_has_expired_is_followed_by_another(
    zookeeper: ZooKeeperProcess, ids: ZooKeeperStore, discovery_of: Callable[..., Discovery]
) -> None:
    found = discovery_of()
    before = found._session.store
    zookeeper.expire(before)
    ids.create(broker_path(1), registration("PLAINTEXT://one:1"))
    await_brokers(lambda: found.brokers == (("one", 1),))
    assert found._session.store is not before
    ids.create(broker_path(2), registration("PLAINTEXT://two:2"))
    await_brokers(lambda: len(found.brokers) == 2)


def test_a_client_moves_to_the_broker_that_is_registered_now(
    ids: ZooKeeperStore, address: str, broker: WholeBroker, tmp_path: Path, discovery_of: Callable[..., Discovery]
) -> None:
    def call() -> list[int]:
        answer = cluster.network.thread.call(cluster.retried(lambda: cluster.metadata([])))
        return [each.port for each in answer.brokers]

    cluster: Cluster = begin(options_of(address))
    try:
        with WholeBroker(tmp_path) as first:
            ids.create(broker_path(1), registration(f"PLAINTEXT://127.0.0.1:{first.port}"))
            found = discovery_of()
            found.feed(cluster)
            assert call() == [first.port]
        ids.set(broker_path(1), registration(f"PLAINTEXT://127.0.0.1:{broker.port}"))
        assert call() == [broker.port]
    finally:
        cluster.network.thread.stop()


def test_without_a_zookeeper_the_error_says_what_to_look_at() -> None:
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1.*zookeeper\.connect"):
        Discovery(options_of("127.0.0.1:1", zookeeper_connection_timeout_ms=1_000))


@pytest.mark.parametrize("address", ["host:x", "host:1/a//b", ":"])
def test_an_address_that_is_none_names_the_option(address: str) -> None:
    with pytest.raises(ValueError, match=r"zookeeper\.connect"):
        Discovery(options_of(address, zookeeper_connection_timeout_ms=1_000))
