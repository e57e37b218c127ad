"""Finds out, on the driver, which partitions there are and which of their offsets the user means."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Self, TypeVar

from kbroker.client.admin.admin_client import AdminClient
from kbroker.client.config.network import NETWORK
from kbroker.client.errors import BrokerError
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.spark.errors import DataLoss, WrongOption
from kbroker.spark.options.format_options import SparkOptions
from kbroker.spark.options.kafka_options import READ_COMMITTED, client_options, isolation_of
from kbroker.spark.options.offsets import (
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
from kbroker.spark.reading.topic_descriptions import described

T = TypeVar("T")
log = logging.getLogger("kbroker.spark")


class Planner:
    """Asks the brokers what the driver has to know. A context manager; a stream keeps one from batch to batch."""

    def __init__(self, options: SparkOptions):
        self._options = options
        given = client_options(options.client, NETWORK)
        self._read_committed = isolation_of(options.client) == READ_COMMITTED
        self._missing: set[str] = set()  # what was missing at the last `_left`: it has been logged
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
        """Return the partitions that are subscribed to, or assigned. Raises WrongOption when one does not exist."""
        found, missing = self._seen()
        if missing:
            option = "assign" if self._options["assign"] is not None else "subscribe"
            raise WrongOption(f"option {option}: there is no {named(missing)}")
        return found

    def _left(self) -> list[TopicPartition]:
        """Return the wanted partitions that exist, for a stream that has begun.

        Raises DataLoss when one does not exist; with failOnDataLoss=false that is only logged.
        """
        found, missing = self._seen()
        if missing and self._options["failOnDataLoss"]:
            raise DataLoss(f"{named(missing)} is gone, with what was not read of it")
        if missing - self._missing:
            log.warning("%s is not there; the others are read", named(missing))
        self._missing = missing
        return found

    def _seen(self) -> tuple[list[TopicPartition], set[str]]:
        """Return the wanted partitions that exist, sorted, and the names of topics or partitions that do not.

        Missing ones are looked for again: they may be so new that not every broker knows them yet.
        """
        for left in reversed(range(self._attempts)):
            found, missing = self._looked_for()
            if not missing - self._missing:
                break
            if left:
                self._rest()
        return sorted(found), missing

    def _looked_for(self) -> tuple[set[TopicPartition], set[str]]:
        options = self._options
        if (assigned := options["assign"]) is not None:
            there, _ = self._described({each.topic for each in assigned})
            wanted = set(assigned)
            return there & wanted, {str(each) for each in wanted - there}
        if (pattern := options["subscribePattern"]) is not None:
            # A topic that was deleted since it was listed is not missing: nobody has asked for it by name.
            there, _ = self._described({name for name in self._admin.list_topics() if pattern.search(name)})
            return there, set()
        return self._described(set(options["subscribe"]))

    def _described(self, topics: set[str]) -> tuple[set[TopicPartition], set[str]]:
        """Return the partitions of the topics that exist, and the names of those that do not."""
        found, missing = described(self._admin, topics)
        return {TopicPartition(name, each.partition) for name in found for each in found[name].partitions}, missing

    # --- which offsets --------------------------------------------------------------------------------------

    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the first offset of each of `partitions` that still exists. Raises DataLoss as `latest` does."""

        def list_earliest() -> Offsets:
            return self._listed([each for each in self._left() if each in partitions], EARLIEST)

        return self._retried(list_earliest) if partitions else {}

    def latest(self, known: Mapping[TopicPartition, int]) -> Offsets:
        """Return the end offset of each partition that is read; with read_committed the last stable offset.

        Asks again when a partition ends before its offset in `known`: a broker may lag behind. Raises DataLoss when a
        topic or an assigned partition is gone, unless failOnDataLoss=false.
        """

        def list_latest() -> Offsets:
            return self._listed(self._left(), LATEST)

        for left in reversed(range(self._attempts)):
            found = self._retried(list_latest)
            if not (short := [place for place, offset in known.items() if found.get(place, offset) < offset]):
                break
            log.warning("%s ends before where it has been read up to", named(short))
            if left:
                self._rest()
        return found

    def start(self, place: Place, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the offset at which to begin in each partition. Raises WrongOption when `place` does not fit them."""
        return self._retried(lambda: self._resolved(self._offsets(place, partitions, "starting"), EARLIEST, LATEST))

    def initial(self, place: Place, partitions: Collection[TopicPartition]) -> Offsets:
        """Return what `start` returns, for a new stream: where it begins at the end, the offset stays LATEST."""
        return self._retried(lambda: self._resolved(self._offsets(place, partitions, "starting"), EARLIEST))

    def end(self, place: Place, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the offset before which each partition ends. Raises WrongOption when `place` does not fit them."""
        return self._retried(lambda: self._resolved(self._offsets(place, partitions, "ending"), EARLIEST, LATEST))

    def _offsets(self, place: Place, partitions: Collection[TopicPartition], which: str) -> Offsets:
        match place:
            case Everywhere(at):
                return dict.fromkeys(partitions, at)
            case AtTimestamp(timestamp_ms):
                return self._at_timestamps(dict.fromkeys(partitions, timestamp_ms), which)
            case AtTimestamps(timestamps_ms):
                _check_all(timestamps_ms, partitions, f"{which}OffsetsByTimestamp")
                return self._at_timestamps(timestamps_ms, which)
            case PerPartition(offsets):
                _check_all(offsets, partitions, f"{which}Offsets")
                return offsets

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
        return found | dict.fromkeys(none, LATEST)

    def _resolved(self, offsets: Offsets, *words: int) -> Offsets:
        found = dict(offsets)
        for at in words:
            found |= self._listed([place for place, offset in offsets.items() if offset == at], at)
        return found

    def _listed(self, partitions: Collection[TopicPartition], at: int) -> Offsets:
        if not partitions:
            return {}
        found = self._admin.list_offsets(partitions, at, read_committed=self._read_committed)
        return {place: each.offset for place, each in found.items()}

    # --- what a group has done ------------------------------------------------------------------------------

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group, which must not have members."""
        self._admin.alter_offsets(group_id, offsets)

    # --- retries --------------------------------------------------------------------------------------------

    @property
    def _attempts(self) -> int:
        found: int = self._options["fetchOffset.numRetries"]
        return max(found, 1)

    def _rest(self) -> None:
        time.sleep(self._options["fetchOffset.retryIntervalMs"] / 1000)

    def _retried(self, call: Callable[[], T]) -> T:
        """Return what `call` returns. Call it again if a partition is unknown: it may be deleted meanwhile.

        The client itself retries all other errors.
        """
        for _ in range(self._attempts - 1):
            try:
                return call()
            except BrokerError as error:
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                log.warning("%s; asking again", error)
                self._rest()
        return call()


def _check_all(given: Mapping[TopicPartition, int], partitions: Collection[TopicPartition], option: str) -> None:
    if missing := set(partitions) - given.keys():
        raise WrongOption(f"option {option} says nothing of {named(missing)}: it must name all partitions")
    if unknown := given.keys() - set(partitions):
        raise WrongOption(f"option {option} names {named(unknown)}, which is not read")
