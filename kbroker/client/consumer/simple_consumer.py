"""The consumer without state: every call says what it wants, and nothing is remembered between calls."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack

from kbroker._core.client.consumer.batches import read_chunk
from kbroker._core.client.consumer.records import Records
from kbroker.client.arguments import partition_of, partitions_of
from kbroker.client.config.parsing import parse_options, require_servers
from kbroker.client.config.simple_consumer import SIMPLE_CONSUMER
from kbroker.client.consumer import group_offsets
from kbroker.client.consumer.fetching import EARLIEST, LATEST
from kbroker.client.errors import BrokerError, error_of, raise_for
from kbroker.client.network.cluster import begin
from kbroker.client.network.connection import Connection
from kbroker.client.network.faces import Blocking
from kbroker.client.network.leaders import by_leader
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import inflate

if TYPE_CHECKING:
    from kbroker.client.config.option_types import SimpleConsumerOptions

T = TypeVar("T")

FETCH = "fetch"  #: the purpose of the connections for Fetch requests, which may wait at the broker
FETCH_SIZE = 1 << 20
INT32_MAX = (1 << 31) - 1


class FetchFrom(NamedTuple):
    """One request of a `multifetch`: records of a partition from `offset` on, about `max_bytes` of them."""

    topic: str
    partition: int
    offset: int
    max_bytes: int = FETCH_SIZE


class SimpleConsumer(Blocking):
    """Reads records at given offsets, from the leader of each partition. Every method may be called from any thread.

    Options are keywords, `SimpleConsumer(bootstrap_servers="localhost:9092")`, or a mapping with Kafka's names. A
    context manager. Every method that asks a broker raises BrokerError when it refuses, and TimedOut or
    ConnectionFailed when it is not done within default.api.timeout.ms.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keywords: Unpack[SimpleConsumerOptions]):
        self.options = parse_options(SIMPLE_CONSUMER, config, keywords, "the simple consumer")
        require_servers(self.options)
        self._cluster = begin(self.options)
        self._thread = self._cluster.network.thread

    # --- records --------------------------------------------------------------------------------------------

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = FETCH_SIZE,
        *,
        min_bytes: int = 0,
        max_wait_ms: int = 0,
    ) -> Records:
        """Return the records from `offset` on, about `max_bytes` of them; none at the end of the partition.

        The broker waits up to `max_wait_ms` until it has `min_bytes`. It sends whole batches, and at least one, however
        large it is.

        Raises BrokerError with OFFSET_OUT_OF_RANGE when the log does not have that offset, UnreadableRecords when the
        first records are damaged, and ValueError for arguments that are out of range.
        """
        wanted = FetchFrom(topic, partition, offset, max_bytes)
        return self.multifetch([wanted], min_bytes=min_bytes, max_wait_ms=max_wait_ms)[0]

    def multifetch(
        self,
        requests: Iterable[FetchFrom | tuple[str, int, int] | tuple[str, int, int, int]],
        *,
        min_bytes: int = 0,
        max_wait_ms: int = 0,
    ) -> list[Records]:
        """Return the records of each request, in the order of the requests. See `fetch`.

        A request is a FetchFrom or (topic, partition, offset[, max_bytes]). Each broker gets one Fetch request for all
        partitions that it leads. The error of any single request is raised for the whole call.
        """
        wanted = [FetchFrom(*each) for each in requests]
        for each in wanted:
            what = f"{each.topic}-{each.partition}"
            if not 0 <= each.offset < 1 << 63:
                raise ValueError(f"{what}: offset {each.offset}")
            if not 0 < each.max_bytes <= INT32_MAX:
                raise ValueError(f"{what}: max_bytes {each.max_bytes}")
        if not 0 <= max_wait_ms <= INT32_MAX or not 0 <= min_bytes <= INT32_MAX:
            raise ValueError(f"min_bytes={min_bytes}, max_wait_ms={max_wait_ms}")
        return self._run(self._multifetch(wanted, min_bytes, max_wait_ms))

    async def _multifetch(self, wanted: list[FetchFrom], min_bytes: int, max_wait_ms: int) -> list[Records]:
        found: dict[int, Records] = {}

        async def attempt() -> None:
            # A Fetch names a partition once: one that is wanted several times is asked for in several rounds.
            rounds: list[dict[TopicPartition, int]] = []
            for place, each in enumerate(wanted):
                if place in found:
                    continue
                partition = TopicPartition(each.topic, each.partition)
                free = next((one for one in rounds if partition not in one), None)
                if free is None:
                    free = {}
                    rounds.append(free)
                free[partition] = place
            for one in rounds:
                for node_id, partitions in (await by_leader(self._cluster, one)).items():
                    asked = {partition: wanted[one[partition]] for partition in partitions}
                    answers = await self._fetch_from(node_id, asked, min_bytes, max_wait_ms)
                    found.update({one[partition]: records for partition, records in answers.items()})

        await self._cluster.retried(attempt)
        return [found[place] for place in range(len(wanted))]

    async def _fetch_from(
        self, node_id: int, asked: Mapping[TopicPartition, FetchFrom], min_bytes: int, max_wait_ms: int
    ) -> dict[TopicPartition, Records]:
        connection = await self._cluster.connection(node_id, FETCH)
        version = connection.version_of(ApiKey.FETCH)
        topics: dict[str, M.FetchRequest.FetchTopic] = {}
        for (topic, number), each in asked.items():
            row = M.FetchRequest.FetchPartition(
                partition=number, fetch_offset=each.offset, partition_max_bytes=each.max_bytes
            )
            topics.setdefault(topic, M.FetchRequest.FetchTopic(topic=topic, partitions=[])).partitions.append(row)
        message = M.FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=list(topics.values()))
        if version >= 3:
            message.max_bytes = min(sum(each.max_bytes for each in asked.values()), INT32_MAX)
        if version >= 4:
            message.isolation_level = self._isolation_level
        if version >= 11:
            message.rack_id = self.options["client.rack"]
        limit_ms = self.options["request.timeout.ms"] + max_wait_ms
        answer = await connection.call(message, version=version, timeout_ms=limit_ms)
        raise_for(answer.error_code, None, connection.address)
        found: dict[TopicPartition, Records] = {}
        for topic_answer in answer.responses:
            for row in topic_answer.partitions:
                partition = TopicPartition(topic_answer.topic, row.partition_index)
                if partition in asked and partition not in found:
                    found[partition] = self._records(asked[partition], row)
        _check_all_answered(connection, ApiKey.FETCH, asked.keys() - found.keys())
        return found

    def _records(self, asked: FetchFrom, row: Any) -> Records:
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise BrokerError(
                f"{asked.topic}-{asked.partition}: there is no offset {asked.offset}",
                code=ErrorCode.OFFSET_OUT_OF_RANGE,
                hint="get_offsets_before says from where to where there are records",
            )
        raise_for(row.error_code, None, f"{asked.topic}-{asked.partition}")
        limit: int = self.options["inflated.max.bytes"]
        aborted = None
        if self._isolation_level:
            aborted = [(each.producer_id, each.first_offset) for each in row.aborted_transactions or ()]
        chunk = read_chunk(
            asked.topic,
            asked.partition,
            row.records or b"",
            lambda codec, data, magic: inflate(codec, data, limit, magic=magic),
            position=asked.offset,
            aborted=aborted,
            check_crcs=self.options["check.crcs"],
        )
        # Good records before damaged ones are returned; a fetch from the damaged offset raises.
        if chunk.error is not None and not len(chunk) and chunk.next_offset == asked.offset:
            raise chunk.error
        return Records([chunk])

    # --- offsets --------------------------------------------------------------------------------------------

    def get_offsets_before(self, topic: str, partition: int, time: int, max_num_offsets: int = 1) -> list[int]:
        """Return up to `max_num_offsets` offsets to begin at, the newest first.

        `time` LATEST gives the end (behind the last record), EARLIEST the first offset. A time in milliseconds since
        1970 gives the first offsets of segment files that were last written before that time, as ListOffsets 0 answers.
        Brokers without ListOffsets 0 (Kafka 4) give other offsets: that of the first record at that time or later, else
        the end; and, if it is lower, the first offset of the partition.

        Raises ValueError for arguments that are out of range.
        """
        if time < EARLIEST:
            raise ValueError(f"time {time}: EARLIEST, LATEST or milliseconds since 1970")
        if not 0 < max_num_offsets <= INT32_MAX:
            raise ValueError(f"max_num_offsets={max_num_offsets}")
        return self._run(self._offsets_before(TopicPartition(topic, partition), time, max_num_offsets))

    async def _offsets_before(self, partition: TopicPartition, time: int, count: int) -> list[int]:
        async def attempt() -> list[int]:
            (node_id,) = await by_leader(self._cluster, [partition])
            connection = await self._cluster.connection(node_id)
            version = connection.version_of(ApiKey.LIST_OFFSETS)
            if connection.served[ApiKey.LIST_OFFSETS][0] == 0:
                row = await self._list_offsets(connection, partition, 0, time, count)
                return list(row.old_style_offsets)
            newest = (await self._list_offsets(connection, partition, version, time)).offset
            if newest < 0:
                newest = (await self._list_offsets(connection, partition, version, LATEST)).offset
            if time == EARLIEST or count == 1:
                return [newest]
            earliest = (await self._list_offsets(connection, partition, version, EARLIEST)).offset
            return [newest, earliest] if earliest < newest else [newest]

        return await self._cluster.retried(attempt)

    async def _list_offsets(
        self, connection: Connection, partition: TopicPartition, version: int, time: int, count: int = 1
    ) -> Any:
        R = M.ListOffsetsRequest
        row = R.ListOffsetsPartition(partition_index=partition.partition_id, timestamp=time, max_num_offsets=count)
        message = R(replica_id=-1, topics=[R.ListOffsetsTopic(name=partition.topic, partitions=[row])])
        if version >= 2:
            message.isolation_level = self._isolation_level
        answer = await connection.call(message, version=version)
        for topic in answer.topics:
            for found in topic.partitions:
                if (topic.name, found.partition_index) == partition:
                    raise_for(found.error_code, None, str(partition))
                    return found
        return _check_all_answered(connection, ApiKey.LIST_OFFSETS, {partition})

    def fetch_offsets(
        self, group: str, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, int]:
        """Return the group's committed offsets, as the brokers have them. A partition without one is left out."""
        wanted = partitions_of(partitions)
        return self._run(group_offsets.committed_offsets(self._cluster, group, wanted))

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]) -> None:
        """Commit offsets for a group, each the next record to read.

        Raises CommitFailed while the group has members, which commit themselves, and ValueError for a wrong offset.
        """
        checked = {partition_of(partition): offset for partition, offset in offsets.items()}
        for partition, offset in checked.items():
            if not 0 <= offset < 1 << 63:
                raise ValueError(f"{partition}: offset {offset}")
        self._run(group_offsets.commit_offsets(self._cluster, group, checked))

    @property
    def _isolation_level(self) -> int:
        return 1 if self.options["isolation.level"] == "read_committed" else 0

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(coroutine)


def _check_all_answered(connection: Connection, api_key: ApiKey, missing: Iterable[TopicPartition]) -> None:
    for partition in missing:
        raise BrokerError(
            f"{connection.address} said nothing of {partition} in its answer to {api_key.label}",
            code=error_of(ErrorCode.UNKNOWN_SERVER_ERROR),
        )
