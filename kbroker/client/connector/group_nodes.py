"""The nodes of one group below /consumers: members, owners and offsets, in the layout of Kafka 0.8."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from kbroker.client.connector.subscription import Subscription, decode_subscription
from kbroker.client.errors import ClientError
from kbroker.client.zookeeper.session import Session
from kbroker.coordination import paths
from kbroker.coordination.parcels import parcels
from kbroker.coordination.store import (
    Create,
    Delete,
    NodeExists,
    NoNode,
    Operation,
    SetData,
    Store,
    StoreError,
    Watcher,
    parent_of,
)
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition

log = logging.getLogger("kbroker.client")

LOOK_AGAIN_S = 0.2
"""The time between two looks whether the node of an earlier session has gone."""


class StillOwned(Exception):
    """Raised when another member owns a partition that is claimed."""


class AlreadyRegistered(ClientError):
    """Raised when another consumer of the group has this consumer.id."""

    code = ErrorCode.DUPLICATE_RESOURCE
    hint = "give each consumer of a group a consumer.id of its own, or none"


class GroupNodes:
    """Reads and writes the nodes of a group by the current session. Methods raise the store's exceptions."""

    def __init__(self, session: Session, group: str, consumer_id: str):
        self.consumer_id = consumer_id
        self._session = session
        root = f"{paths.CONSUMERS}/{group}"
        self._ids, self._owners, self._offsets = f"{root}/ids", f"{root}/owners", f"{root}/offsets"
        self._claimed: set[TopicPartition] = set()  # partitions for which this member may have an owner node

    @property
    def _store(self) -> Store:
        return self._session.store

    # --- members --------------------------------------------------------------------------------------------

    def register(self, subscription: Subscription, patience_s: float, wait: Callable[[float], bool]) -> None:
        """Register this member.

        A node of the same name may be left by an earlier session. Raises AlreadyRegistered when it is not gone within
        `patience_s` seconds, or when `wait(seconds)` returns True: the member is to stop.
        """
        path = f"{self._ids}/{self.consumer_id}"
        self._session.store.make_chroot()
        self._make(self._ids, self._owners, self._offsets)
        deadline = time.monotonic() + patience_s
        while True:
            try:
                data = subscription.encode(int(time.time() * 1000))
                self._store.create(path, data, ephemeral=True)
                return
            except NodeExists:
                found = self._store.exists(path)
                if found is not None and found.owner == self._store.session_id:
                    return  # the answer to an earlier attempt was lost
            if time.monotonic() > deadline or wait(LOOK_AGAIN_S):
                raise AlreadyRegistered(f"{path}: there is such a consumer already")

    def members(self, watch: Watcher) -> dict[str, Subscription]:
        """Return the subscriptions of all members, by member id. `watch` is called when a member comes or goes.

        Returns {} when somebody has deleted the group's nodes; then nothing is watched. Raises StoreCorrupt when a
        member's node is not a subscription.
        """
        found = {}
        try:
            names = self._store.children(self._ids, watch)
        except NoNode:
            return {}
        places = [f"{self._ids}/{name}" for name in names]
        for name, path, node in zip(names, places, self._store.get_many(places), strict=True):
            if node is not None:
                found[name] = decode_subscription(path, node[0])
        return found

    def topics(self, watch: Watcher) -> list[str]:
        """Return the names of all topics. `watch` is called when one comes or goes."""
        try:
            return self._store.children(paths.TOPICS, watch)
        except NoNode:
            if self._store.exists(paths.TOPICS, watch) is None:
                return []
            return self._store.children(paths.TOPICS, watch)

    def partitions(self, topics: Iterable[str], watch: Watcher) -> dict[str, list[int]]:
        """Return the partition numbers of topics; [] for one that does not exist. `watch` is called on changes."""
        return {topic: self._partitions_of(paths.topic_path(topic), watch) for topic in topics}

    def _partitions_of(self, path: str, watch: Watcher) -> list[int]:
        try:
            return sorted(paths.decode_topic(path, self._store.get(path, watch)[0]).replicas)
        except NoNode:
            if self._store.exists(path, watch) is None:
                return []
            return self._partitions_of(path, watch)

    # --- owners ---------------------------------------------------------------------------------------------

    def claim(self, wanted: Mapping[TopicPartition, str]) -> None:
        """Own all of these partitions, or none.

        Raises StillOwned, which names the owner, when another member owns one of them.
        """
        self._make(*{self._owner_path(partition).rpartition("/")[0] for partition in wanted})
        self._claimed.update(wanted)
        made: list[TopicPartition] = []
        left = {self._owner_path(partition): partition for partition in wanted}
        try:
            while left:
                operations = [
                    Create(path, wanted[partition].encode(), ephemeral=True) for path, partition in left.items()
                ]
                parcel = next(parcels(operations))
                try:
                    self._store.multi(parcel)
                except NodeExists as conflict:
                    owner = self._owner(conflict.path)
                    if owner is not None:
                        raise StillOwned(f"{left[conflict.path]} is owned by {owner}") from None
                    if self._is_ours(conflict.path):  # the answer to an earlier attempt was lost
                        made.append(left.pop(conflict.path))
                else:
                    made += [left.pop(each.path) for each in parcel]
        except StillOwned:
            self.release(made)
            self._claimed.difference_update(wanted)
            raise

    def _owner(self, path: str) -> str | None:
        """Return the owner that a node names; None when the node is gone or belongs to this session."""
        try:
            data, stat = self._store.get(path)
        except NoNode:
            return None
        return None if stat.owner == self._store.session_id else data.decode("utf-8", "replace")

    def _is_ours(self, path: str) -> bool:
        found = self._store.exists(path)
        return found is not None and found.owner == self._store.session_id

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Delete the owner nodes of partitions."""
        self._do([Delete(self._owner_path(partition)) for partition in partitions], NoNode)
        self._claimed.difference_update(partitions)

    def release_all_but(self, owned: Collection[TopicPartition]) -> None:
        """Delete this session's other owner nodes, left by calls that the store has not answered."""
        left = list(self._claimed.difference(owned))
        nodes = self._store.get_many([self._owner_path(partition) for partition in left])
        session_id = self._store.session_id
        ours = [
            each for each, node in zip(left, nodes, strict=True) if node is not None and node[1].owner == session_id
        ]
        self.release(ours)
        self._claimed.intersection_update(owned)

    def unregister(self) -> None:
        """Delete this member's registration."""
        self._do([Delete(f"{self._ids}/{self.consumer_id}")], NoNode)

    def _owner_path(self, partition: TopicPartition) -> str:
        return f"{self._owners}/{partition.topic}/{partition.partition_id}"

    # --- offsets --------------------------------------------------------------------------------------------

    def offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the committed offsets. A partition without one is left out."""
        wanted = {self._offset_path(partition): partition for partition in partitions}
        found = {}
        for (path, partition), node in zip(wanted.items(), self._store.get_many(list(wanted)), strict=True):
            if node is not None:
                offset = paths.decode_consumer_offset(path, node[0])
                if offset >= 0:
                    found[partition] = offset
        return found

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets, as decimal text like Kafka's consumer."""
        changes = {
            self._offset_path(partition): paths.encode_consumer_offset(offset) for partition, offset in offsets.items()
        }
        there = self._store.get_many(list(changes))
        new = {path for path, node in zip(changes, there, strict=True) if node is None}
        self._make(*{parent_of(path) for path in new})
        self._do([Create(path, changes[path]) for path in new], NodeExists)
        self._do([SetData(path, data) for path, data in changes.items() if path not in new], NoNode)

    def _offset_path(self, partition: TopicPartition) -> str:
        return f"{self._offsets}/{partition.topic}/{partition.partition_id}"

    # --- shared ---------------------------------------------------------------------------------------------

    def _make(self, *wanted: str) -> None:
        """Create persistent nodes and their parents, as far as they are missing."""
        every = {path for each in wanted for path in _with_parents(each)}
        ordered = sorted(every)
        missing = [path for path, node in zip(ordered, self._store.get_many(ordered), strict=True) if node is None]
        for path in missing:
            self._do([Create(path)], NodeExists)

    def _do(self, operations: list[Operation], may_fail: type[StoreError]) -> None:
        """Do the operations in as few transactions as possible.

        If a transaction fails with an error in `may_fail`, its operations are done one by one, and those that fail with
        such an error are skipped.
        """
        for parcel in parcels(operations):
            try:
                self._store.multi(parcel)
            except StoreError as error:
                if not isinstance(error, may_fail):
                    raise
                for each in parcel:
                    try:
                        self._store.multi([each])
                    except StoreError as single:
                        if not isinstance(single, may_fail):
                            raise


def _with_parents(path: str) -> Iterable[str]:
    while path != "/":
        yield path
        path = parent_of(path)
