"""What a cluster's tree in ZooKeeper must look like when nothing happens to the cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from tests.kit.kafka.zookeeper import Nodes

STATE = re.compile(r"/brokers/topics/([^/]+)/partitions/(\d+)/state")
TOPIC = re.compile(r"/brokers/topics/([^/]+)")
PENDING = ("/admin/delete_topics/", "/admin/reassign_partitions", "/admin/preferred_replica_election")
"""Nodes that the controller removes when it has done what they ask for."""


class Partition(NamedTuple):
    """A partition, by its topic's assignment and its state."""

    topic: str
    index: int
    replicas: list[int]
    state: dict[str, Any] | None


def partitions(nodes: Nodes) -> Iterator[Partition]:
    """Yield all partitions of all topics."""
    for path, node in nodes.items():
        found = TOPIC.fullmatch(path)
        if found is not None:
            for index, replicas in json.loads(node.data)["partitions"].items():
                state = nodes.get(f"{path}/partitions/{index}/state")
                yield Partition(found[1], int(index), replicas, json.loads(state.data) if state is not None else None)


def brokers(nodes: Nodes) -> set[int]:
    """Return the ids of the registered brokers."""
    return {int(path.rpartition("/")[2]) for path in nodes if path.startswith("/brokers/ids/")}


def unrest(nodes: Nodes, expected: Collection[int]) -> str:
    """Return what is still to happen until all brokers are there and every replica is in sync; "" for nothing."""
    away = sorted(set(expected) - brokers(nodes))
    if away:
        return f"not registered: {away}"
    if "/controller" not in nodes:
        return "no controller"
    for one in partitions(nodes):
        name = f"{one.topic}-{one.index}"
        if one.state is None:
            return f"{name} has no state"
        if one.state["leader"] < 0:
            return f"{name} has no leader"
        if set(one.state["isr"]) != set(one.replicas):
            return f"{name}: in sync {one.state['isr']} of {one.replicas}"
    pending = [path for path in nodes if path.startswith(PENDING)]
    return f"pending: {pending}" if pending else ""


def problems(nodes: Nodes) -> list[str]:
    """Return what no cluster may leave in ZooKeeper once it is at rest."""
    wrong = []
    registered = brokers(nodes)
    epoch = int(nodes["/controller_epoch"].data)
    controller = nodes.get("/controller")
    if controller is None or json.loads(controller.data)["brokerid"] not in registered:
        wrong.append(f"the controller {controller and controller.data!r} is none of the brokers {registered}")
    for one in partitions(nodes):
        name, state = f"{one.topic}-{one.index}", one.state
        if state is None:
            wrong.append(f"{name} has no state")
            continue
        if len(set(one.replicas)) != len(one.replicas):
            wrong.append(f"{name}: replicas {one.replicas}")
        if not set(state["isr"]) <= set(one.replicas) or len(set(state["isr"])) != len(state["isr"]):
            wrong.append(f"{name}: in sync {state['isr']} of {one.replicas}")
        if state["leader"] not in state["isr"] or state["leader"] not in registered:
            wrong.append(f"{name}: leader {state['leader']}, in sync {state['isr']}, registered {sorted(registered)}")
        if state["controller_epoch"] > epoch:
            wrong.append(f"{name}: controller epoch {state['controller_epoch']}, which is {epoch}")
        if state["version"] != 1 or state.get("leader_recovery_state"):
            wrong.append(f"{name}: state {state}")
    for path, node in nodes.items():
        found = STATE.fullmatch(path)
        topic = nodes.get(f"/brokers/topics/{found[1]}") if found is not None else None
        if found is not None and (topic is None or found[2] not in json.loads(topic.data)["partitions"]):
            wrong.append(f"{path} has no topic or is no partition of it")
        if path.startswith(("/isr_change_notification/", "/log_dir_event_notification/")):
            wrong.append(f"{path} was never removed")
        if TOPIC.fullmatch(path):
            told = json.loads(node.data)
            if told.get("adding_replicas") or told.get("removing_replicas"):
                wrong.append(f"{path}: a reassignment has not ended: {node.data!r}")
            if f"/config/topics/{path.rpartition('/')[2]}" not in nodes:
                wrong.append(f"{path} has no settings")
    return wrong
