"""One broker for each file of commands that need one, and what a cluster needs."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from kbroker.client import AdminClient
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.commands import Run, commands_here, commands_of


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as running:
        yield running


@pytest.fixture
def kbroker(broker: BrokerProcess) -> Run:
    """Commands as processes."""
    return commands_of(broker.address)


@pytest.fixture
def here(broker: BrokerProcess) -> Run:
    """Commands in this process."""
    return commands_here(broker.address)


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    """A new topic of three partitions."""
    name = f"topic-{uuid4().hex[:12]}"
    with AdminClient(bootstrap_servers=broker.address) as admin:
        admin.create_topic(name, 3)
    return name
