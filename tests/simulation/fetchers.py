"""A follower's fetchers over the virtual network, with the face of `surroundings.Fetchers`.

The real engine is compiled and has sockets of its own. This one asks for the same and appends with the same compiled
code; what follows an error is decided by the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.model import TopicPartition
from tests.simulation.network import Caller, Failure
from tests.simulation.scheduler import MS, SECOND

if TYPE_CHECKING:
    from tests.simulation.broker import Life

TIMEOUT = 5 * SECOND
PAUSE = 300 * MS


class Wanted(NamedTuple):
    """What a follower asks for, of one partition."""

    at: TopicPartition
    topic_id: Any
    node_id: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    last_epoch: int
    log_start: int


class Followed:
    """One partition that is fetched."""

    def __init__(self, at: TopicPartition, log: Any, leader_id: int, leader_epoch: int):
        self.at, self.log, self.leader_id, self.leader_epoch = at, log, leader_id, leader_epoch
        self.not_before = 0
        self.is_stuck = False
        """Nothing is fetched before the next `start`."""
        self.is_busy = False
        """A flush, or a question to the leader, is under way."""


class FetchLoop:
    """Fetches from one leader: one request at a time, for all partitions."""

    def __init__(self, life: Life, leader_id: int):
        self._life, self._leader_id = life, leader_id
        self.caller = Caller(life.network, life.process, f"b{leader_id}")
        self.partitions: dict[TopicPartition, Followed] = {}
        self._is_asking = False

    def wake(self, delay: int = 0) -> None:
        self._life.after(delay, self._ask)

    def _ask(self) -> None:
        life = self._life
        if self._is_asking or not self.partitions:
            return
        now = life.scheduler.now
        asked = [
            each
            for each in self.partitions.values()
            if not each.is_stuck and not each.is_busy and each.not_before <= now
        ]
        wanted = []
        for each in list(asked):
            state = each.log.state
            if state.state != "open":
                asked.remove(each)
                continue
            wanted.append(
                Wanted(
                    each.at, each.log.topic_id, life.node_id, life.metadata.broker_epoch, each.leader_epoch,
                    state.log_end_offset, each.log.epoch_at(state.log_end_offset - 1), state.log_start_offset,
                )
            )  # fmt: skip
        if not wanted:
            later = [each.not_before for each in self.partitions.values() if each.not_before > now]
            if later:
                self.wake(min(later) - now)
            return
        self._is_asking = True
        self.caller.call(("replica_fetch", wanted), lambda answers: self._answered(asked, wanted, answers), TIMEOUT)

    def _answered(self, asked: list[Followed], wanted: list[Wanted], answers: Any) -> None:
        self._is_asking = False
        life = self._life
        if isinstance(answers, Failure):
            self.wake(PAUSE)
            return
        for followed, want, answer in zip(asked, wanted, answers, strict=True):
            if self.partitions.get(followed.at) is followed and followed.log.state.log_end_offset == want.offset:
                life.kit.fetched(life, self, followed, answer)
        life.touched()
        self.wake(life.scheduler.chance.randrange(100, 2 * MS))

    def pause(self, followed: Followed, delay: int = PAUSE) -> None:
        followed.not_before = self._life.scheduler.now + delay
        self.wake(delay)


class Fetchers:
    """All that one broker fetches."""

    def __init__(self, life: Life):
        self._life = life
        self._loops: dict[int, FetchLoop] = {}

    def start(self, topic_partition: TopicPartition, log: Any, leader_id: int, leader_epoch: int) -> None:
        self.stop([topic_partition])
        loop = self._loops.get(leader_id)
        if loop is None:
            loop = self._loops[leader_id] = FetchLoop(self._life, leader_id)
        loop.partitions[topic_partition] = Followed(topic_partition, log, leader_id, leader_epoch)
        loop.wake()

    def stop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        for at in topic_partitions:
            for loop in self._loops.values():
                loop.partitions.pop(at, None)
