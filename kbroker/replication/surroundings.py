"""What the partitions of a member need of the rest of the broker. The simulator has its own of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias
from uuid import UUID

from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.messages import Message


class FollowerState(Protocol):
    """What the leader's log knows of a follower; see `rules.in_sync.Follower`."""

    @property
    def node_id(self) -> int: ...
    @property
    def broker_epoch(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def last_caught_up_ms(self) -> int: ...
    @property
    def in_sync(self) -> bool: ...


class ReplicaState(Protocol):
    """The part of `PartitionState` that a leader's ISR is told to and read from."""

    @property
    def log_end_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def epoch_start_offset(self) -> int: ...
    def set_in_sync(self, committed: Collection[int], maximal: Collection[int]) -> None: ...
    def set_live(self, node_ids: Collection[int]) -> None: ...
    def take_ready(self) -> Collection[int]:
        """Return the node ids of followers that may be let in by what they have fetched since the last call."""
        ...

    def followers(self) -> Sequence[FollowerState]: ...


class ReplicaLog(Protocol):
    """The part of `storage.Log` that gives a partition its role."""

    @property
    def topic_id(self) -> UUID: ...
    @property
    def state(self) -> ReplicaState: ...
    @property
    def is_complete(self) -> bool:
        """Whether the log has every record that was committed when it was used last, as far as this broker knows.

        Valid when `open` has been called.
        """
        ...

    def open(self) -> None:
        """Open the log, and recover it if need be. Raises StorageFailed, DiskDamaged."""
        ...

    def find_damage(self, offset: int) -> int | None:
        """Return the offset of the first damaged batch in the segment that has `offset`; None without one.

        Raises StorageFailed.
        """
        ...

    def note_damage(self, offset: int) -> None:
        """Trust the log only below `offset`: it is not complete."""
        ...

    def mend(self) -> None:
        """Cut off what is damaged: the rest comes from the leader. Then the log is complete. Raises StorageFailed."""
        ...

    def accept(self) -> None:
        """Take the log for complete as it is. Raises StorageFailed, DiskDamaged if it cannot be opened."""
        ...

    def lead(self, epoch: int, followers: Mapping[int, int], in_sync: Collection[int]) -> object:
        """Lead from now on. The epoch begins at the log's end.

        `followers`: broker epochs by node id, -1 if unknown. Raises StorageFailed, DiskDamaged.
        """
        ...

    def follow(self, epoch: int) -> None:
        """Follow from now on; appends of clients end with NOT_LEADER_OR_FOLLOWER. Raises StorageFailed, DiskDamaged."""
        ...

    def be_alone(self, epoch: int) -> None:
        """Lead without followers from now on. Raises StorageFailed, DiskDamaged."""
        ...

    def stop_replica(self) -> None:
        """Serve nothing from now on."""
        ...


class LogHost(Protocol):
    """The logs on this broker's disks."""

    def get(self, topic_partition: TopicPartition) -> ReplicaLog | None: ...
    def expect(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Note durably which of these logs are lost, before they are made anew: they should be there."""
        ...

    def open_or_create(self, topic: str, topic_id: UUID, partition_id: int, *, is_new: bool) -> ReplicaLog:
        """Return the partition's log, made if there is none.

        `is_new`: the partition has never had a log here, so it is made in a good directory even if another has failed;
        else a log that is not found is taken to be in the failed one. Raises StorageFailed; DiskDamaged; ProtocolError
        (INCONSISTENT_TOPIC_ID) if the log is that of another topic of this name.
        """
        ...

    def delete(self, topic_partition: TopicPartition) -> None:
        """Delete the log; no-op if there is none. Raises StorageFailed."""
        ...

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Return whether the partition's log is in a directory that has failed."""
        ...


class Fetchers(Protocol):
    """What fetches from leaders for the partitions that this broker follows."""

    def start(self, topic_partition: TopicPartition, log: ReplicaLog, leader_id: int, leader_epoch: int) -> None:
        """Fetch from this leader, from the log's end on, until `stop`."""
        ...

    def stop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching for these, if it is done. On return nothing is appended for them any more."""
        ...


class RoleListeners(Protocol):
    """Whoever has to know which partitions this broker leads: the coordinators.

    Called in the order of the changes, by one thread at a time, and before the controller has its answer. A call must
    not wait. An epoch never goes back for one partition, but for one that has been deleted and made again.
    """

    def leads(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """This broker leads in `leader_epoch`; perhaps it led already, in an epoch before."""
        ...

    def follows(self, topic_partition: TopicPartition, leader_epoch: int) -> None: ...
    def gone(self, topic_partition: TopicPartition) -> None:
        """This broker has no usable log of the partition any more: it is deleted, or its directory has failed."""
        ...


Answered: TypeAlias = Callable[[Message | None, int], None]
"""Called once with the answer and the request's version; (None, -1) if there is no answer and none will come. It may be
called on any thread, also before the asking call returns."""


class AskController(Protocol):
    """Sends requests to the broker that is the controller."""

    def __call__(self, make: Callable[[int], Message], api_key: int, highest_version: int, answered: Answered) -> None:
        """Send `make(version)` to the controller, in the highest version up to `highest_version` that it serves."""
        ...


class Metadata(Protocol):
    """The metadata of this member: `cluster.shared_topics.SharedTopics`."""

    @property
    def broker_epoch(self) -> int:
        """The creation id of this broker's registration; -1 while it has none."""
        ...

    def update(self, request: M.UpdateMetadataRequest) -> Collection[int]:
        """Apply UpdateMetadata. Returns the ids of the brokers that are alive now."""
        ...
