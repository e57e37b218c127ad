"""What every file of unit tests may have, and what holds for it: it leaves nothing running behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.kafka import maven
from tests.kit.kafka.zookeeper import zookeeper_jars

END_S = 30.0


@pytest.fixture(scope="module", autouse=True)
def threads_that_end() -> Iterator[None]:
    """A client that nobody closed goes on connecting, and draws random numbers in the middle of other tests."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + END_S
    for thread in set(threading.enumerate()) - before:
        thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive(), f"{thread.name} is left"


@pytest.fixture(scope="session")
def jars() -> Path:
    """The folder of ZooKeeper's jars."""
    try:
        return zookeeper_jars()
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))
