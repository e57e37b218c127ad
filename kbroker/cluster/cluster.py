"""The cluster as request handlers and coordinators see it: its metadata, and the changes that a client may ask for.

Two classes have it. `topics.Topics` is for a broker that is alone, whose store is its own. `shared_topics.SharedTopics`
is for a member of a cluster in ZooKeeper, whose controller makes the changes, on this broker or on another one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from kbroker.cluster.image import MetadataImage, Topic
from kbroker.cluster.new_topics import MorePartitions, NewTopic
from kbroker.errors import ProtocolError
from kbroker.model import TopicPartition

TopicResult = Topic | ProtocolError
Answered = Callable[[list[TopicResult]], None]
"""Called once with a result for each topic that was asked for, in their order: the topic after the change (for a
deletion: before it), or the error. A broker that is alone calls it before the method returns. A member calls it later,
from a thread of its own, which it must not block."""


class Cluster(Protocol):
    """The public face of `Topics` and `SharedTopics`. Any thread may call it; calls that change something may block."""

    @property
    def image(self) -> MetadataImage:
        """The metadata now. Take it once per request."""
        ...

    @property
    def untold(self) -> Collection[str]:
        """Topics that there were when the broker started, and of which the controller has told nothing yet.

        Take it before `image`: a topic that is told of comes into the image first.
        """
        ...

    @property
    def node_id(self) -> int: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def is_alone(self) -> bool:
        """Whether this broker is the whole cluster, with a store of its own."""
        ...

    @property
    def is_controller(self) -> bool:
        """Whether this broker is the controller, so that changes of topics may be asked from it."""
        ...

    @property
    def only_kbrokers(self) -> bool:
        """Whether all registered brokers are kbrokers, so that features that Kafka 3.9 does not have are served."""
        ...

    def on_kind_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` when `only_kbrokers` changes. It must not block."""
        ...

    @property
    def controller_id(self) -> int:
        """The controller's broker id; -1 while there is none."""
        ...

    @property
    def controller_epoch(self) -> int:
        """The newest controller epoch that this broker knows."""
        ...

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration; -1 before it is registered."""
        ...

    @property
    def change_count(self) -> int:
        """How often the image has changed since the start."""
        ...

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of `image`. It must not block: changes wait for it."""
        ...

    def owner_of(self, topic_partition: TopicPartition) -> Topic | None:
        """The topic of a log found on disk, also one whose deletion has begun; None if it belongs to no topic."""
        ...

    # --- topics ---------------------------------------------------------------------------------------------------

    def create_topics(
        self, wanted: Sequence[NewTopic], timeout_ms: int, answered: Answered, *, validate_only: bool = False
    ) -> None:
        """Create topics, whose names must be distinct."""
        ...

    def create_partitions(
        self, wanted: Sequence[MorePartitions], timeout_ms: int, answered: Answered, *, validate_only: bool = False
    ) -> None:
        """Add partitions to topics, whose names must be distinct."""
        ...

    def delete_topics(self, names: Sequence[str], timeout_ms: int, answered: Answered) -> None:
        """Delete topics, whose names must be distinct."""
        ...

    def await_leaders(
        self, leaders: Mapping[TopicPartition, int], timeout_ms: int, shown: Callable[[frozenset[TopicPartition]], None]
    ) -> None:
        """Call `shown` once the metadata has these leaders, or when the time is over, with partitions it lacks them of.

        It is called as `Answered` is.
        """
        ...

    def ensure(self, names: Iterable[str]) -> list[TopicResult]:
        """Return the topics of these names, each once. Missing ones are created with the broker's defaults first.

        A topic that is just being created is LEADER_NOT_AVAILABLE on a member: the caller asks again.
        """
        ...

    # --- configs --------------------------------------------------------------------------------------------------

    def set_topic_configs(self, name: str, change: Callable[[Topic], Mapping[str, str]]) -> None:
        """Replace a topic's own configs by those that `change` returns for it. If `change` raises, nothing changes."""
        ...

    def set_broker_configs(self, entity: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Do what `set_topic_configs` does, for dynamic configs of a broker (its id) or all (paths.DEFAULT_ENTITY)."""
        ...

    def set_group_configs(self, group_id: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Do what `set_topic_configs` does, for the configs of a group, whether the group exists or not.

        Raises ProtocolError (INVALID_REQUEST) while a member of the cluster is a Kafka, which has none.
        """
        ...

    def dynamic_broker_configs(self) -> dict[str, str]:
        """Return the dynamic configs that hold for this broker: its own, and those of all brokers where it has none."""
        ...

    def rebase_broker_configs(self, rebase: Callable[[Mapping[str, str]], None]) -> None:
        """Call `rebase` with this broker's dynamic configs, which do not change meanwhile."""
        ...
