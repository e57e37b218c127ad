"""One Spark session for all, and one broker, which keeps what is years old: topics are each test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kbroker.testing import Broker
from tests.kit.spark.session import new_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    found = new_session(tmp_path_factory.mktemp("spark"))
    found.sparkContext.setLogLevel("ERROR")
    yield found
    found.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(settings={"num.partitions": 2, "log.retention.ms": -1}) as found:
        yield found


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of its own."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]
