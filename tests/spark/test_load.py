"""Topics into a lake, without Spark: what is in it afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.client import AdminClient
from kbroker.testing import Broker
from tests.kit.load import fill, load, on_broker, visible


@pytest.fixture
def servers(broker: Broker) -> str:
    return broker.bootstrap_servers


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def create(servers: str, topic: str, partitions: int = 2, **configs: object) -> None:
    with AdminClient(bootstrap_servers=servers) as admin:
        admin.create_topic(
            topic, partitions, configs={name.replace("_", "."): value for name, value in configs.items()}
        )


def test_every_load_adds_what_is_new(servers: str, topic: str, lake: Path) -> None:
    create(servers, topic)
    fill(servers, topic, 2, 200)
    first = load(lake, servers, topic)
    assert (first.rows, first.commits) == (400, [1])
    assert visible(lake) == on_broker(servers, topic)
    assert load(lake, servers, topic).commits == []
    fill(servers, topic, 2, 100, start=200)
    assert load(lake, servers, topic).rows == 200
    assert visible(lake) == on_broker(servers, topic)
