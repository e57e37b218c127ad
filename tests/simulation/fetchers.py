"""A follower's fetch engine over the virtual network.

The real engine (`_core/replica`) is compiled and has sockets of its own. This one asks leaders for the same, appends
with the same compiled code, and tells of trouble as that one does; what follows is the real driver's
(`replication/fetchers`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker._core.replica.followed import FollowedLag, ReplicaTrouble
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

    def __init__(self, at: TopicPartition, log: Any, leader_epoch: int):
        self.at, self.log, self.leader_epoch = at, log, leader_epoch
        self.not_before = 0
        self.is_stuck = False
        """Nothing is fetched before somebody says so."""
        self.is_busy = False
        """A flush is under way, before which the leader must not be told of the log's end."""


class VirtualEngine:
    """Fetches from one leader: one request at a time, for all partitions; a `replication.fetchers.FetchEngine`."""

    def __init__(self, life: Life, leader_id: int):
        self._life = life
        self.caller = Caller(life.network, life.process, f"b{leader_id}")
        self.partitions: dict[TopicPartition, Followed] = {}
        self._is_asking = False
        self.on_told: Callable[[], object] | None = None
        self._news: list[ReplicaTrouble] = []

    def follow(self, state: Any, topic_id: bytes, leader_epoch: int) -> None:
        at = TopicPartition(state.topic, state.partition_id)
        self.partitions[at] = Followed(at, self._life.logs.get(at), leader_epoch)
        self.wake()

    def wake(self, delay: int = 0) -> None:
        self._life.after(delay, self._ask)

    def _ask(self) -> None:
        life = self._life
        if self._is_asking or not self.partitions:
            return
        now = life.scheduler.now
        asked = []
        for each in self.partitions.values():
            is_due = not each.is_stuck and not each.is_busy and each.not_before <= now
            if is_due and each.log.state.state == "open":
                asked.append(each)
        if not asked:
            later = [each.not_before for each in self.partitions.values() if each.not_before > now]
            if later:
                self.wake(min(later) - now)
            return
        wanted = [
            Wanted(
                each.at, each.log.topic_id, life.node_id, life.metadata.broker_epoch, each.leader_epoch,
                each.log.state.log_end_offset, each.log.newest_epoch, each.log.state.log_start_offset,
            )
            for each in asked
        ]  # fmt: skip
        self._is_asking = True
        self.caller.call(("replica_fetch", wanted), lambda answers: self._answered(asked, wanted, answers), TIMEOUT)

    def _answered(self, asked: list[Followed], wanted: list[Wanted], answers: Any) -> None:
        self._is_asking = False
        life = self._life
        if isinstance(answers, Failure):
            self.wake(PAUSE)
            return
        life.set_clock()
        for followed, want, answer in zip(asked, wanted, answers, strict=True):
            if self.partitions.get(followed.at) is followed and followed.log.state.log_end_offset == want.offset:
                life.kit.fetched(life, self, followed, answer)
        life.touched()
        self.wake(life.scheduler.chance.randrange(100, 2 * MS))

    def pause(self, followed: Followed, delay: int = PAUSE) -> None:
        followed.not_before = self._life.scheduler.now + delay
        self.wake(delay)

    def forget(self, state: Any) -> None:
        self.partitions.pop(TopicPartition(state.topic, state.partition_id), None)

    def resume(self, state: Any, leader_epoch: int, after_ms: int = 0) -> None:
        followed = self.partitions.get(TopicPartition(state.topic, state.partition_id))
        if followed is not None and followed.leader_epoch == leader_epoch:
            followed.is_stuck = False
            self.pause(followed, after_ms * MS)

    def tell(self, followed: Followed, kind: str, error: int = 0, diverging: tuple[int, int] = (-1, -1)) -> None:
        """Stop fetching the partition until `resume`, and tell the driver why."""
        followed.is_stuck = True
        at = followed.at
        offset = followed.log.state.log_end_offset
        trouble = ReplicaTrouble(at.topic, at.partition_id, kind, followed.leader_epoch, error, offset, *diverging, -1)
        self._news.append(trouble)
        assert self.on_told is not None
        self.on_told()

    def take_news(self) -> list[ReplicaTrouble]:
        news, self._news = self._news, []
        return news

    def lag(self) -> list[FollowedLag]:
        return []
