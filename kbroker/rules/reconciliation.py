"""Takes one member of a consumer group from its current partitions to its target assignment (KIP-848).

    STABLE ----------- has to give up partitions ----------> UNREVOKED_PARTITIONS --.  (stays in its epoch until it says
      ^  ^---------- all partitions of its target are free ---------|               '-- that they are given up)
      |                                                             v
      '------------ the last partition is free now ------- UNRELEASED_PARTITIONS         (in the new epoch already)

A member gets a partition only after its owner has confirmed that it is given up, has left, or was removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.rules.consumer_group_member import (
    NO_PARTITIONS,
    Assignment,
    Claimed,
    Current,
    EpochsByPartition,
    MemberState,
)

IsOwned = Callable[[bytes, int], bool]
"""(topic id, partition) -> whether a member has the partition or still has to give it up."""


class Reconciliation:
    """One step of one member. `owned` are the partitions that the member says it has; None: it did not say."""

    def __init__(
        self,
        current: Current,
        target_epoch: int,
        target: Assignment,
        is_owned: IsOwned,
        owned: Claimed | None,
        subscribed: Collection[bytes],
    ):
        self._current = current
        self._epoch = target_epoch
        self._target = target
        self._is_owned = is_owned
        self._owned = owned
        self._subscribed = subscribed

    def next(self, subscription_changed: bool) -> Current:
        """The member's state after this step. It is `current` itself if the member can get no further.

        Raises ProtocolError (FENCED_MEMBER_EPOCH) if the member's state is not known, unless the member says that it
        has no partitions.
        """
        current = self._current
        if current.state is MemberState.STABLE:
            if current.member_epoch != self._epoch:
                return self._towards_target(current.member_epoch)
            return self._without_unsubscribed() if subscription_changed else current
        if current.state is MemberState.UNREVOKED_PARTITIONS:
            if self._still_owns(current.revoking):
                return self._without_unsubscribed() if subscription_changed else current
            return self._towards_target(current.member_epoch)
        if current.state is MemberState.UNRELEASED_PARTITIONS:
            return self._towards_target(current.member_epoch)
        if self._owned is None or self._owned:
            raise ProtocolError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in a unknown state. "
                "The member must abandon all its partitions and rejoin.",
            )
        return self._towards_target(self._epoch)

    def _still_owns(self, revoking: EpochsByPartition) -> bool:
        if self._owned is None:
            return True
        return any(
            any(partition in revoking[topic_id] for partition in partitions)
            for topic_id, partitions in self._owned.items()
            if topic_id in revoking
        )

    def _without_unsubscribed(self) -> Current:
        """The state in which the member gives up partitions of topics that it is not subscribed to any more."""
        current = self._current
        assigned = {topic_id: of for topic_id, of in current.assigned.items() if topic_id in self._subscribed}
        if len(assigned) == len(current.assigned):
            return current
        revoking = {topic_id: dict(of) for topic_id, of in current.revoking.items()}
        for topic_id, of_topic in current.assigned.items():
            if topic_id not in assigned:
                revoking.setdefault(topic_id, {}).update(of_topic)
        if self._still_owns(revoking):
            return self._step(MemberState.UNREVOKED_PARTITIONS, current.member_epoch, assigned, revoking)
        return self._step(current.state, current.member_epoch, assigned, current.revoking)

    def _towards_target(self, member_epoch: int) -> Current:
        current = self._current
        if self._has_its_target():
            return self._step(MemberState.STABLE, self._epoch, current.assigned, NO_PARTITIONS)
        assigned: dict[bytes, dict[int, int]] = {}
        revoking: dict[bytes, dict[int, int]] = {}
        pending: list[tuple[bytes, int]] = []
        is_waiting = False
        for topic_id in {**self._target, **current.assigned}:
            wanted = self._target.get(topic_id, frozenset()) if topic_id in self._subscribed else frozenset()
            having = current.assigned.get(topic_id, {})
            kept = {partition: epoch for partition, epoch in having.items() if partition in wanted}
            if kept:
                assigned[topic_id] = kept
            if len(kept) < len(having):
                revoking[topic_id] = {p: epoch for p, epoch in having.items() if p not in wanted}
            given_up = current.revoking.get(topic_id, {})
            for partition in wanted - kept.keys():
                if partition in given_up or not self._is_owned(topic_id, partition):
                    pending.append((topic_id, partition))
                else:
                    is_waiting = True
        if revoking and self._still_owns(revoking):
            return self._step(MemberState.UNREVOKED_PARTITIONS, member_epoch, assigned, revoking)
        for topic_id, partition in pending:
            assigned.setdefault(topic_id, {})[partition] = self._epoch
        state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
        return self._step(state, self._epoch, assigned, NO_PARTITIONS)

    def _has_its_target(self) -> bool:
        having, wanted = self._current.assigned, self._target
        return having.keys() == wanted.keys() and all(
            t in self._subscribed and partitions.keys() == wanted[t] for t, partitions in having.items()
        )

    def _step(
        self, state: MemberState, epoch: int, assigned: EpochsByPartition, revoking: EpochsByPartition
    ) -> Current:
        return Current(epoch, self._current.member_epoch, state, assigned, revoking)


def is_within(owned: Claimed | None, assigned: Mapping[bytes, Mapping[int, int]]) -> bool:
    """Whether the member says which partitions it has, and all of them are in `assigned`."""
    if owned is None:
        return False
    return all(
        all(partition in assigned.get(topic_id, {}) for partition in partitions)
        for topic_id, partitions in owned.items()
    )
