"""An Apache Kafka 3.9.1 and two kbrokers that have listeners of their own for each other and for the controller."""

from __future__ import annotations

from contextlib import ExitStack, closing

import pytest

from kbroker.client import AdminClient, Consumer, Producer
from kbroker.testing.reserved_port import ReservedPort
from tests.kit.cluster.cluster import Cluster
from tests.kit.cluster.nodes import Node

KAFKA, ONE, OTHER = 1, 2, 3
TOPIC, PARTITIONS, COUNT = "t", 6, 60
NAMES = ("CLIENT", "INSIDE", "CONTROL")


def separate_listeners(node: Node, stack: ExitStack) -> None:
    """Give a broker three listeners; the one for clients has the address that tests know."""
    with node.host.entered():
        ports = {name: ReservedPort(node.host.address) for name in NAMES[1:]}
    for port in ports.values():
        stack.callback(port.release)
    inside, control = (f"{name}://{node.host.address}:{port.port}" for name, port in ports.items())
    node.settings |= {
        "listeners": f"CLIENT://{node.address},{inside},{control}",
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in NAMES),
        "inter.broker.listener.name": "INSIDE",
        "control.plane.listener.name": "CONTROL",
    }


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_kafka_and_kbrokers_control_each_other_at_the_listener_of_the_control_plane() -> None:
    with ExitStack() as stack:
        settings = {"zookeeper.session.timeout.ms": 6000}
        cluster = stack.enter_context(closing(Cluster(("kafka", "kbroker", "kbroker"), settings)))
        for node in cluster.nodes.values():
            separate_listeners(node, stack)
        cluster.zookeeper.start()
        cluster.start([KAFKA])
        cluster.start([ONE, OTHER])
        cluster.await_settled()
        assert cluster.controller() == KAFKA
        stack.enter_context(cluster.entered())
        at = cluster.bootstrap_servers
        with AdminClient(bootstrap_servers=at) as admin:
            admin.create_topic(TOPIC, PARTITIONS, 3)
        write(at)
        for stopped in (ONE, KAFKA):
            # A kbroker asks the Kafka for its stop, then a kbroker takes the place of the Kafka as the controller.
            cluster.nodes[stopped].stop()
            write(at)
            cluster.start([stopped])
            cluster.await_settled()
        assert cluster.controller() in (ONE, OTHER)
        cluster.kill(KAFKA)
        write(at)
        cluster.start([KAFKA])
        cluster.await_settled()
        with Consumer(bootstrap_servers=at, group_id="g", auto_offset_reset="earliest") as reader:
            reader.subscribe(TOPIC)
            found = 0
            while found < 4 * COUNT:
                found += len(reader.poll(10))


def write(at: str) -> None:
    with Producer(bootstrap_servers=at) as producer:
        for number in range(COUNT):
            producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        producer.flush(60)
