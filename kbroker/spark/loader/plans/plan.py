"""Plans what a load is going to read, from what the last commit says and what the brokers have. No I/O."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kbroker.model import TopicPartition
from kbroker.spark.loader.commits.commit import Commit, TopicState, run_name
from kbroker.spark.loader.errors import RecordsLost
from kbroker.spark.loader.plans.brokers import Partitions
from kbroker.spark.loader.plans.work_units import SizedRange, WorkUnit, divided, limited, target_size
from kbroker.spark.loader.settings import CONTINUE
from kbroker.spark.options.offsets import Offsets, checkpointed
from kbroker.spark.reading.ranges import OffsetRange

ALL_AT_ONCE = 1 << 62  #: bytes


@dataclass(frozen=True)
class Plan:
    """What one commit is going to load.

    `starts`: where to begin in all partitions that are loaded, also in those that have nothing new.
    `whole_ends` and `asked_at_ms`: as the brokers said before the first commit of the load (see Partitions).
    `removed`: paths of files that are replaced.
    `lost`: what the brokers no longer have, in words.
    """

    number: int
    run: str
    loaded_at_ms: int
    topics: dict[str, TopicState]
    starts: Offsets
    ranges: tuple[SizedRange, ...]
    whole_ends: Offsets
    asked_at_ms: int
    units: tuple[WorkUnit, ...] = ()
    removed: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return run_name(self.number, self.run)

    @property
    def size(self) -> int:
        """About how many bytes there are to read."""
        return sum(each.size for each in self.ranges)

    @property
    def offset_count(self) -> int:
        return sum(each.range.size for each in self.ranges)

    def divided(self, slots: int, task_bytes: int) -> Plan:
        """Return the plan with its work divided into units, for `slots` tasks at a time."""
        return replace(self, units=tuple(divided(self.ranges, target_size(self.size, slots, task_bytes))))

    def encode(self) -> bytes:
        found = {
            "number": self.number,
            "run": self.run,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "loaded_at_ms": self.loaded_at_ms,
            "starts": checkpointed(self.starts),
            "units": [list(map(list, unit.ranges)) for unit in self.units],
            "removed": self.removed,
            "lost": self.lost,
        }
        return json.dumps(found, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Beginnings:
    """The offset at which each partition goes on, the state of its topic, and what is lost, in words."""

    starts: Offsets
    topics: dict[str, TopicState]
    lost: tuple[str, ...]


def beginnings(last: Commit | None, found: Partitions, fresh: Offsets, data_loss: str) -> Beginnings:
    """Return where each partition goes on. `fresh`: where to begin in topics that were never loaded.

    Raises RecordsLost when records are gone that were to be loaded next, unless `data_loss` is CONTINUE.
    """
    lost: list[str] = []
    topics: dict[str, TopicState] = {}
    for name, topic_id in found.topic_ids.items():
        before = last.topics.get(name) if last is not None else None
        if before is None:
            topics[name] = TopicState(topic_id)
        elif before.topic_id == topic_id:
            topics[name] = before
        else:
            topics[name] = TopicState(topic_id, before.generation + 1)
            lost.append(f"topic {name} was deleted and made again")
    starts: Offsets = {}
    for place in sorted(found.ends):
        before = last.topics.get(place.topic) if last is not None else None
        first, end = found.starts[place], found.ends[place]
        if before is None:
            starts[place] = fresh.get(place, first)
            continue
        if topics[place.topic] != before:
            starts[place] = first
            continue
        assert last is not None
        wanted = last.next_offsets.get(place, 0)  # 0: the partition is new
        if wanted < first:
            lost.append(f"{place}: offsets {wanted} to {first - 1} are deleted")
            wanted = first
        elif wanted > end:
            lost.append(f"{place}: it ends at offset {end}, and {wanted} was to be loaded next")
            wanted = end
        starts[place] = wanted
    if lost and data_loss != CONTINUE:
        more = f", and {len(lost) - 3} more" if len(lost) > 3 else ""
        raise RecordsLost("; ".join(lost[:3]) + more)
    return Beginnings(starts, topics, tuple(lost))


def to_read(
    starts: Offsets, ends: Offsets, record_bytes: Mapping[TopicPartition, float], most_bytes: int
) -> tuple[SizedRange, ...]:
    """Return the ranges up to `ends`, or a share of each partition if all is more than `most_bytes`."""
    ranges = [
        SizedRange(OffsetRange(*place, start, ends[place]), max(1, round((ends[place] - start) * record_bytes[place])))
        for place, start in sorted(starts.items())
        if start < ends[place]
    ]
    return tuple(limited(ranges, most_bytes))
