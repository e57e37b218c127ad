"""A broker as the suite sees it: where it is, what it serves, topics for one test each."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kbroker.client import AdminClient, Producer
from kbroker.client.consumer.consumer import Consumer
from kbroker.client.errors import ClientError
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.wire import WireClient

SECONDS = 60.0

SETTINGS: dict[str, object] = {
    "num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "auto.create.topics.enable": "true",
    "delete.topic.enable": "true",
    "log.retention.ms": -1,  # records of tests have timestamps of any year
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.heartbeat.interval.ms": 300,
}


def eventually(holds: Callable[[], object]) -> None:
    """Wait until `holds` returns true: Apache Kafka answers before all of its parts know of a change."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@dataclass(frozen=True)
class Feature:
    """A feature of brokers that serve this version of this API."""

    api_key: ApiKey
    version: int
    since: str
    """The first release of Apache Kafka that serves it."""


class SuiteBroker:
    """One of the five brokers, running."""

    def __init__(self, name: str, process: BrokerProcess):
        self.name = name
        self.process = process
        self._numbers = itertools.count()
        with WireClient("127.0.0.1", process.port) as client:
            answer = client.call(ApiKey.API_VERSIONS, 0, M.ApiVersionsRequest())
        self._highest = {api.api_key: api.max_version for api in answer.api_keys}
        self.lists_files = any(api.api_key == ApiKey.LIST_OFFSETS and api.min_version == 0 for api in answer.api_keys)
        """Whether the broker serves ListOffsets 0, which answers with the base offsets of the log's files."""
        with self.admin() as admin:
            eventually(lambda: admin.describe_cluster().brokers)  # Kafka answers before it is in its own cluster

    @property
    def address(self) -> str:
        return self.process.address

    @property
    def port(self) -> int:
        return self.process.port

    def has(self, feature: Feature) -> bool:
        return self._highest.get(feature.api_key, -1) >= feature.version

    def need(self, feature: Feature) -> None:
        """Skip a test that is about this feature only, if the broker lacks it."""
        if not self.has(feature):
            what = f"{feature.api_key.label} {feature.version}"
            pytest.skip(f"{self.name} does not serve {what}, which came with Kafka {feature.since}")

    @contextlib.contextmanager
    def serving(self, feature: Feature) -> Iterator[None]:
        """A context manager around calls that need a feature. If it is lacking, the first must fail and say so."""
        if self.has(feature):
            yield
            return
        with pytest.raises(ClientError) as raised:
            yield
        assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION
        assert not raised.value.retriable
        assert feature.api_key.label in str(raised.value)

    # --- clients and topics ---------------------------------------------------------------------------------

    def admin(self, **options: Any) -> AdminClient:
        return AdminClient(bootstrap_servers=self.address, **options)

    def producer(self, **options: Any) -> Producer:
        """Make a producer; it is idempotent if the broker serves that, unless the options say otherwise."""
        served = {"enable_idempotence": ApiKey.INIT_PRODUCER_ID in self._highest}
        return Producer(bootstrap_servers=self.address, **(served | options))

    def consumer(self, **options: Any) -> Consumer:
        quick = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50}
        return Consumer(bootstrap_servers=self.address, **(quick | options))

    def unique(self, word: str) -> str:
        """Return a name that no other test uses."""
        return f"{word}-{next(self._numbers)}"

    def new_topic(self, partitions: int = 1, configs: dict[str, str] | None = None, word: str = "topic") -> str:
        name = self.unique(word)
        with self.admin() as admin:
            admin.create_topic(name, partitions, 1, configs)
        return name
