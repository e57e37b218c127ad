"""A broker for the tests of a file. It keeps records that are years old; topics are each test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.spark.workers import task_consumers
from kbroker.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"num.partitions": 2, "log.retention.ms": -1}) as found:
        yield found
    # A worker of Spark keeps its consumers as long as it lives; this process has other tests to run.
    idle = task_consumers._kept._idle
    while idle:
        idle.popitem()[1].close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a name of the test's own."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]
