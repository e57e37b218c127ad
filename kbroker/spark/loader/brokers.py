"""What the brokers have: topics, where their partitions begin and end, and about how large they are."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from kbroker.client import AdminClient
from kbroker.client.config import NETWORK
from kbroker.client.errors import ClientError
from kbroker.errors import ErrorCode
from kbroker.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from kbroker.spark.kafka_options import client_options
from kbroker.spark.loader.errors import LoadFailed
from kbroker.spark.loader.settings import Settings
from kbroker.spark.offsets import Offsets

log = logging.getLogger("kbroker.spark")

GUESSED_RECORD_BYTES = 200
"""Where the brokers do not say how large a partition is."""


@dataclass(frozen=True)
class Partitions:
    """`ends` as the reader's isolation has them; `record_bytes`: of a record on disk, on the average."""

    topic_ids: dict[str, str]
    starts: Offsets
    ends: Offsets
    record_bytes: dict[TopicPartition, float]


class Brokers:
    """Asks them. A context manager."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._read_committed = settings.client.get("isolation.level") == "read_committed"
        self._admin = AdminClient(client_options(settings.client, NETWORK))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.close()

    def cluster_id(self) -> str | None:
        """ConnectionFailed at once when no broker is reached."""
        self._admin.check_connection()
        return self._admin.describe_cluster().cluster_id

    def topics(self) -> list[str]:
        """Those that are to be loaded. LoadFailed: there is none."""
        settings = self._settings
        if settings.pattern is None:
            return sorted(set(settings.topics))
        found = sorted(name for name in self._admin.list_topics() if settings.pattern.fullmatch(name))
        if not found:
            raise LoadFailed(f"no topic matches {settings.pattern.pattern!r}")
        return found

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {name: each.topic_id.hex() for name, each in self._admin.describe_topics(topics).items()}

    def partitions(self, topics: Iterable[str]) -> Partitions:
        described = self._admin.describe_topics(topics)
        places = [TopicPartition(name, each.partition) for name, of in described.items() for each in of.partitions]
        # Starts first: retention may move them behind ends that were asked for before.
        starts = self.offsets(places, EARLIEST_TIMESTAMP)
        ends = self.offsets(places, LATEST_TIMESTAMP)
        sizes = self._sizes()
        bytes_each = {}
        for place in places:
            count = ends[place] - starts[place]
            size = sizes.get(place, 0)
            bytes_each[place] = size / count if size and count > 0 else GUESSED_RECORD_BYTES
        return Partitions({name: of.topic_id.hex() for name, of in described.items()}, starts, ends, bytes_each)

    def offsets(self, places: list[TopicPartition], at: int) -> Offsets:
        """At a time in ms, or EARLIEST_TIMESTAMP, LATEST_TIMESTAMP; -1: none is so late."""
        if not places:
            return {}
        found = self._admin.list_offsets(places, at, read_committed=self._read_committed)
        return {place: each.offset for place, each in found.items()}

    def compacted(self, topics: Iterable[str]) -> set[str]:
        """Those whose old records may go one by one."""
        found = self._admin.describe_topic_configs(list(topics))
        return {name for name, of in found.items() if "compact" in (of["cleanup.policy"].value or "")}

    def commit_to(self, group: str, offsets: Offsets) -> None:
        """For those who watch lag: what fails is logged."""
        try:
            self._admin.alter_offsets(group, offsets)
        except ClientError as error:
            log.warning("group %s does not show how far the load is: %s", group, error)

    def _sizes(self) -> dict[TopicPartition, int]:
        try:
            described = self._admin.describe_log_dirs()
        except ClientError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                log.warning("tasks are cut by records, not by bytes: %s", error)
            return {}
        found: dict[TopicPartition, int] = {}
        for directories in described.values():
            for directory in directories:
                for place, replica in directory.replicas.items():
                    if not replica.is_future:
                        found[place] = max(found.get(place, 0), replica.size)
        return found
