"""On the driver: which partitions there are, and what offsets of theirs the user means."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self, TypeVar

from kbroker.client.admin import AdminClient
from kbroker.client.config import NETWORK
from kbroker.client.errors import ClientError
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.model import TopicPartition
from kbroker.spark.errors import WrongOption
from kbroker.spark.kafka_options import client_options
from kbroker.spark.offsets import (
    EARLIEST,
    LATEST,
    AtTimestamp,
    AtTimestamps,
    Everywhere,
    Offsets,
    PerPartition,
    Place,
    named,
)
from kbroker.spark.options import SparkOptions

T = TypeVar("T")
log = logging.getLogger("kbroker.spark")


class Planner:
    """What a driver asks the brokers. A context manager; a stream's is kept from batch to batch."""

    def __init__(self, options: SparkOptions):
        self._options = options
        given = client_options(options.client, NETWORK)
        self._read_committed = options.client.get("isolation.level") == "read_committed"
        self._admin = AdminClient(given)

    def close(self) -> None:
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- which partitions -----------------------------------------------------------------------------------

    def partitions(self) -> list[TopicPartition]:
        """Those that are subscribed to, or assigned, and there."""
        options = self._options
        if (assigned := options["assign"]) is not None:
            return self._again(lambda: self._assigned(assigned))
        if (pattern := options["subscribePattern"]) is not None:
            names = [name for name in self._again(self._admin.list_topics) if pattern.fullmatch(name)]
        else:
            names = list(dict.fromkeys(options["subscribe"]))
        found = self._again(lambda: self._admin.describe_topics(names)) if names else {}
        return sorted(TopicPartition(name, each.partition) for name in names for each in found[name].partitions)

    def _assigned(self, assigned: Iterable[TopicPartition]) -> list[TopicPartition]:
        wanted = sorted(assigned)
        found = self._admin.describe_topics(sorted({each.topic for each in wanted}))
        there = {TopicPartition(name, each.partition) for name, topic in found.items() for each in topic.partitions}
        if missing := set(wanted) - there:
            raise WrongOption(f"option assign: there is no {named(missing)}")
        return wanted

    # --- which offsets --------------------------------------------------------------------------------------

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._listed(partitions, EARLIEST)

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """With read_committed the ends of what is decided."""
        return self._listed(partitions, LATEST)

    def start(self, place: Place, partitions: list[TopicPartition]) -> Offsets:
        """Where each partition begins."""
        return self._offsets(place, partitions, "starting")

    def end(self, place: Place, partitions: list[TopicPartition]) -> Offsets:
        """Behind the last offset of each."""
        return self._offsets(place, partitions, "ending")

    def _offsets(self, place: Place, partitions: list[TopicPartition], which: str) -> Offsets:
        match place:
            case Everywhere(at):
                return self._listed(partitions, at)
            case AtTimestamp(timestamp_ms):
                return self._at_timestamps(dict.fromkeys(partitions, timestamp_ms), which)
            case AtTimestamps(timestamps_ms):
                self._check_all(timestamps_ms, partitions, f"{which}OffsetsByTimestamp")
                return self._at_timestamps(timestamps_ms, which)
            case PerPartition(offsets):
                self._check_all(offsets, partitions, f"{which}Offsets")
                found = {place: offset for place, offset in offsets.items() if offset >= 0}
                for at in (EARLIEST, LATEST):
                    found |= self._listed([place for place, offset in offsets.items() if offset == at], at)
                return found

    def _check_all(self, given: Mapping[TopicPartition, int], partitions: list[TopicPartition], option: str) -> None:
        if missing := set(partitions) - given.keys():
            raise WrongOption(f"option {option} says nothing of {named(missing)}: it must name all partitions")
        if unknown := given.keys() - set(partitions):
            raise WrongOption(f"option {option} names {named(unknown)}, which is not read")

    def _at_timestamps(self, timestamps_ms: Mapping[TopicPartition, int], which: str) -> Offsets:
        found: Offsets = {}
        for timestamp_ms in set(timestamps_ms.values()):
            found |= self._listed([place for place, at in timestamps_ms.items() if at == timestamp_ms], timestamp_ms)
        none = [place for place, offset in found.items() if offset < 0]
        if none and which == "starting" and self._options["startingOffsetsByTimestampStrategy"] == "error":
            raise WrongOption(
                f"no record of {named(none)} is at the starting time or later; set startingOffsetsByTimestampStrategy="
                "latest to begin at the end there"
            )
        return found | self._listed(none, LATEST)

    def _listed(self, partitions: Iterable[TopicPartition], at: int) -> Offsets:
        wanted = list(partitions)
        if not wanted:
            return {}
        found = self._again(lambda: self._admin.list_offsets(wanted, at, read_committed=self._read_committed))
        return {place: each.offset for place, each in found.items()}

    def _again(self, ask: Callable[[], T]) -> T:
        """As often as fetchOffset.numRetries says, beside what the client itself tries again."""
        left = self._options["fetchOffset.numRetries"]
        while True:
            try:
                return ask()
            except ClientError as error:
                if not (left and error.retriable) or error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                left -= 1
                log.warning("%s; asking again", error)
                time.sleep(self._options["fetchOffset.retryIntervalMs"] / 1000)


class DataLoss(KbrokerError):
    """Records that were to be read are gone."""

    def __init__(self, what: str):
        super().__init__(f"{what}; set failOnDataLoss=false to go on with what is there")
