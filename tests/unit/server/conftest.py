from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.brokers.process import BrokerProcess
from tests.kit.brokers.small import SmallBroker
from tests.kit.clients.wire import WireClient


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallBroker]:
    """A broker without topics. A module that needs topics, or a whole broker, has its own fixture of that name."""
    with SmallBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def client(broker: SmallBroker | BrokerProcess) -> Iterator[WireClient]:
    with WireClient("127.0.0.1", broker.port) as client:
        yield client
