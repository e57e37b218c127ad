"""Plans which brokers have the replicas of which partitions, when brokers come or go or replicas are to be spread anew.

A plan moves as little as it can. A replica stays where it is unless its broker has to be left, another replica of the
partition is in its rack while a rack has none, or its broker has so much more than another that the move brings both
nearer to the average. Bytes come first; numbers of replicas are evened while bytes stay as even as they have to be.
Replicas of a partition are in as many racks as they can be. Pure functions of their arguments.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from kbroker.errors import KbrokerError
from kbroker.model import TopicPartition

Replicas = tuple[int, ...]


MOST_UNEVEN = 10
"""Two brokers are even enough if their difference is at most this part of what a broker has on average: less is not
worth its copying."""


class CannotPlan(KbrokerError):
    """The replicas cannot be placed as asked for; the message says why."""


class Placed(NamedTuple):
    """A partition with its replicas, the preferred leader first. `size` is the bytes of one replica."""

    partition: TopicPartition
    replicas: Replicas
    size: int


class Move(NamedTuple):
    """A partition whose replicas change."""

    placed: Placed
    replicas: Replicas

    @property
    def added(self) -> tuple[int, ...]:
        return tuple(each for each in self.replicas if each not in self.placed.replicas)

    @property
    def removed(self) -> tuple[int, ...]:
        return tuple(each for each in self.placed.replicas if each not in self.replicas)

    @property
    def copied_bytes(self) -> int:
        """The bytes that are copied to brokers for it."""
        return len(self.added) * self.placed.size


def plan_moves(
    partitions: Iterable[Placed],
    racks: Mapping[int, str | None],
    *,
    replication_factor: int | None = None,
) -> list[Move]:
    """Return the moves after which only the brokers in `racks` have replicas, and each has its share.

    `racks` has the rack of each broker that may have replicas. `replication_factor` replaces the number of replicas
    that each partition has now. Raises CannotPlan if there are fewer brokers than replicas of one partition.
    """
    given = list(partitions)
    plan = _Plan(racks)
    for each in sorted(given, key=lambda each: (-each.size, each.partition)):
        count = len(each.replicas) if replication_factor is None else replication_factor
        if count > len(racks):
            raise CannotPlan(f"{each.partition}: {count} replicas need as many brokers, and there are {len(racks)}")
        plan.take(each, count)
    plan.fill()
    plan.spread_over_racks()
    plan.even_out()
    plan.spread_leaders()
    return [
        Move(each, plan.replicas[each.partition]) for each in given if plan.replicas[each.partition] != each.replicas
    ]


class _Plan:
    """Replicas while they are being placed, and what each broker has of them."""

    def __init__(self, racks: Mapping[int, str | None]):
        self.replicas: dict[TopicPartition, Replicas] = {}
        # A broker without a rack is a rack of its own.
        self._racks: Mapping[int, str | int] = {each: each if rack is None else rack for each, rack in racks.items()}
        self._sizes: dict[TopicPartition, int] = {}
        self._missing: list[tuple[TopicPartition, int]] = []
        self._bytes: dict[int, int] = dict.fromkeys(racks, 0)
        self._counts: dict[int, int] = dict.fromkeys(racks, 0)
        self._here: dict[int, set[TopicPartition]] = {each: set() for each in racks}
        # By giver and taker, for the pairs that were asked for: what may move, by size. `_replace` keeps it right.
        self._movable: dict[int, dict[int, list[tuple[int, TopicPartition]]]] = {each: {} for each in racks}

    def take(self, placed: Placed, count: int) -> None:
        """Keep up to `count` of the partition's replicas that are on brokers of the plan; `fill` adds the others."""
        self._sizes[placed.partition] = placed.size
        kept = [each for each in placed.replicas if each in self._racks]
        while len(kept) > count:
            shared = Counter(self._racks[each] for each in kept)
            # The preferred leader stays; of the others the one that shares its rack with most goes first.
            kept.remove(max(kept[1:], key=lambda each: (shared[self._racks[each]], kept.index(each))))
        self.replicas[placed.partition] = ()
        for each in kept:
            self._add(placed.partition, each)
        self._missing.append((placed.partition, count - len(kept)))

    def fill(self) -> None:
        """Place the missing replicas: in a rack that has none of the partition, on the broker that has least."""
        for partition, missing in self._missing:
            for _ in range(missing):
                used = {self._racks[each] for each in self.replicas[partition]}
                candidates = [each for each in self._racks if each not in self.replicas[partition]]
                self._add(partition, min(candidates, key=lambda each: (self._racks[each] in used, *self._load(each))))

    def spread_over_racks(self) -> None:
        """Move one of the replicas that share a rack to a rack that has none, while there is one; no preferred leader.

        It leaves the broker that has most of those that share, for the one that has least.
        """
        for partition in self.replicas:
            while True:
                replicas = self.replicas[partition]
                shared = Counter(self._racks[each] for each in replicas)
                givers = [each for each in replicas[1:] if shared[self._racks[each]] > 1]
                takers = [each for each, rack in self._racks.items() if rack not in shared]
                if not givers or not takers:
                    break
                self._replace(partition, max(givers, key=self._load), min(takers, key=self._load))

    def even_out(self) -> None:
        """Move replicas from brokers that have much to brokers that have little, while that brings both nearer."""
        while self._even_out_once(self._bytes, _enough(self._bytes), self._move_for_bytes):
            pass
        while self._even_out_once(self._counts, 1, self._move_for_numbers):
            pass

    def spread_leaders(self) -> None:
        """Make another replica the preferred leader where a broker is that of more partitions than its share."""
        led: Counter[int] = Counter(replicas[0] for replicas in self.replicas.values() if replicas)
        while self._spread_leaders_once(led):
            pass

    def _spread_leaders_once(self, led: Counter[int]) -> bool:
        """Change the preferred leaders of partitions where that helps; False: it helps nowhere. `led`: how many now."""
        most, helped = math.ceil(len(self.replicas) / max(1, len(self._racks))), False
        for partition, replicas in self.replicas.items():
            if not replicas or led[replicas[0]] <= most:
                continue
            leader = min(replicas, key=lambda each: (led[each], replicas.index(each)))
            if led[leader] + 1 < led[replicas[0]]:
                led[replicas[0]] -= 1
                led[leader] += 1
                self.replicas[partition] = (leader, *(each for each in replicas if each != leader))
                helped = True
        return helped

    def _even_out_once(self, load: Mapping[int, int], enough: int, move: Callable[[int, int, int], bool]) -> bool:
        """Make the one move that helps most between the broker with the most and one with less; False: none helps.

        A difference of at most `enough` stays. `move` gets two brokers and their gap, and returns whether it has moved.
        """
        by_load = sorted(self._racks, key=lambda each: (load[each], each))
        for giver in reversed(by_load):
            for taker in by_load:
                gap = load[giver] - load[taker]
                if gap <= enough:
                    break
                if move(giver, taker, gap):
                    return True
        return False

    def _move_for_bytes(self, giver: int, taker: int, gap: int) -> bool:
        partition = _nearest_to_half(self._movable_to(giver, taker), gap)
        if partition is None:
            return False
        self._replace(partition, giver, taker)
        return True

    def _move_for_numbers(self, giver: int, taker: int, gap: int) -> bool:
        """Move the smallest partition: one without bytes always, another one if `gap` is worth its copying.

        The bytes have to stay as even as they are, or as even as is enough. And no move by bytes may help afterwards:
        the next plan would have something to move again.
        """
        size, partition = next(iter(self._movable_to(giver, taker)), (0, None))
        if partition is None or (size and gap <= _enough(self._counts)):
            return False
        most, least = max(self._bytes.values()), min(self._bytes.values())
        then = max(most, self._bytes[taker] + size) - min(least, self._bytes[giver] - size)
        if size and then > max(most - least, _enough(self._bytes)):
            return False
        self._replace(partition, giver, taker)
        if size and self._bytes_are_uneven(partition, giver, taker):
            self._replace(partition, taker, giver)
            return False
        return True

    def _bytes_are_uneven(self, partition: TopicPartition, giver: int, taker: int) -> bool:
        """Whether a move by bytes helps now that a replica has moved from `giver` to `taker`, if none helped before."""
        enough = _enough(self._bytes)
        pairs = [(each, giver) for each in self._racks]
        pairs += [(each, other) for each in {taker, *self.replicas[partition]} for other in self._racks]
        gaps = ((one, other, self._bytes[one] - self._bytes[other]) for one, other in pairs)
        return any(gap > enough and _nearest_to_half(self._movable_to(one, other), gap) for one, other, gap in gaps)

    def _movable_to(self, giver: int, taker: int) -> list[tuple[int, TopicPartition]]:
        """Return the sizes and partitions, in their order, whose replicas on `giver` may move to `taker`."""
        if taker not in self._movable[giver]:
            self._movable[giver][taker] = sorted(
                (self._sizes[each], each)
                for each in self._here[giver] - self._here[taker]
                if self._keeps_racks(each, giver, taker)
            )
        return self._movable[giver][taker]

    def _lists_with(self, partition: TopicPartition) -> Iterator[list[tuple[int, TopicPartition]]]:
        """The lists of `_movable` in which the partition belongs, by the replicas that it has now."""
        replicas = self.replicas[partition]
        for giver in replicas:
            for taker, movable in self._movable[giver].items():
                if taker not in replicas and self._keeps_racks(partition, giver, taker):
                    yield movable

    def _keeps_racks(self, partition: TopicPartition, giver: int, taker: int) -> bool:
        """Whether the partition is in no fewer racks with its replica on `taker` in place of `giver`."""
        old, new = self._racks[giver], self._racks[taker]
        if old == new:
            return True
        others = [self._racks[each] for each in self.replicas[partition] if each != giver]
        return new not in others or old in others

    def _add(self, partition: TopicPartition, broker: int) -> None:
        self.replicas[partition] = (*self.replicas[partition], broker)
        self._count(partition, broker, 1)

    def _replace(self, partition: TopicPartition, giver: int, taker: int) -> None:
        entry = self._sizes[partition], partition
        for movable in self._lists_with(partition):
            del movable[bisect_left(movable, entry)]
        self.replicas[partition] = tuple(taker if each == giver else each for each in self.replicas[partition])
        for movable in self._lists_with(partition):
            insort(movable, entry)
        self._count(partition, giver, -1)
        self._count(partition, taker, 1)

    def _count(self, partition: TopicPartition, broker: int, change: int) -> None:
        self._bytes[broker] += change * self._sizes[partition]
        self._counts[broker] += change
        (self._here[broker].add if change > 0 else self._here[broker].discard)(partition)

    def _load(self, broker: int) -> tuple[int, int, int]:
        return self._bytes[broker], self._counts[broker], broker


def _nearest_to_half(movable: Sequence[tuple[int, TopicPartition]], gap: int) -> TopicPartition | None:
    """The partition whose replica brings two brokers nearest to each other, which differ by `gap`, if one does."""
    by_size = itemgetter(0)
    middle = bisect_left(movable, (gap + 1) // 2, key=by_size)
    around = list(movable[middle : middle + 1])
    if middle:
        around.append(movable[bisect_left(movable, movable[middle - 1][0], key=by_size)])
    nearest = min(around, key=lambda each: (abs(gap - 2 * each[0]), each[1]), default=None)
    return nearest[1] if nearest is not None and 0 < nearest[0] < gap else None


def _enough(load: Mapping[int, int]) -> int:
    """By how much brokers may differ in their load."""
    return sum(load.values()) // max(1, len(load)) // MOST_UNEVEN
