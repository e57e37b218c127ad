"""Whole brokers, in this process, as members of one cluster in a real ZooKeeper."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kbroker.coordination.zookeeper import ZooKeeperStore
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.brokers.whole import WholeBroker
from tests.kit.kafka.zookeeper import ZooKeeperProcess
from tests.kit.parts.processors import wait_until

WAIT_S = 30.0
SESSION_MS = 6_000
COUNT = itertools.count()


class Members:
    """Members of one cluster, in a chroot of its own, and a session that looks on."""

    def __init__(self, server: ZooKeeperProcess, folder: Path):
        self.server = server
        self.address = f"{server.address}/members/{next(COUNT)}"
        self.folder = folder
        self.running: dict[int, WholeBroker] = {}
        self.store = ZooKeeperStore(self.address, WAIT_S)

    def made(self, node_id: int, **settings: object) -> WholeBroker:
        given: dict[str, object] = {
            "zookeeper.connect": self.address,
            "zookeeper.session.timeout.ms": SESSION_MS,
            "broker.id": node_id,
            "log.dirs": self.folder / str(node_id),
            "num.io.threads": 2,
            "offsets.topic.num.partitions": 2,
            **{name.replace("__", "."): value for name, value in settings.items()},
        }
        return WholeBroker(self.folder, given)

    def start(self, node_id: int, **settings: object) -> WholeBroker:
        broker = self.made(node_id, **settings)
        broker.__enter__()
        self.running[node_id] = broker
        return broker

    def start_all(self, *ids: int) -> None:
        """Start members, and wait until they know each other and one of them is the controller."""
        for node_id in ids:
            self.start(node_id)
        self.settle(*ids)
        await_that(lambda: any(self.cluster(each).is_controller for each in ids))

    def stop(self, node_id: int) -> None:
        self.running.pop(node_id).__exit__(None, None, None)

    def cluster(self, node_id: int) -> Any:
        return self.running[node_id].broker._cluster

    def settle(self, *ids: int) -> None:
        """Wait until these brokers are the cluster, and each of them knows it."""
        await_that(lambda: all(set(self.cluster(each).image.brokers) == set(ids) for each in ids))

    @property
    def controller(self) -> WholeBroker:
        return next(each for each in self.running.values() if each.broker._cluster.is_controller)

    def leader_of(self, topic: str, partition_id: int) -> WholeBroker | None:
        """Return the broker that leads, once all replicas are in sync and all members know it; else None."""
        at = TopicPartition(topic, partition_id)
        told = {self.cluster(each).image.partition(at) for each in self.running}
        if len(told) != 1 or None in told:
            return None
        (known,) = told
        broker = self.running.get(known.leader)
        hosted = None if broker is None else broker.broker._home.partitions.get(at)
        is_led = hosted is not None and (hosted.leader, hosted.leader_epoch) == (known.leader, known.leader_epoch)
        return broker if is_led and set(hosted.isr) == set(known.isr) == set(known.replicas) else None

    def create(self, name: str, partitions: int, factor: int, **configs: str) -> Any:
        wanted = M.CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=factor,
            configs=[
                M.CreateTopicsRequest.CreatableTopicConfig(name=key.replace("__", "."), value=value)
                for key, value in configs.items()
            ],
        )
        request = M.CreateTopicsRequest(topics=[wanted], timeout_ms=20_000)
        return self.controller.call(ApiKey.CREATE_TOPICS, 5, request).topics[0]

    def close(self) -> None:
        for node_id in list(self.running):
            self.stop(node_id)
        self.store.close()


def await_that(is_so: Callable[[], bool]) -> None:
    wait_until(is_so, "what is awaited", WAIT_S)
