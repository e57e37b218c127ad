"""AdminClient: what may be asked of and done to a cluster, its topics, settings, groups and records.

    with AdminClient(bootstrap_servers="localhost:9092") as admin:
        admin.create_topic("orders", partitions=6)

Every method blocks until it is done, at most `default.api.timeout.ms`, and raises BrokerError with the broker's code;
Ctrl-C interrupts. Any number of threads may use one client.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from kbroker.client.admin_results import (
    Broker,
    ClusterDescription,
    CommittedOffset,
    ConfigEntry,
    GroupListing,
    OffsetAndTimestamp,
    PartitionDescription,
    TopicDescription,
    TopicPartition,
    TransactionDescription,
    TransactionListing,
)
from kbroker.client.cluster import GROUP, TRANSACTION, Cluster, begin
from kbroker.client.config import NETWORK, parse_options
from kbroker.client.errors import BrokerError, raise_for
from kbroker.client.thread import ThreadOwner
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

T = TypeVar("T")

EARLIEST, LATEST = -2, -1
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
SET, DELETE = 0, 1
SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "CLIENT_METRICS_CONFIG",
    8: "GROUP_CONFIG",
}


class AdminClient(ThreadOwner):
    """Options as a mapping with dots or keywords with underscores. TypeError, ValueError: an option is wrong."""

    def __init__(self, config: Mapping[str, Any] | None = None, **options: Any):
        parsed = parse_options(NETWORK, config, options, "AdminClient")
        if not parsed["bootstrap.servers"]:
            raise ValueError("bootstrap.servers is missing: HOST:PORT,... of one broker or more")
        self._timeout_ms: int = parsed["default.api.timeout.ms"]
        self._cluster: Cluster = begin(parsed)
        self._thread = self._cluster.network.thread

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, timeout_s: float = 10.0) -> None:
        """Close the connections and end the thread. Calls that wait raise ClientClosed."""
        self._thread.stop(timeout_s)

    # --- topics ---------------------------------------------------------------------------------------------

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted; those of the broker's own only if asked for."""
        answer = self._metadata(None)
        return sorted(topic.name for topic in answer.topics if internal or not topic.is_internal)

    def describe_topics(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """Topics by name. BrokerError for one that is not there."""
        answer = self._metadata(names) if names else None
        found = {}
        for topic in answer.topics if answer is not None else ():
            raise_for(topic.error_code, None, f"topic {topic.name!r}")
            partitions = [
                PartitionDescription(
                    each.partition_index,
                    each.leader_id,
                    each.leader_epoch,
                    tuple(each.replica_nodes),
                    tuple(each.isr_nodes),
                )
                for each in sorted(topic.partitions, key=lambda each: each.partition_index)
            ]
            found[topic.name] = TopicDescription(topic.name, topic.topic_id, bool(topic.is_internal), tuple(partitions))
        return found

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """-1: the broker's default (Kafka 2.4 and later). `validate_only` tells whether it could be created."""
        request = M.CreateTopicsRequest
        settings = [request.CreatableTopicConfig(name=key, value=str(value)) for key, value in (configs or {}).items()]
        topic = request.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=replication_factor, configs=settings
        )
        message = request(topics=[topic], timeout_ms=self._timeout_ms, validate_only=validate_only)
        for result in self._controller(message, "topics"):
            raise_for(result.error_code, result.error_message, f"topic {result.name!r}")

    def delete_topics(self, names: Collection[str]) -> None:
        """BrokerError for the first that could not be deleted; the others are."""
        message = M.DeleteTopicsRequest(topic_names=list(names), timeout_ms=self._timeout_ms)

        # Version 6 names topics in another field, by their ids if need be.
        for result in self._controller(message, "responses", highest=5):
            raise_for(result.error_code, result.error_message, f"topic {result.name!r}")

    def create_partitions(self, topic: str, total: int, *, validate_only: bool = False) -> None:
        """The topic has `total` partitions then; there is no way back."""
        request = M.CreatePartitionsRequest
        grown = request.CreatePartitionsTopic(name=topic, count=total, assignments=None)
        message = request(topics=[grown], timeout_ms=self._timeout_ms, validate_only=validate_only)
        for result in self._controller(message, "results"):
            raise_for(result.error_code, result.error_message, f"topic {result.name!r}")

    # --- settings -------------------------------------------------------------------------------------------

    def describe_topic_config(self, topic: str) -> dict[str, ConfigEntry]:
        """Its settings by name, those that are not its own too."""
        return self._describe_config(TOPIC_RESOURCE, topic, None)

    def describe_broker_config(self, node_id: int) -> dict[str, ConfigEntry]:
        return self._describe_config(BROKER_RESOURCE, str(node_id), node_id)

    def alter_topic_config(self, topic: str, changes: Mapping[str, str | None], *, validate_only: bool = False) -> None:
        """None takes a setting back. What is not named stays (Kafka 2.3 and later)."""
        self._alter_config(TOPIC_RESOURCE, topic, None, changes, validate_only)

    def alter_broker_config(
        self, node_id: int, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        self._alter_config(BROKER_RESOURCE, str(node_id), node_id, changes, validate_only)

    # --- cluster, groups, offsets, records ------------------------------------------------------------------

    def describe_cluster(self) -> ClusterDescription:
        """As its brokers advertise themselves now."""
        self._run(self._cluster.retried(self._cluster.refresh))
        view = self._cluster.view
        brokers = tuple(Broker(node.node_id, node.host, node.port, node.rack) for node in view.nodes.values())
        return ClusterDescription(view.cluster_id, view.controller_id, brokers)

    def list_groups(self) -> list[GroupListing]:
        """Those of all brokers, sorted by name."""

        async def ask() -> list[GroupListing]:
            found = []
            for node_id in (await self._cluster.refresh()).nodes:
                answer = await self._cluster.call(M.ListGroupsRequest(), node_id)
                raise_for(answer.error_code, None, f"groups of broker {node_id}")
                found += [
                    GroupListing(each.group_id, each.protocol_type, each.group_state, each.group_type)
                    for each in answer.groups
                ]
            return sorted(found, key=lambda group: group.group_id)

        return self._run(self._cluster.retried(ask))

    def delete_group(self, group_id: str) -> None:
        """And all it has committed. It must have no members."""

        async def ask() -> None:
            answer = await self._cluster.call_coordinator(M.DeleteGroupsRequest(groups_names=[group_id]), group_id)
            for result in answer.results:
                self._check_coordinated(result.error_code, group_id, GROUP, f"group {group_id!r}")

        self._run(self._cluster.retried(ask))

    def committed(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        """Everything the group has committed."""

        async def ask() -> dict[TopicPartition, CommittedOffset]:
            node_id = await self._cluster.coordinator(group_id)
            connection = await self._cluster.connection(node_id)
            request = M.OffsetFetchRequest
            message = request(group_id=group_id, topics=None)
            if connection.version_of(ApiKey.OFFSET_FETCH) >= 8:
                message = request(groups=[request.OffsetFetchRequestGroup(group_id=group_id, topics=None)])
                (answer,) = (await connection.call(message)).groups
            else:
                answer = await connection.call(message)
            self._check_coordinated(answer.error_code, group_id, GROUP, f"group {group_id!r}")
            found = {}
            for topic in answer.topics:
                for each in topic.partitions:
                    raise_for(each.error_code, None, f"{topic.name}-{each.partition_index}")
                    found[TopicPartition(topic.name, each.partition_index)] = CommittedOffset(
                        each.committed_offset, each.committed_leader_epoch, each.metadata or ""
                    )
            return found

        return self._run(self._cluster.retried(ask))

    def list_offsets(
        self, partitions: Iterable[tuple[str, int]], at: int = LATEST
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Where each begins (EARLIEST), ends (LATEST), or has its first record at or after `at`, in ms since 1970."""
        wanted = [TopicPartition(*each) for each in partitions]
        request = M.ListOffsetsRequest

        async def ask() -> dict[TopicPartition, OffsetAndTimestamp]:
            found = {}
            for node_id, theirs in (await self._by_leader(wanted)).items():
                topics = [
                    request.ListOffsetsTopic(
                        name=topic,
                        partitions=[request.ListOffsetsPartition(partition_index=n, timestamp=at) for n in ns],
                    )
                    for topic, ns in theirs.items()
                ]
                answer = await self._cluster.call(request(topics=topics), node_id)
                for topic in answer.topics:
                    for each in topic.partitions:
                        raise_for(each.error_code, None, f"{topic.name}-{each.partition_index}")
                        found[TopicPartition(topic.name, each.partition_index)] = OffsetAndTimestamp(
                            each.offset, each.timestamp, each.leader_epoch
                        )
            return found

        return self._run(self._cluster.retried(ask))

    def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset (-1: all) of each partition. Where each begins then."""
        wanted = {TopicPartition(*partition): offset for partition, offset in before.items()}
        request = M.DeleteRecordsRequest

        async def ask() -> dict[TopicPartition, int]:
            found = {}
            for node_id, theirs in (await self._by_leader(list(wanted))).items():
                topics = [
                    request.DeleteRecordsTopic(
                        name=topic,
                        partitions=[
                            request.DeleteRecordsPartition(partition_index=n, offset=wanted[TopicPartition(topic, n)])
                            for n in ns
                        ],
                    )
                    for topic, ns in theirs.items()
                ]
                answer = await self._cluster.call(request(topics=topics, timeout_ms=self._timeout_ms), node_id)
                for topic in answer.topics:
                    for each in topic.partitions:
                        raise_for(each.error_code, None, f"{topic.name}-{each.partition_index}")
                        found[TopicPartition(topic.name, each.partition_index)] = each.low_watermark
            return found

        return self._run(self._cluster.retried(ask))

    # --- transactions (Kafka 3.0 and later) -----------------------------------------------------------------

    def list_transactions(self, states: Collection[str] = ()) -> list[TransactionListing]:
        """The transactional ids of all brokers, sorted; only those in one of `states` if any are given."""

        async def ask() -> list[TransactionListing]:
            found = []
            for node_id in (await self._cluster.refresh()).nodes:
                answer = await self._cluster.call(M.ListTransactionsRequest(state_filters=list(states)), node_id)
                raise_for(answer.error_code, None, f"transactions of broker {node_id}")
                if answer.unknown_state_filters:
                    unknown = ", ".join(answer.unknown_state_filters)
                    raise BrokerError(f"no transaction has the state {unknown}", code=ErrorCode.INVALID_REQUEST)
                found += [
                    TransactionListing(each.transactional_id, each.producer_id, each.transaction_state)
                    for each in answer.transaction_states
                ]
            return sorted(found, key=lambda each: each.transactional_id)

        return self._run(self._cluster.retried(ask))

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """BrokerError when nobody has used the id."""
        what = f"transactional id {transactional_id!r}"

        async def ask() -> TransactionDescription:
            message = M.DescribeTransactionsRequest(transactional_ids=[transactional_id])
            (state,) = (await self._cluster.call_coordinator(message, transactional_id, TRANSACTION)).transaction_states
            self._check_coordinated(state.error_code, transactional_id, TRANSACTION, what)
            partitions = tuple(TopicPartition(each.topic, n) for each in state.topics for n in each.partitions)
            return TransactionDescription(
                transactional_id,
                state.transaction_state,
                state.producer_id,
                state.producer_epoch,
                state.transaction_timeout_ms,
                state.transaction_start_time_ms,
                partitions,
            )

        return self._run(self._cluster.retried(ask))

    # --- how ------------------------------------------------------------------------------------------------

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(coroutine)

    def _metadata(self, names: Collection[str] | None) -> Any:
        return self._run(self._cluster.retried(lambda: self._cluster.metadata(names)))

    def _controller(self, message: M.Message, results: str, highest: int | None = None) -> Any:
        """What the controller says of each, which is in the field `results`."""

        async def attempt() -> Any:
            connection = await self._cluster.controller()
            version = connection.version_of(ApiKey(message.API_KEY))  # type: ignore[arg-type]
            answer = await connection.call(message, version=version if highest is None else min(version, highest))
            found = getattr(answer, results)
            for result in found:
                if result.error_code == ErrorCode.NOT_CONTROLLER:
                    raise_for(result.error_code)
            return found

        return self._run(self._cluster.retried(attempt))

    def _check_coordinated(self, error_code: int, key: str, kind: int, what: str) -> None:
        """As raise_for; a coordinator that is none any more is forgotten."""
        if error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._cluster.forget_coordinator(key, kind)
        raise_for(error_code, None, what)

    async def _by_leader(self, partitions: list[TopicPartition]) -> dict[int, dict[str, list[int]]]:
        """Node id -> topic -> partition numbers."""
        await self._cluster.metadata({each.topic for each in partitions})
        found: dict[int, dict[str, list[int]]] = {}
        for topic, number in partitions:
            known = self._cluster.view.topics.get(topic)
            raise_for(known.error_code if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, f"topic {topic!r}")
            leader = self._cluster.leader(topic, number)
            if leader is None:
                there = known is not None and number in known.partitions
                code = ErrorCode.LEADER_NOT_AVAILABLE if there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise BrokerError(f"{topic}-{number}: {code.name}", code=code)
            found.setdefault(leader.leader_id, {}).setdefault(topic, []).append(number)
        return found

    def _describe_config(self, kind: int, name: str, node_id: int | None) -> dict[str, ConfigEntry]:
        request = M.DescribeConfigsRequest
        resource = request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)

        async def ask() -> dict[str, ConfigEntry]:
            answer = await self._cluster.call(request(resources=[resource]), node_id)
            (result,) = answer.results
            raise_for(result.error_code, result.error_message, f"settings of {name!r}")
            return {
                each.name: ConfigEntry(
                    each.name,
                    each.value,
                    SOURCES.get(each.config_source, "UNKNOWN"),
                    bool(each.is_default) or SOURCES.get(each.config_source) == "DEFAULT_CONFIG",
                    bool(each.read_only),
                    bool(each.is_sensitive),
                )
                for each in result.configs
            }

        return self._run(self._cluster.retried(ask))

    def _alter_config(
        self, kind: int, name: str, node_id: int | None, changes: Mapping[str, str | None], validate_only: bool
    ) -> None:
        request = M.IncrementalAlterConfigsRequest
        configs = [
            request.AlterableConfig(
                name=key, config_operation=DELETE if value is None else SET, value=None if value is None else str(value)
            )
            for key, value in changes.items()
        ]
        resource = request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)

        async def ask() -> None:
            answer = await self._cluster.call(request(resources=[resource], validate_only=validate_only), node_id)
            for result in answer.responses:
                raise_for(result.error_code, result.error_message, f"settings of {name!r}")

        self._run(self._cluster.retried(ask))
