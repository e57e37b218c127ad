"""Asks the brokers what they have: topics, where their partitions begin and end, and about how large they are."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from kbroker.client import AdminClient, SimpleConsumer
from kbroker.client.config.network import NETWORK
from kbroker.client.config.simple_consumer import SIMPLE_CONSUMER
from kbroker.client.consumer.simple_consumer import FetchFrom
from kbroker.client.errors import ClientError
from kbroker.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from kbroker.spark.loader.commits.commit import COMMITS_TOPIC
from kbroker.spark.loader.errors import LoadFailed
from kbroker.spark.loader.settings import Settings
from kbroker.spark.options.kafka_options import READ_COMMITTED, client_options
from kbroker.spark.options.offsets import Offsets
from kbroker.spark.reading.topic_descriptions import described

log = logging.getLogger("kbroker.spark")

GUESSED_RECORD_BYTES = 200.0
"""The size that is assumed of records where none has been looked at."""

OVERHEAD_BYTES = 24
"""What a record takes in memory beside its key and its value."""

LOOK_BYTES = 16 << 10
MOST_LOOKS = 256  #: partitions whose records are looked at: those with most to read
LOOKS_AT_ONCE = 32


@dataclass(frozen=True)
class Partitions:
    """The partitions of topics, as the brokers had them at one moment.

    `ends`: as the reader's isolation level has them. `whole_ends`: the ends of partitions that have no open transaction
    behind them. `asked_at_ms`: all records that had come by then are before the ends.
    """

    topic_ids: dict[str, str]
    starts: Offsets
    ends: Offsets
    whole_ends: Offsets
    asked_at_ms: int

    def up_to(self, before: Partitions) -> Partitions:
        """Return those of these partitions that were there `before`, up to where they ended then.

        A partition whose records of then are all deleted is empty in the result.
        """
        ends = {
            place: max(min(end, before.ends[place]), self.starts[place])
            for place, end in self.ends.items()
            if place in before.ends
        }
        names = {place.topic for place in ends}
        ids = {name: topic_id for name, topic_id in self.topic_ids.items() if name in names}
        return Partitions(ids, self.starts, ends, before.whole_ends, before.asked_at_ms)


class Brokers:
    """Asks the brokers. A context manager."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._read_committed = settings.isolation == READ_COMMITTED
        self._admin = AdminClient(client_options(settings.client, NETWORK))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.close()

    def cluster_id(self) -> str | None:
        """Return the id of the cluster. Raises ConnectionFailed at once when no broker is reached."""
        self._admin.check_connection()
        return self._admin.describe_cluster().cluster_id

    def topics(self) -> list[str]:
        """Return the topics that are to be loaded. Raises LoadFailed when there is none."""
        settings = self._settings
        if settings.pattern is None:
            if not settings.topics:
                raise LoadFailed("no topic is named, and no pattern: there is nothing to load")
            return sorted(set(settings.topics))
        found = sorted(
            name
            for name in self._admin.list_topics()
            if settings.pattern.fullmatch(name) and not self._is_of_loads(name)
        )
        if not found:
            raise LoadFailed(f"no topic matches {settings.pattern.pattern!r}")
        return found

    def _is_of_loads(self, topic: str) -> bool:
        """Return whether loads themselves write to a topic. A load of it would always find new records: its own."""
        return topic == self._settings.audit_topic or COMMITS_TOPIC.fullmatch(topic) is not None

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {name: each.topic_id.hex() for name, each in self._admin.describe_topics(topics).items()}

    def still_there(self, topics: Iterable[str]) -> list[str]:
        """Return the topics that were not deleted, sorted."""
        there, _ = described(self._admin, set(topics))
        return sorted(there)

    def partitions(self, topics: Iterable[str]) -> Partitions:
        asked_at_ms = time.time_ns() // 1_000_000
        described = self._admin.describe_topics(topics)
        places = [TopicPartition(name, each.partition) for name, of in described.items() for each in of.partitions]
        # Starts first: retention may move them behind ends that were asked for before.
        starts = self.offsets(places, EARLIEST_TIMESTAMP)
        ends = self.offsets(places, LATEST_TIMESTAMP)
        ids = {name: of.topic_id.hex() for name, of in described.items()}
        return Partitions(ids, starts, ends, self._whole(ends), asked_at_ms)

    def _whole(self, ends: Offsets) -> Offsets:
        """Return the ends of those partitions that have no open transaction behind them."""
        if not self._read_committed or not ends:
            return ends
        found = self._admin.list_offsets(ends, LATEST_TIMESTAMP)
        return {place: end for place, end in ends.items() if found[place].offset == end}

    def record_bytes(self, found: Partitions, begun: Offsets) -> dict[TopicPartition, float]:
        """Return the average size of each partition's records from `begun` on, estimated from some of them."""
        read = [place for place, offset in begun.items() if offset < found.ends[place]]
        read.sort(key=lambda place: begun[place] - found.ends[place])
        asked = [FetchFrom(*place, (begun[place] + found.ends[place]) // 2, LOOK_BYTES) for place in read[:MOST_LOOKS]]
        by_topic: dict[str, list[float]] = {}
        sizes: dict[TopicPartition, float] = {}
        if not asked:
            return {}
        try:
            with SimpleConsumer(client_options(self._settings.client, SIMPLE_CONSUMER)) as consumer:
                for start in range(0, len(asked), LOOKS_AT_ONCE):
                    some = asked[start : start + LOOKS_AT_ONCE]
                    for each, records in zip(some, consumer.multifetch(some), strict=True):
                        if len(records):
                            place = TopicPartition(each.topic, each.partition)
                            columns = records.columns(["key", "value"])
                            bytes_in_all = len(columns.keys.data) + len(columns.values.data)
                            sizes[place] = bytes_in_all / len(records) + OVERHEAD_BYTES
                            by_topic.setdefault(place.topic, []).append(sizes[place])
        except ClientError as error:
            log.warning("tasks are cut by records, not by bytes: %s", error)
        means = {topic: sum(found) / len(found) for topic, found in by_topic.items()}
        return {place: sizes.get(place, means.get(place.topic, GUESSED_RECORD_BYTES)) for place in begun}

    def offsets(self, places: list[TopicPartition], at: int) -> Offsets:
        """Return the offsets of the first records at a time in ms or later, -1 where none is so late.

        EARLIEST_TIMESTAMP and LATEST_TIMESTAMP give where partitions begin and end.
        """
        if not places:
            return {}
        found = self._admin.list_offsets(places, at, read_committed=self._read_committed)
        return {place: each.offset for place, each in found.items()}

    def compacted(self, topics: Iterable[str]) -> set[str]:
        """Return the topics with compaction, whose old records may go one by one."""
        found = self._admin.describe_topic_configs(list(topics))
        return {name for name, of in found.items() if "compact" in (of["cleanup.policy"].value or "")}

    def commit_to(self, group: str, offsets: Offsets) -> None:
        """Commit offsets of a group, for tools that watch the lag of loads. An error of the client is only logged."""
        try:
            self._admin.alter_offsets(group, offsets)
        except ClientError as error:
            log.warning("group %s does not show how far the load is: %s", group, error)
