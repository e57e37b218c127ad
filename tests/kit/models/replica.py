"""The obvious model of a leader's followers, its high watermark, and the acks that wait for it. Slow, and plain."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

UNKNOWN = -1


@dataclass
class Follower:
    """Another replica, as the leader knows it. Times in ms."""

    end: int = UNKNOWN
    fetched_ms: int = 0
    leader_end: int = UNKNOWN
    """The leader's end at its last fetch."""
    caught_up_ms: int = 0


@dataclass
class Leader:
    """The leader of a partition."""

    min_in_sync: int
    lag_ms: int
    replicas: set[int] = field(default_factory=set)
    """The others."""
    end: int = 0
    high_watermark: int = 0
    epoch_start: int = 0
    committed: set[int] = field(default_factory=set)
    """The ISR, without the leader."""
    maximal: set[int] = field(default_factory=set)
    live: set[int] = field(default_factory=set)
    followers: dict[int, Follower] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    """The last offsets of appends that wait for replicas."""
    now_ms: int = 1000

    @property
    def needed(self) -> int:
        return min(self.min_in_sync, len(self.replicas) + 1)

    def lead(self, replicas: Collection[int], in_sync: Collection[int], *, is_new: bool) -> None:
        """Begin an epoch, as the leader of before or as a new one."""
        before = {} if is_new else self.followers
        self.followers = {}
        for node in replicas:
            follower = Follower(caught_up_ms=self.now_ms if node in in_sync else 0)
            if node in before and node in in_sync:
                follower.end = before[node].end
                follower.leader_end = self.end
                follower.fetched_ms = self.now_ms
            self.followers[node] = follower
        self.live = {node for node in replicas if node in in_sync or (node in self.live and node in before)}
        self.replicas, self.committed, self.maximal = set(replicas), set(in_sync), set(in_sync)
        self.epoch_start = self.end
        self.settle()

    def append(self, count: int) -> bool:
        """Append with acks of all. False: refused, because the ISR is too small."""
        if len(self.committed) + 1 < self.needed:
            return False
        self.end += count
        self.waiting.append(self.end - 1)
        self.settle()
        return True

    def fetch(self, node: int, offset: int) -> None:
        follower = self.followers[node]
        if offset >= self.end:
            follower.caught_up_ms = max(follower.caught_up_ms, self.now_ms)
        elif offset >= follower.leader_end:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        follower.leader_end = max(follower.leader_end, self.end)
        follower.fetched_ms = self.now_ms
        moved = follower.end != offset
        follower.end = offset
        if moved:
            self.settle()

    def may_be_let_in(self, node: int) -> bool:
        end = self.followers[node].end
        return node not in self.maximal and node in self.live and end >= max(self.high_watermark, self.epoch_start)

    def counts(self, node: int) -> bool:
        """Whether the high watermark waits for this replica."""
        follower = self.followers[node]
        is_caught_up = follower.end == self.end or self.now_ms - follower.caught_up_ms <= self.lag_ms
        return node in self.maximal or (node in self.live and is_caught_up)

    def settle(self) -> None:
        if len(self.committed) + 1 < self.needed:
            return
        ends = [self.end, *(each.end for node, each in self.followers.items() if self.counts(node))]
        self.high_watermark = max(self.high_watermark, min(ends))

    def take_acks(self) -> list[int]:
        """Return the last offsets of the appends that are acknowledged now, in order."""
        done = [offset for offset in self.waiting if offset < self.high_watermark]
        self.waiting = [offset for offset in self.waiting if offset >= self.high_watermark]
        return done
