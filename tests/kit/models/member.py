"""A member's partitions, as the rules say it, one obvious sentence after the other."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.errors import ErrorCode

ME = 1
NO_EPOCH = -1


@dataclass
class ModelPartition:
    role: str
    leader: int
    leader_epoch: int
    partition_epoch: int
    waits: bool = False


class ModelMember:
    """What broker ME answers to control requests, and what becomes of its roles."""

    def __init__(self) -> None:
        self.controller_epoch = 0
        self.partitions: dict[int, ModelPartition] = {}
        self.live: frozenset[int] = frozenset()
        self.fetching: dict[int, tuple[int, int]] = {}

    def take_role(
        self, number: int, leader: int, leader_epoch: int, partition_epoch: int, replicas: tuple[int, ...]
    ) -> ErrorCode:
        known = self.partitions.get(number)
        epoch = known.leader_epoch if known else NO_EPOCH
        again = known is not None and known.waits and leader_epoch == epoch
        if leader_epoch <= epoch and not again:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if ME not in replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if known and partition_epoch < known.partition_epoch:
            return ErrorCode.NONE
        self.fetching.pop(number, None)
        role = "follower" if leader != ME else "leader" if len(replicas) > 1 else "alone"
        waits = role == "follower" and leader not in self.live
        self.partitions[number] = ModelPartition(role, leader, leader_epoch, partition_epoch, waits)
        if role == "follower" and not waits:
            self.fetching[number] = leader, leader_epoch
        return ErrorCode.NONE

    def stop(self, number: int, leader_epoch: int, deletes: bool) -> ErrorCode:
        known = self.partitions.get(number)
        if known and 0 <= leader_epoch < known.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        self.fetching.pop(number, None)
        if deletes:
            self.partitions.pop(number, None)
        elif known:
            known.waits = False
        return ErrorCode.NONE

    def hear_of(self, live: frozenset[int]) -> None:
        self.live = live
        for number, known in self.partitions.items():
            if known.waits and known.leader in live:
                known.waits = False
                self.fetching[number] = known.leader, known.leader_epoch
