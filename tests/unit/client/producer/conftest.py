"""What tests of transactions have in common; each module has a broker of its own."""

from __future__ import annotations

from uuid import uuid4

import pytest

from kbroker.testing import Broker


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> int:
    """The version of transactions."""
    return int(request.param)


@pytest.fixture
def topic(broker: Broker) -> str:
    broker.faults.clear()
    return f"t-{uuid4().hex[:8]}"
