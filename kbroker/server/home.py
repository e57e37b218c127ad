"""What a broker is in, as the rest of the broker sees it: `alone.Alone` or `member.Member`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from kbroker.cluster.cluster import Cluster
    from kbroker.cluster.controller import Controller
    from kbroker.cluster.peers import Peers
    from kbroker.cluster.producer_ids import AskController
    from kbroker.config.broker_config import BrokerConfig
    from kbroker.coordination.store import Store
    from kbroker.metrics.registry import Sample
    from kbroker.model import Endpoint, TopicPartition
    from kbroker.replication.hosted import Hosted
    from kbroker.replication.lead_checks import LeadChecks
    from kbroker.replication.partitions import ReplicatedPartitions
    from kbroker.replication.surroundings import RoleListeners
    from kbroker.server.control_lanes import ControlLanes
    from kbroker.server.local_partitions import LocalPartitions
    from kbroker.storage.directory import MetaProperties

OnStop = Callable[[str, Callable[[], object]], None]
"""Registers a call for the stop, which makes the calls in the reverse order."""


class OtherBrokers(NamedTuple):
    """What the coordinators of a member need of the cluster."""

    hosted: Callable[[TopicPartition], Hosted | None]
    """The role of a partition here."""
    peers: Peers
    """Connections that are used for nothing else: markers may wait long for replicas."""
    lead_checks: LeadChecks
    ask_controller: AskController


class Home(Protocol):
    """The cluster that a broker is or is in. The broker calls `open`, `attach`, `join`, in this order."""

    @property
    def node_id(self) -> int:
        """This broker's id; valid after `open`."""
        ...

    @property
    def cluster(self) -> Cluster: ...

    @property
    def session(self) -> Store:
        """The coordination store, for parts that keep no node of a session."""
        ...

    @property
    def partitions(self) -> ReplicatedPartitions | None:
        """The partitions of a member, valid after `attach`; None if the broker is alone."""
        ...

    @property
    def controller(self) -> Controller | None:
        """A member's controller, active or not; None if the broker is alone."""
        ...

    @property
    def others(self) -> OtherBrokers | None:
        """What the coordinators of a member need of other brokers; None if the broker is alone."""
        ...

    @property
    def measure(self) -> Callable[[], Iterator[Sample]] | None:
        """What `/metrics` tells of a member; None if the broker is alone."""
        ...

    @property
    def lanes(self) -> ControlLanes | None:
        """The threads of a member that serve requests between brokers; None if the broker is alone."""
        ...

    def open(self, identity: MetaProperties | None, on_stop: OnStop) -> None:
        """Open the coordination store and read what has to be opened. `identity` is that of the log directories."""
        ...

    def attach(self, partitions: LocalPartitions, listeners: RoleListeners) -> None:
        """Take the logs, which are open. `listeners` are told which partitions this broker leads."""
        ...

    def reachable(self, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Return the endpoints that others are told, for those where the broker listens or that were set."""
        ...

    def join(self, endpoints: Sequence[Endpoint]) -> None:
        """Become visible in the cluster under `endpoints`."""
        ...

    def await_told(self) -> None:
        """Wait, for a few seconds at most, until this broker knows the cluster. Requests are served already."""
        ...

    def leave(self) -> None:
        """Prepare to stop: hand over to others what they can take. Clients are still served."""
        ...

    def give_up(self) -> None:
        """Make a start that waits for others fail at once. May be called by any thread."""
        ...

    def take_config(self, config: BrokerConfig) -> None:
        """Use the settings that are in force after a dynamic change."""
        ...

    def directory_failed(self, directory: str, partitions: Sequence[TopicPartition]) -> None:
        """Take the partitions in a failed log directory offline."""
        ...

    def problems(self) -> list[str]:
        """Return what is amiss with this broker's place in the cluster, for `/ready`."""
        ...
