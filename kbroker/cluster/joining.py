"""Decides whether a broker may join the cluster in a ZooKeeper. Pure functions: what was read goes in.

A broker that joins with a wrong listener does not only fail itself: a controller that does not find its own
inter-broker listener in a registration notices no change of brokers any more. So the checks come before the
registration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.coordination.paths import BrokerRegistration, ControllerRegistration, FeatureNode
from kbroker.errors import ConfigError
from kbroker.model import Endpoint
from kbroker.net.endpoints import is_loopback
from kbroker.rules.topic_names import listed

SUPPORTED_FEATURES: Mapping[str, int] = {}
"""The highest level of each feature of a cluster that this release knows; Kafka 3.9 finalizes none in ZooKeeper."""
MOST_NAMES = 5
"""How many names one message gives."""


class CannotJoin(ConfigError):
    """This broker must not join the cluster in this ZooKeeper, or cannot; the message says why and what to do."""


class InterBrokerListeners(NamedTuple):
    """The names of the listeners that brokers use among themselves; `control_plane` "" is none of its own."""

    inter_broker: str
    control_plane: str = ""


def check_tree(features: FeatureNode | None, controller: ControllerRegistration | None, *, has_migration: bool) -> None:
    """Raise CannotJoin if the cluster has finalized a feature that is not known here, or if KRaft takes it over."""
    if has_migration or (controller is not None and controller.kraft_controller_epoch > 0):
        raise CannotJoin("the cluster is on its way to KRaft, where a kbroker cannot go along")
    if features is None or not features.is_enabled:
        return
    unknown = [
        f"{name}={level}"
        for name, level in sorted(features.features.items())
        if level > SUPPORTED_FEATURES.get(name, -1)
    ]
    if unknown:
        raise CannotJoin(f"the cluster has finalized features that are not known here: {listed(unknown, MOST_NAMES)}")


def check_cluster_id(there: str | None, known: str | None) -> None:
    """Raise CannotJoin if the log directories belong to the cluster `known`, and the tree does not hold it."""
    if known is None or known == there:
        return
    if there is None:
        raise CannotJoin(
            f"the log directories belong to cluster {known} (meta.properties), and it holds no cluster: is the chroot "
            "right? Topics of a broker without ZooKeeper are carried there by `kbroker cluster export`"
        )
    raise CannotJoin(
        f"it holds cluster {there}, and the log directories belong to cluster {known} (meta.properties): give another "
        "chroot, or other log directories"
    )


def check_listeners(
    endpoints: Sequence[Endpoint], names: InterBrokerListeners, others: Mapping[int, BrokerRegistration]
) -> None:
    """Raise CannotJoin unless this broker and the registered `others`, by id, can find each other's listeners.

    Every other broker must have this broker's inter-broker listener, with the same security protocol. And this broker
    must have each listener that all others have, since one of these is the listener on which they look for it.
    """
    protocols = {each.listener: each.security_protocol for each in endpoints}
    of_others = {
        node_id: {each.listener: each.security_protocol for each in other.endpoints}
        for node_id, other in others.items()
    }
    for name, setting in (
        (names.inter_broker, "inter.broker.listener.name"),
        (names.control_plane, "control.plane.listener.name"),
    ):
        without = [node_id for node_id, theirs in of_others.items() if name and name not in theirs]
        if without:
            raise CannotJoin(
                f"listener {name} ({setting}, or security.inter.broker.protocol) is not one of {_brokers(without)}, "
                f"which has {listed(sorted(of_others[min(without)]), MOST_NAMES)}: the brokers of a cluster use one "
                "listener among themselves"
            )
        different = [node_id for node_id, theirs in of_others.items() if name and theirs[name] != protocols.get(name)]
        if different:
            raise CannotJoin(
                f"listener {name} has security protocol {protocols.get(name)} here and "
                f"{of_others[min(different)][name]} on {_brokers(different)}"
            )
    shared = set.intersection(*map(set, of_others.values())) if of_others else set()
    missing = sorted(shared - protocols.keys())
    if missing:
        raise CannotJoin(
            f"listener {listed(missing, MOST_NAMES)} is missing here, and {_brokers(of_others)} has it: a controller "
            "that looks for this broker on it would notice no change of brokers any more; add it to listeners"
        )


def check_addresses(
    endpoints: Sequence[Endpoint], names: InterBrokerListeners, others: Mapping[int, BrokerRegistration]
) -> None:
    """Raise CannotJoin if only this machine reaches this broker, and the registered `others`, by id, are elsewhere.

    They would take it for live, give it replicas, and never reach it. Looked at are the addresses for brokers and for
    the controller; those for clients may be anywhere.
    """
    for name in filter(None, names):
        local = next((each for each in endpoints if each.listener == name and is_loopback(each.host)), None)
        elsewhere = {node_id: there for node_id, there in _addresses(name, others) if not is_loopback(there.host)}
        if local is not None and elsewhere:
            raise CannotJoin(
                f"advertised.listeners (or listeners) has {local}, which only this machine reaches, and "
                f"{_brokers(elsewhere)} is elsewhere, at {elsewhere[min(elsewhere)]}: give listener {name} an address "
                "that the others can connect to"
            )


def only_local(
    endpoints: Sequence[Endpoint], names: InterBrokerListeners, others: Mapping[int, BrokerRegistration]
) -> list[int]:
    """Return the ids of `others` that only their own machine reaches; none if only this machine reaches this broker."""
    return sorted(
        {
            node_id
            for name in filter(None, names)
            if any(each.listener == name and not is_loopback(each.host) for each in endpoints)
            for node_id, there in _addresses(name, others)
            if is_loopback(there.host)
        }
    )


def _addresses(listener: str, others: Mapping[int, BrokerRegistration]) -> list[tuple[int, Endpoint]]:
    return [
        (node_id, each)
        for node_id, other in sorted(others.items())
        for each in other.endpoints
        if each.listener == listener
    ]


def same_address(endpoints: Sequence[Endpoint], others: Mapping[int, BrokerRegistration]) -> int | None:
    """Return the id of a registered broker that has an address of these endpoints; None if none has."""
    ours = {(each.host, each.port) for each in endpoints}
    for node_id, other in sorted(others.items()):
        if any((each.host, each.port) in ours for each in other.endpoints):
            return node_id
    return None


def _brokers(ids: Mapping[int, object] | Sequence[int]) -> str:
    return "broker " + listed(list(map(str, sorted(ids))), MOST_NAMES)
