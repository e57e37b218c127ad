"""Client quotas of an Apache Kafka, which a member finds in the tree and tells of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.cluster import members
from kbroker.cluster.client_quotas import ClientQuotas
from kbroker.coordination import paths
from kbroker.coordination.embedded import EmbeddedStore, store_path
from kbroker.coordination.store import Store

A_QUOTA = paths.encode_config({"consumer_byte_rate": "1024"})
NO_QUOTA = paths.encode_config({})
PASSWORD = paths.encode_config({"SCRAM-SHA-256": "salt=,stored_key=,server_key=,iterations=4096"})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    embedded = EmbeddedStore(store_path(str(tmp_path)))
    session = embedded.connect()
    members.ensure_layout(session)
    yield session
    embedded.stop()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Where the log has told of quotas since the last call."""

    def take() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return [line.partition("(")[2].partition(")")[0] for line in lines]

    return take


def test_quotas_are_told_when_they_are_found_once_for_each_kind(store: Store, told: Callable[[], list[str]]) -> None:
    for path, data in {
        "/config/clients/a": NO_QUOTA,
        "/config/clients/rubbish": b"{",
        "/config/ips/10.0.0.1": A_QUOTA,
        "/config/users/u": PASSWORD,
        "/config/users/u/clients": b"",
        "/config/users/u/clients/<default>": A_QUOTA,
    }.items():
        store.create(path, data)
    quotas = ClientQuotas()
    quotas.look(store)
    assert told() == ["/config/users, /config/ips"]
    quotas.look(store)
    assert told() == []
    store.set("/config/clients/a", A_QUOTA)
    quotas.look_if_changed(store, ["topics/a", "brokers/1"])
    assert told() == []
    quotas.look_if_changed(store, ["topics/a", "clients/a"])
    assert told() == ["/config/clients"]
    quotas.look_if_changed(store, ["clients/a", "ips/10.0.0.1"])
    assert told() == []


def test_passwords_of_users_are_no_quotas(store: Store, told: Callable[[], list[str]]) -> None:
    store.create("/config/users/u", PASSWORD)
    ClientQuotas().look(store)
    assert told() == []


def test_a_tree_that_no_kafka_has_used_has_no_quotas(store: Store, told: Callable[[], list[str]]) -> None:
    for root in ("/config/clients", "/config/users", "/config/ips"):
        store.delete(root)
    ClientQuotas().look(store)
    assert told() == []
