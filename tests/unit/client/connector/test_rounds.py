"""Connectors made and shut down over and over."""

from __future__ import annotations

import gc
import re
import resource
import socket
import threading
from collections.abc import Callable

import pytest

from kbroker.client import ConsumerConnector, Producer
from kbroker.testing import Broker
from tests.kit.clients.connectors import QUICK
from tests.kit.kafka.zookeeper import ZooKeeperProcess
from tests.kit.parts.processors import wait_until

SECONDS = 60.0
ROUNDS = 1000
WARM = 100  #: rounds after which what is made once has been made


def connections(zookeeper: ZooKeeperProcess) -> int:
    """How many the server has, without the one that asks."""
    with socket.create_connection(("127.0.0.1", zookeeper.port), timeout=SECONDS) as asking:
        asking.sendall(b"srvr")
        said = b"".join(iter(lambda: asking.recv(4096), b""))
    found = re.search(rb"Connections: (\d+)", said)
    assert found is not None, said
    return int(found[1]) - 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_rounds_leave_nothing_behind(zookeeper: ZooKeeperProcess, descriptors: Callable[[], int]) -> None:
    address = f"{zookeeper.address}/rounds"

    def once(number: int) -> None:
        producer.send("rounds", b"%d" % number, partition=number % 2).result(SECONDS)
        with ConsumerConnector(zookeeper_connect=address, group_id="rounds", **QUICK) as connector:
            if number % 3:
                (stream,) = connector.create_message_streams({"rounds": 1})["rounds"]
            else:
                (stream,) = connector.create_message_streams_by_filter(white_list="round.*")
            assert next(stream).value == b"%d" % number

    def left() -> dict[str, int]:
        gc.collect()
        threads = [each for each in threading.enumerate() if each.name.startswith(("kbroker-", "zookeeper"))]
        return {"threads": len(threads), "descriptors": descriptors(), "sessions": connections(zookeeper)}

    def memory() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    settings = {"zookeeper.connect": address, "num.partitions": 2}
    with Broker(settings=settings) as broker, Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(WARM):
            once(number)
        before, nodes, peak = left(), zookeeper.nodes().keys(), memory()
        for number in range(WARM, ROUNDS):
            once(number)
        wait_until(lambda: all(now <= before[name] for name, now in left().items()), f"more than {before}", SECONDS)
        assert zookeeper.nodes().keys() == nodes
        assert memory() - peak < 30 << 10
