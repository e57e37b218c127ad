from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol.api import ApiKey
from tests.kit.parts.cluster import Cluster
from tests.kit.parts.handlers import Caller, call, services_on

Ask = Callable[..., Any]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture
def ask(cluster: Cluster) -> Ask:
    """A function: ask(api key, version, message) returns the broker's answer."""
    services = services_on(cluster)

    def ask(api_key: ApiKey, version: int, message: Any, caller: Caller | None = None) -> Any:
        return call(services, api_key, version, message, caller)

    return ask
