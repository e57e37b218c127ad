"""AdminClient: what may be asked of and done to a cluster, its topics, settings, groups and records.

    with AdminClient(bootstrap_servers="localhost:9092") as admin:
        admin.create_topic("orders", partitions=6)

Every method blocks until it is done, at most `default.api.timeout.ms`, and raises BrokerError with the broker's code;
Ctrl-C interrupts. Any number of threads may use one client. `AsyncAdminClient` has the same methods, to be awaited.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from kbroker.client.admin_groups import described, described_newer
from kbroker.client.admin_results import (
    Broker,
    ClusterDescription,
    CommittedOffset,
    ConfigEntry,
    GroupDescription,
    GroupListing,
    OffsetAndTimestamp,
    PartitionDescription,
    TopicDescription,
    TransactionDescription,
    TransactionListing,
)
from kbroker.client.cluster import GROUP, TRANSACTION, Cluster, begin
from kbroker.client.config import NETWORK, parse_options
from kbroker.client.errors import BrokerError, raise_for
from kbroker.client.faces import Awaiting, Blocking, operation
from kbroker.errors import ErrorCode
from kbroker.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

if TYPE_CHECKING:
    from kbroker.client.option_types import NetworkOptions

EARLIEST, LATEST = EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE = 2, 4, 32
RESOURCES = {TOPIC_RESOURCE: "topic", BROKER_RESOURCE: "broker", GROUP_RESOURCE: "group"}
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
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


class AdminOperations:
    """What an admin client does, for both faces."""

    def __init__(self, config: Mapping[str, Any] | None = None, /, **options: Unpack[NetworkOptions]):
        parsed = parse_options(NETWORK, config, options, "AdminClient")
        if not parsed["bootstrap.servers"]:
            raise ValueError("bootstrap.servers is missing: HOST:PORT,... of one broker or more")
        self._timeout_ms: int = parsed["default.api.timeout.ms"]
        self._cluster: Cluster = begin(parsed)
        self._thread = self._cluster.network.thread

    @operation
    async def check_connection(self) -> None:
        """Connect to a broker, unless one is connected. ConnectionFailed at once where other calls would try again."""
        await self._cluster.any_connection()

    # --- topics ---------------------------------------------------------------------------------------------

    @operation
    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted; those of the broker's own only if asked for."""
        answer = await self._metadata(None)
        return sorted(topic.name for topic in answer.topics if internal or not topic.is_internal)

    @operation
    async def describe_topics(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """Topics by name. BrokerError for one that is not there."""
        answer = await self._metadata(names) if names else None
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

    @operation
    async def create_topic(
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
        for result in await self._controller(message, "topics"):
            raise_for(result.error_code, result.error_message, f"topic {result.name!r}")

    @operation
    async def delete_topics(self, names: Collection[str]) -> None:
        """BrokerError for the first that could not be deleted; the others are."""
        message = M.DeleteTopicsRequest(topic_names=list(names), timeout_ms=self._timeout_ms)

        # Version 6 names topics in another field, by their ids if need be.
        for result in await self._controller(message, "responses", highest=5):
            raise_for(result.error_code, result.error_message, f"topic {result.name!r}")

    @operation
    async def create_partitions(self, topic: str, total: int, *, validate_only: bool = False) -> None:
        """The topic has `total` partitions then; there is no way back."""
        request = M.CreatePartitionsRequest
        grown = request.CreatePartitionsTopic(name=topic, count=total, assignments=None)
        message = request(topics=[grown], timeout_ms=self._timeout_ms, validate_only=validate_only)
        for result in await self._controller(message, "results"):
            raise_for(result.error_code, result.error_message, f"topic {result.name!r}")

    # --- settings -------------------------------------------------------------------------------------------

    @operation
    async def describe_topic_config(self, topic: str) -> dict[str, ConfigEntry]:
        """Its settings by name, those that are not its own too."""
        return (await self._describe_configs(TOPIC_RESOURCE, [topic]))[topic]

    @operation
    async def describe_topic_configs(self, topics: Collection[str]) -> dict[str, dict[str, ConfigEntry]]:
        """Those of several topics, by their names."""
        return await self._describe_configs(TOPIC_RESOURCE, topics) if topics else {}

    @operation
    async def describe_broker_config(self, node_id: int | None) -> dict[str, ConfigEntry]:
        """Of a broker; None: what holds for all that have not their own."""
        name = _name_of(node_id)
        return (await self._describe_configs(BROKER_RESOURCE, [name], node_id))[name]

    @operation
    async def describe_group_config(self, group_id: str) -> dict[str, ConfigEntry]:
        """Of a group (Kafka 4.0 and later)."""
        return (await self._describe_configs(GROUP_RESOURCE, [group_id]))[group_id]

    @operation
    async def alter_topic_config(
        self,
        topic: str,
        changes: Mapping[str, str | None] | None = None,
        *,
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """None takes a setting back; `append`, `subtract` change lists. The others stay (Kafka 2.3 and later)."""
        await self._alter_config(TOPIC_RESOURCE, topic, None, _operations(changes, append, subtract), validate_only)

    @operation
    async def alter_broker_config(
        self,
        node_id: int | None,
        changes: Mapping[str, str | None] | None = None,
        *,
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Of a broker; None: of all that have not their own."""
        operations = _operations(changes, append, subtract)
        await self._alter_config(BROKER_RESOURCE, _name_of(node_id), node_id, operations, validate_only)

    @operation
    async def alter_group_config(
        self,
        group_id: str,
        changes: Mapping[str, str | None] | None = None,
        *,
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Of a group (Kafka 4.0 and later)."""
        await self._alter_config(GROUP_RESOURCE, group_id, None, _operations(changes, append, subtract), validate_only)

    # --- cluster, groups, offsets, records ------------------------------------------------------------------

    @operation
    async def describe_cluster(self) -> ClusterDescription:
        """As its brokers advertise themselves now."""
        await self._cluster.retried(self._cluster.refresh)
        view = self._cluster.view
        brokers = tuple(Broker(node.node_id, node.host, node.port, node.rack) for node in view.nodes.values())
        return ClusterDescription(view.cluster_id, view.controller_id, brokers)

    @operation
    async def list_groups(self) -> list[GroupListing]:
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

        return await self._cluster.retried(ask)

    @operation
    async def describe_group(self, group_id: str) -> GroupDescription:
        """A group of either protocol and its members. One that is not there is in the state "Dead"."""
        what = f"group {group_id!r}"

        async def ask() -> GroupDescription:
            node_id = await self._cluster.coordinator(group_id)
            answer = await self._cluster.call_coordinator(M.DescribeGroupsRequest(groups=[group_id]), group_id)
            (group,) = answer.groups
            # Kafka 4 says so where earlier ones describe a dead group (KIP-1043).
            if group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                self._check_coordinated(group.error_code, group_id, GROUP, what)
                if group.group_state != "Dead":
                    return described(group, node_id)
            connection = await self._cluster.connection(node_id)
            if connection.serves(ApiKey.CONSUMER_GROUP_DESCRIBE):
                answer = await connection.call(M.ConsumerGroupDescribeRequest(group_ids=[group_id]))
                (newer,) = answer.groups
                # Kafka 3.9 serves the API where it has none of these groups.
                if newer.error_code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
                    self._check_coordinated(newer.error_code, group_id, GROUP, what)
                    return described_newer(newer, node_id)
            return GroupDescription(group_id, "Dead", "", "", "", node_id, ())

        return await self._cluster.retried(ask)

    @operation
    async def delete_group(self, group_id: str) -> None:
        """And all it has committed. It must have no members."""

        async def ask() -> None:
            answer = await self._cluster.call_coordinator(M.DeleteGroupsRequest(groups_names=[group_id]), group_id)
            for result in answer.results:
                self._check_coordinated(result.error_code, group_id, GROUP, f"group {group_id!r}")

        await self._cluster.retried(ask)

    @operation
    async def committed(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
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

        return await self._cluster.retried(ask)

    @operation
    async def alter_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
    ) -> None:
        """Commit these for a group, which must have no members."""
        request = M.OffsetCommitRequest
        topics: dict[str, list[M.OffsetCommitRequest.OffsetCommitRequestPartition]] = {}
        for (topic, number), offset in offsets.items():
            topics.setdefault(topic, []).append(
                request.OffsetCommitRequestPartition(
                    partition_index=number, committed_offset=offset, committed_metadata=""
                )
            )
        named = [request.OffsetCommitRequestTopic(name=topic, partitions=those) for topic, those in topics.items()]
        message = request(group_id=group_id, generation_id_or_member_epoch=-1, topics=named)

        async def ask() -> None:
            answer = await self._cluster.call_coordinator(message, group_id)
            for topic in answer.topics:
                for each in topic.partitions:
                    what = f"group {group_id!r}, {topic.name}-{each.partition_index}"
                    self._check_coordinated(each.error_code, group_id, GROUP, what)

        await self._cluster.retried(ask)

    @operation
    async def list_offsets(
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

        return await self._cluster.retried(ask)

    @operation
    async def delete_records(
        self, before: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, int]:
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

        return await self._cluster.retried(ask)

    # --- transactions (Kafka 3.0 and later) -----------------------------------------------------------------

    @operation
    async def list_transactions(self, states: Collection[str] = ()) -> list[TransactionListing]:
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

        return await self._cluster.retried(ask)

    @operation
    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
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

        return await self._cluster.retried(ask)

    # --- how ------------------------------------------------------------------------------------------------

    async def _metadata(self, names: Collection[str] | None) -> Any:
        return await self._cluster.retried(lambda: self._cluster.metadata(names))

    async def _controller(self, message: M.Message, results: str, highest: int | None = None) -> Any:
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

        return await self._cluster.retried(attempt)

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

    async def _describe_configs(
        self, kind: int, names: Collection[str], node_id: int | None = None
    ) -> dict[str, dict[str, ConfigEntry]]:
        request = M.DescribeConfigsRequest
        resources = [
            request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
            for name in names
        ]

        async def ask() -> dict[str, dict[str, ConfigEntry]]:
            answer = await self._cluster.call(request(resources=resources), node_id)
            found = {}
            for result in answer.results:
                raise_for(result.error_code, result.error_message, f"{RESOURCES[kind]} {result.resource_name!r}")
                found[result.resource_name] = {each.name: _entry(each) for each in result.configs}
            return found

        return await self._cluster.retried(ask)

    async def _alter_config(
        self, kind: int, name: str, node_id: int | None, operations: list[tuple[str, int, str | None]], only: bool
    ) -> None:
        request = M.IncrementalAlterConfigsRequest
        configs = [
            request.AlterableConfig(name=key, config_operation=how, value=value) for key, how, value in operations
        ]
        resource = request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)

        async def ask() -> None:
            answer = await self._cluster.call(request(resources=[resource], validate_only=only), node_id)
            for result in answer.responses:
                raise_for(result.error_code, result.error_message, f"{RESOURCES[kind]} {name!r}")

        await self._cluster.retried(ask)


class AdminClient(AdminOperations, Blocking):
    """Options as a mapping with dots or keywords with underscores. TypeError, ValueError: an option is wrong."""


class AsyncAdminClient(AdminOperations, Awaiting):
    """As AdminClient, in any event loop: its methods are awaited, and so is its `close`. `async with`."""


def _name_of(node_id: int | None) -> str:
    return "" if node_id is None else str(node_id)


def _entry(config: Any) -> ConfigEntry:
    source = SOURCES.get(config.config_source, "UNKNOWN")
    is_default = bool(config.is_default) or source == "DEFAULT_CONFIG"
    return ConfigEntry(config.name, config.value, source, is_default, bool(config.read_only), bool(config.is_sensitive))


def _operations(
    changes: Mapping[str, str | None] | None, append: Mapping[str, str] | None, subtract: Mapping[str, str] | None
) -> list[tuple[str, int, str | None]]:
    return [
        *(
            (name, DELETE, None) if value is None else (name, SET, str(value))
            for name, value in (changes or {}).items()
        ),
        *((name, APPEND, value) for name, value in (append or {}).items()),
        *((name, SUBTRACT, value) for name, value in (subtract or {}).items()),
    ]
