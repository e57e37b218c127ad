"""The consumer that users have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from kbroker._core.consumer_fetch import FetchEngine
from kbroker._core.consumer_records import ConsumerRecord, Records
from kbroker.client.cluster import Cluster
from kbroker.client.config import Options, parse_options
from kbroker.client.connection import Network
from kbroker.client.consumer.fetching import EARLIEST, LATEST, Fetching
from kbroker.client.consumer.options import CONSUMER
from kbroker.client.errors import UsageError
from kbroker.client.thread import ClientThread, ThreadOwner
from kbroker.model import TopicPartition
from kbroker.protocol.compression import inflate

ITERATION_POLL_S = 3600.0


class Consumer(ThreadOwner):
    """Reads records from Kafka or kbroker; what comes next is fetched in the background.

    `Consumer(bootstrap_servers="localhost:9092")`, or a mapping of options with Kafka's names. A context manager. One
    thread at a time may poll; every other method may be called from any thread meanwhile. Partitions are TopicPartition
    or (topic, number).
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keywords: Any):
        self.options = options = parse_options(CONSUMER, config, keywords, "the consumer")
        limit: int = options["inflated.max.bytes"]
        self._engine = FetchEngine(
            lambda codec, data: inflate(codec, data, limit),
            client_id=options["client.id"],
            rack=options["client.rack"],
            read_committed=options["isolation.level"] == "read_committed",
            min_bytes=options["fetch.min.bytes"],
            max_wait_ms=options["fetch.max.wait.ms"],
            max_bytes=options["fetch.max.bytes"],
            max_partition_bytes=options["max.partition.fetch.bytes"],
            queued_max_bytes=options["queued.max.bytes"],
            check_crcs=options["check.crcs"],
            request_timeout_ms=options["request.timeout.ms"],
        )
        self._thread = ClientThread(options["client.id"], options["receive.message.max.bytes"])
        try:
            self._thread.call(self._start(options))
        except BaseException:
            self._thread.stop()
            raise

    async def _start(self, options: Options) -> None:
        self._fetching = Fetching(self._engine, Cluster(Network(self._thread, options)))
        self._thread.pump.add(self._engine)

    # --- what is read ---------------------------------------------------------------------------------------

    def assign(self, partitions: Mapping[TopicPartition, int] | Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these; of a mapping from its offsets on, else where they are or auto.offset.reset says."""
        if isinstance(partitions, Mapping):
            wanted = {TopicPartition(*partition): offset for partition, offset in partitions.items()}
        else:
            wanted = {TopicPartition(*partition): -1 for partition in partitions}
        for partition, offset in wanted.items():
            if offset < -1:
                raise ValueError(f"{partition}: offset {offset}")
        self._thread.call(self._fetching.assign(wanted))

    def assign_topics(self, *topics: str) -> None:
        """Read all partitions that these topics have now. BrokerError when one is not there."""
        self.assign(self._thread.call(self._fetching.partitions_of(topics)))

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition(*key) for key in self._engine.assigned()]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """The next record is the one at `offset`, or the first behind it."""
        if offset < 0:
            raise ValueError(f"{topic}-{partition}: offset {offset}")
        self._check(topic, partition)
        self._engine.seek(topic, partition, offset)

    def seek_to_beginning(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """To the first record there is; of all partitions when none is named."""
        self._seek_to(EARLIEST, partitions)

    def seek_to_end(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Behind the last record there is now."""
        self._seek_to(LATEST, partitions)

    def _seek_to(self, where: int, partitions: tuple[TopicPartition | tuple[str, int], ...]) -> None:
        chosen = [TopicPartition(*each) for each in partitions] or self.assignment()
        for partition, (offset, _) in self._offsets(dict.fromkeys(chosen, where)).items():
            self.seek(*partition, offset)

    def pause(self, topic: str, partition: int) -> None:
        """Neither fetch nor give records of it, until `resume`."""
        self._check(topic, partition)
        self._engine.pause(topic, partition)

    def resume(self, topic: str, partition: int) -> None:
        self._check(topic, partition)
        self._engine.resume(topic, partition)

    def paused(self) -> list[TopicPartition]:
        return [each for each in self.assignment() if self._engine.is_paused(*each)]

    def position(self, topic: str, partition: int) -> int | None:
        """The offset of the next record that is given; None while it is not known."""
        self._check(topic, partition)
        found = self._engine.position(topic, partition)
        return found if found >= 0 else None

    def _check(self, topic: str, partition: int) -> None:
        if (topic, partition) not in self._engine.assigned():
            raise UsageError(f"{topic}-{partition} is not assigned")

    # --- records --------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> Records:
        """The next records, at most `max_records` (max.poll.records); none when `timeout` seconds pass without any.

        Raises what a broker refuses for good, and UnreadableRecords. Ctrl-C ends it.
        """
        self._thread.check()
        if self._thread.is_own_thread:
            raise UsageError("poll on the client's own thread")
        most = self.options["max.poll.records"] if max_records is None else max_records
        if most < 1:
            raise ValueError(f"max_records={most}")
        return self._engine.poll(int(timeout * 1000), most)

    def poll_arrow(
        self, timeout: float = 1.0, max_records: int | None = None, columns: Iterable[str] | None = None
    ) -> Any:
        """The same as a pyarrow.RecordBatch; see Records.arrow."""
        return self.poll(timeout, max_records).arrow(columns)

    def poll_numpy(
        self,
        timeout: float = 1.0,
        max_records: int | None = None,
        columns: Iterable[str] | None = None,
        *,
        dtypes: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The same as NumPy arrays; see Records.numpy."""
        return self.poll(timeout, max_records).numpy(columns, dtypes=dtypes)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records without end."""
        while True:
            yield from self.poll(ITERATION_POLL_S)

    # --- offsets --------------------------------------------------------------------------------------------

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The offset of the first record at that time (ms) or later in each partition; None where there is none."""
        for partition, time_ms in times.items():
            if time_ms < 0:
                raise ValueError(f"{TopicPartition(*partition)}: time {time_ms}")
        found = self._offsets({TopicPartition(*partition): time_ms for partition, time_ms in times.items()})
        return {partition: offset if offset >= 0 else None for partition, (offset, _) in found.items()}

    def beginning_offsets(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> dict[TopicPartition, int]:
        found = self._offsets({TopicPartition(*each): EARLIEST for each in partitions})
        return {partition: offset for partition, (offset, _) in found.items()}

    def end_offsets(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> dict[TopicPartition, int]:
        """Behind the last record; with read_committed the first of a transaction that is open."""
        found = self._offsets({TopicPartition(*each): LATEST for each in partitions})
        return {partition: offset for partition, (offset, _) in found.items()}

    def _offsets(self, asked: dict[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        return self._thread.call(self._fetching.offsets(asked))

    # --- the end --------------------------------------------------------------------------------------------

    def close(self, timeout: float = 10.0) -> None:
        """End the thread and its connections. A poll that waits returns."""
        self._engine.interrupt()
        self._thread.stop(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
