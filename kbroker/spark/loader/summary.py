"""What a load has done, in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kbroker.spark.loader.commits.commit import Commit
from kbroker.spark.loader.plans.plan import Plan


@dataclass
class TopicSummary:
    """What was loaded of one topic.

    `size`: bytes of files. `missing`: offsets without a record, because of compaction or transactions.
    """

    topic: str
    partitions: int = 0
    rows: int = 0
    undecodable: int = 0
    missing: int = 0
    files: int = 0
    size: int = 0
    hours: int = 0
    complete_hours: int = 0


@dataclass
class Summary:
    """What a load has done. `commits`: their numbers; empty if there was nothing to do.

    `lost`: what the brokers no longer had, in words.
    """

    commits: list[int] = field(default_factory=list)
    topics: list[TopicSummary] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    seconds: float = 0.0
    was_cut_off: bool = False
    """Whether the load before was cut off, so that its last commit was published first."""

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.topics)

    @property
    def size(self) -> int:
        return sum(each.size for each in self.topics)


def summarized(commits: Iterable[Commit]) -> list[TopicSummary]:
    found: dict[str, TopicSummary] = {}
    partitions: set[tuple[str, int]] = set()
    hours: set[tuple[str, int]] = set()
    for commit in commits:
        for each in commit.ranges:
            topic = found.setdefault(each.topic, TopicSummary(each.topic))
            partitions.add((each.topic, each.partition))
            topic.rows += each.rows
            topic.undecodable += each.undecodable
            topic.missing += each.until - each.start - each.rows
        for file in commit.files:
            topic = found.setdefault(file.topic, TopicSummary(file.topic))
            topic.files += 1
            topic.size += file.size
            if not file.is_quarantine:
                hours.add((file.topic, file.hour))
        for name, complete in commit.complete_hours.items():
            found.setdefault(name, TopicSummary(name)).complete_hours += len(complete)
    partition_counts = Counter(name for name, _ in partitions)
    hour_counts = Counter(name for name, _ in hours)
    for name, topic in found.items():
        topic.partitions, topic.hours = partition_counts[name], hour_counts[name]
    return [found[name] for name in sorted(found)]


@dataclass
class Preview:
    """What a load would do: `--dry-run`."""

    number: int
    tasks: int
    size: int
    offsets: dict[str, int]
    """How many offsets there are to read, by topic. There may be fewer records."""
    removed: tuple[str, ...]
    lost: tuple[str, ...]


def preview(plan: Plan) -> Preview:
    offsets: Counter[str] = Counter()
    for each in plan.ranges:
        offsets[each.range.topic] += each.range.size
    return Preview(plan.number, len(plan.units), plan.size, dict(sorted(offsets.items())), plan.removed, plan.lost)
