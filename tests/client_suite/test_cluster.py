"""Connecting, and what a broker says about itself and its cluster."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kbroker.client import AdminClient, ErrorCode, PartialFailure, TopicPartitionReplica
from kbroker.client.admin.results import ReplicaLogDir
from kbroker.client.errors import BrokerError
from tests.client_suite.features import FEATURES, LOG_DIRS, MOVING_REPLICAS
from tests.client_suite.suite_broker import SuiteBroker, eventually
from tests.kit.brokers.process import BrokerProcess
from tests.kit.proxies.dropping import DroppingProxy


def test_the_cluster_tells_of_its_broker(broker: SuiteBroker, admin: AdminClient) -> None:
    described = admin.describe_cluster()
    (node,) = described.brokers
    assert (node.host, node.port, node.rack) == ("127.0.0.1", broker.port, None)
    assert described.cluster_id
    assert described.controller_id == node.node_id


def test_a_name_with_addresses_where_nobody_listens_is_connected_to(broker: SuiteBroker) -> None:
    with AdminClient(bootstrap_servers=f"localhost:{broker.port}") as admin:
        assert admin.list_topics() is not None


def test_of_several_servers_one_is_enough(broker: SuiteBroker) -> None:
    with AdminClient(bootstrap_servers=["127.0.0.1:1", broker.address], reconnect_backoff_ms=1) as admin:
        admin.check_connection()
        assert len(admin.describe_cluster().brokers) == 1


def test_features_are_told(broker: SuiteBroker, admin: AdminClient) -> None:
    with broker.serving(FEATURES):
        found = admin.describe_features()
        assert set(found.finalized) <= set(found.supported)
        assert all(
            lowest <= found.finalized.get(name, lowest) <= highest
            for name, (lowest, highest) in found.supported.items()
        )


def test_log_directories_are_told(broker: SuiteBroker, admin: AdminClient) -> None:
    name = broker.new_topic(2)
    (node,) = admin.describe_cluster().brokers

    def replicas() -> dict[int, int]:
        (directory,) = admin.describe_log_dirs()[node.node_id]
        assert (directory.path, directory.error) == (str(broker.process.data), None)
        return {at.partition_id: each.size for at, each in directory.replicas.items() if at.topic == name}

    with broker.serving(LOG_DIRS):
        replicas()
        eventually(lambda: replicas() == {0: 0, 1: 0})
        with pytest.raises(BrokerError, match=f"broker {node.node_id + 7} is not in the cluster"):
            admin.describe_log_dirs([node.node_id + 7])


def test_where_replicas_lie_is_told_and_they_are_moved(broker: SuiteBroker, admin: AdminClient) -> None:
    """Replicas move within one directory here; tests/oracle/test_client_log_dirs.py moves them between directories."""
    name = broker.new_topic(1)
    (node,) = admin.describe_cluster().brokers
    replica, missing = TopicPartitionReplica(name, 0, node.node_id), TopicPartitionReplica(name, 7, node.node_id)
    with broker.serving(LOG_DIRS):
        eventually(lambda: replica.topic in {at.topic for at in admin.describe_log_dirs()[node.node_id][0].replicas})
        found = admin.describe_replica_log_dirs([replica])
        assert found == {replica: ReplicaLogDir(str(broker.process.data), 0, None, -1)}
        with pytest.raises(PartialFailure, match="REPLICA_NOT_AVAILABLE") as partly:
            admin.describe_replica_log_dirs([replica, missing])
        assert set(partly.value.errors) == {missing}
    with broker.serving(MOVING_REPLICAS):
        admin.alter_replica_log_dirs({replica: str(broker.process.data)})
        with pytest.raises(BrokerError) as refused:
            admin.alter_replica_log_dirs({(name, 0, node.node_id): "/nowhere"})
        assert refused.value.code == ErrorCode.LOG_DIR_NOT_FOUND


def test_a_load_balancer_may_stand_before_the_brokers(broker: SuiteBroker) -> None:
    """The load balancer is only the first address: brokers tell clients their own."""
    with DroppingProxy(broker.port) as balancer, AdminClient(bootstrap_servers=f"127.0.0.1:{balancer.port}") as admin:
        (node,) = admin.describe_cluster().brokers
        assert node.port == broker.port
        name = broker.unique("balanced")
        admin.create_topic(name, 1, 1)
        balancer.drop(1.0, random.Random(1))
        assert name in admin.list_topics()


def test_a_load_balancer_may_be_what_brokers_advertise(tmp_path: Path) -> None:
    """A connection that the load balancer has dropped is made again."""
    with DroppingProxy() as balancer:
        advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{balancer.port}"}
        with BrokerProcess(advertised, tmp_path) as behind:
            balancer.target_port = behind.port
            with AdminClient(bootstrap_servers=f"127.0.0.1:{balancer.port}", reconnect_backoff_ms=1) as admin:
                assert [node.port for node in admin.describe_cluster().brokers] == [balancer.port]
                for number in range(5):
                    admin.create_topic(f"balanced-{number}", 1, 1)
                    balancer.drop(1.0, random.Random(number))
                    assert f"balanced-{number}" in admin.list_topics()
