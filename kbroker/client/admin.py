"""AdminClient: what may be asked of and done to a cluster, its topics, settings, groups, records and transactions.

    with AdminClient(bootstrap_servers="localhost:9092") as admin:
        admin.create_topic("orders", partitions=6)

Every method blocks until it is done, at most `default.api.timeout.ms`; Ctrl-C interrupts. Any number of threads may use
one client. `AsyncAdminClient` has the same methods, to be awaited. What is refused raises BrokerError with the broker's
code; of several things asked for in one call PartialFailure says which, the others are done. What a broker is too old
for is UNSUPPORTED_VERSION, and names the API.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from kbroker.client.admin_calls import brokers, configs, groups, log_dirs, offsets, topics, transactions
from kbroker.client.admin_results import (
    ClusterDescription,
    ConfigEntry,
    Features,
    GroupDescription,
    GroupListing,
    LogDirDescription,
    NewTopic,
    OffsetAndTimestamp,
    ProducerState,
    ReplicaLogDir,
    TopicDescription,
    TopicPartitionReplica,
    TransactionDescription,
    TransactionListing,
)
from kbroker.client.arguments import names_of, partition_of, partitions_of
from kbroker.client.cluster import Cluster, begin
from kbroker.client.config import NETWORK, parse_options, require_servers
from kbroker.client.connection import setup_hint
from kbroker.client.consumer.group_metadata import OffsetAndMetadata
from kbroker.client.errors import ConnectionFailed
from kbroker.client.faces import Awaiting, Blocking, operation
from kbroker.client.prepared_transaction import PreparedTransaction
from kbroker.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from kbroker.client.option_types import NetworkOptions

EARLIEST, LATEST, NEWEST = EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP
Partition = TopicPartition | tuple[str, int]
Offset = int | OffsetAndMetadata


class AdminOperations:
    """What an admin client does, for both faces."""

    def __init__(self, config: Mapping[str, Any] | None = None, /, **options: Unpack[NetworkOptions]):
        parsed = parse_options(NETWORK, config, options, "AdminClient")
        require_servers(parsed)
        self._cluster: Cluster = begin(parsed)
        self._thread = self._cluster.network.thread

    @operation
    async def check_connection(self) -> None:
        """Ask a broker for the cluster's brokers. ConnectionFailed at once where other calls would try again."""
        await self._cluster.any_connection()
        try:
            await self._cluster.metadata([])
        except ConnectionFailed as error:
            error.hint = error.hint or setup_hint(self._cluster.network)
            raise

    # --- topics ---------------------------------------------------------------------------------------------

    @operation
    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted; those of the broker's own only if asked for."""
        return await topics.names(self._cluster, internal)

    @operation
    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        """Topics by name."""
        return await topics.describe(self._cluster, names_of(names, "topics"))

    @operation
    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        *,
        assignments: Sequence[Sequence[int]] = (),
        validate_only: bool = False,
    ) -> None:
        """-1: the broker's default (Kafka 2.4 and later). `assignments` instead: the brokers of partition 0, of 1, ...

        `validate_only` tells whether it could be created (Kafka 0.10.2 and later).
        """
        topic = NewTopic(name, partitions, replication_factor, configs or {}, assignments)
        await topics.create(self._cluster, [topic], validate_only)

    @operation
    async def create_topics(self, wanted: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Several at once. When this returns a broker tells of them."""
        await topics.create(self._cluster, list(wanted), validate_only)

    @operation
    async def delete_topics(self, names: Iterable[str]) -> None:
        """And all that is in them."""
        await topics.delete(self._cluster, names_of(names, "topics"))

    @operation
    async def create_partitions(
        self, topic: str, total: int, *, assignments: Sequence[Sequence[int]] | None = None, validate_only: bool = False
    ) -> None:
        """The topic has `total` partitions then; there is no way back. `assignments`: the brokers of each new one."""
        await topics.create_partitions(self._cluster, topic, total, assignments, validate_only)

    # --- settings -------------------------------------------------------------------------------------------

    @operation
    async def describe_topic_config(self, topic: str) -> dict[str, ConfigEntry]:
        """Its settings by name, those that are not its own too."""
        return (await configs.describe(self._cluster, configs.TOPIC, [topic]))[topic]

    @operation
    async def describe_topic_configs(self, names: Collection[str]) -> dict[str, dict[str, ConfigEntry]]:
        """Those of several topics, by their names."""
        return await configs.describe(self._cluster, configs.TOPIC, names_of(names, "topics"))

    @operation
    async def describe_broker_config(self, node_id: int | None) -> dict[str, ConfigEntry]:
        """Of a broker; None: what holds for all that have not their own."""
        name = _name_of(node_id)
        return (await configs.describe(self._cluster, configs.BROKER, [name]))[name]

    @operation
    async def describe_group_config(self, group_id: str) -> dict[str, ConfigEntry]:
        """Of a group (Kafka 4.0 and later)."""
        return (await configs.describe(self._cluster, configs.GROUP, [group_id]))[group_id]

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
        """None takes a setting back; `append`, `subtract` change lists. The others stay.

        Brokers before Kafka 2.3 take all settings of a topic or a broker at once: they are read, changed and written,
        and what somebody else changes meanwhile is lost; they have no `append` and `subtract`.
        """
        await self._alter(configs.TOPIC, topic, configs.operations(changes, append, subtract), validate_only)

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
        await self._alter(
            configs.BROKER, _name_of(node_id), configs.operations(changes, append, subtract), validate_only
        )

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
        await self._alter(configs.GROUP, group_id, configs.operations(changes, append, subtract), validate_only)

    async def _alter(self, kind: int, name: str, changes: list[configs.Operation], validate_only: bool) -> None:
        await configs.alter(self._cluster, kind, name, changes, validate_only)

    # --- cluster --------------------------------------------------------------------------------------------

    @operation
    async def describe_cluster(self) -> ClusterDescription:
        """As its brokers advertise themselves now."""
        return await brokers.describe(self._cluster)

    @operation
    async def describe_features(self) -> Features:
        """What the brokers can do beyond versions of APIs (Kafka 2.4 and later; they have some from 2.7 on)."""
        return await brokers.features(self._cluster)

    @operation
    async def describe_log_dirs(
        self, node_ids: Collection[int] | None = None
    ) -> dict[int, tuple[LogDirDescription, ...]]:
        """The log directories of brokers, by node id; of all brokers when none is named (Kafka 1.0 and later)."""
        return await log_dirs.describe(self._cluster, node_ids)

    @operation
    async def describe_replica_log_dirs(
        self, replicas: Iterable[TopicPartitionReplica | tuple[str, int, int]]
    ) -> dict[TopicPartitionReplica, ReplicaLogDir]:
        """Where brokers have replicas (topic, partition, node id), and where they are being moved to (Kafka 1.1)."""
        return await log_dirs.describe_replicas(self._cluster, [TopicPartitionReplica(*each) for each in replicas])

    @operation
    async def alter_replica_log_dirs(
        self,
        paths: Mapping[TopicPartitionReplica, str] | Mapping[tuple[str, int, int], str],
    ) -> None:
        """Have brokers move replicas to other log directories of theirs, in the background (Kafka 1.1). What is not
        there yet is refused, and noted: it is made there when it is made.
        """
        wanted = {TopicPartitionReplica(*replica): path for replica, path in paths.items()}
        await log_dirs.move(self._cluster, wanted)

    # --- groups ---------------------------------------------------------------------------------------------

    @operation
    async def list_groups(self, *, states: Collection[str] = (), types: Collection[str] = ()) -> list[GroupListing]:
        """Those of all brokers, sorted by name; in one of `states` (Kafka 2.6), of one of `types` (3.8) if given."""
        return await groups.listing(self._cluster, names_of(states, "states"), names_of(types, "types"))

    @operation
    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Groups of either protocol and their members. One that is not there is in the state "Dead"."""
        return await groups.describe(self._cluster, names_of(group_ids, "groups"))

    @operation
    async def describe_group(self, group_id: str) -> GroupDescription:
        return (await groups.describe(self._cluster, [group_id]))[group_id]

    @operation
    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """And all they have committed (Kafka 1.1 and later). They must have no members."""
        await groups.delete(self._cluster, names_of(group_ids, "groups"))

    @operation
    async def delete_group(self, group_id: str) -> None:
        await groups.delete(self._cluster, [group_id])

    @operation
    async def remove_members(
        self, group_id: str, *, instance_ids: Collection[str] = (), member_ids: Collection[str] = ()
    ) -> None:
        """Static members by group.instance.id, others by their ids (Kafka 2.4 and later). Who lives joins again."""
        await groups.remove_members(
            self._cluster, group_id, names_of(instance_ids, "instance ids"), names_of(member_ids, "member ids")
        )

    @operation
    async def committed(
        self, group_id: str, partitions: Iterable[Partition] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed: for these, or for all that it has committed for (Kafka 0.10.2 and later).

        `require_stable`: wait for transactions that are about to commit some of these (Kafka 2.5 and later).
        """
        wanted = None if partitions is None else partitions_of(partitions)
        return await groups.committed(self._cluster, group_id, wanted, require_stable)

    @operation
    async def alter_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, Offset] | Mapping[tuple[str, int], Offset]
    ) -> None:
        """Commit these for a group, which must have no members."""
        wanted = {
            partition_of(at): each if isinstance(each, OffsetAndMetadata) else OffsetAndMetadata(each)
            for at, each in offsets.items()
        }
        await groups.alter_offsets(self._cluster, group_id, wanted)

    @operation
    async def delete_offsets(self, group_id: str, partitions: Iterable[Partition]) -> None:
        """What the group has committed for these topics' partitions, which it must not read (Kafka 2.4 and later)."""
        wanted = partitions_of(partitions)
        await groups.delete_offsets(self._cluster, group_id, wanted)

    # --- records --------------------------------------------------------------------------------------------

    @operation
    async def list_offsets(
        self, partitions: Iterable[Partition], at: int = LATEST, *, read_committed: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Where each begins (EARLIEST), ends (LATEST), or has its first record at or after `at`, in ms since 1970.

        NEWEST: its record of the latest time (Kafka 3.0). `read_committed`: the end of what no transaction holds back.
        """
        wanted = partitions_of(partitions)
        return await offsets.listing(self._cluster, wanted, at, read_committed)

    @operation
    async def delete_records(
        self, before: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, int]:
        """Delete the records below an offset (-1: all) of each partition (Kafka 0.11). Where each begins then."""
        wanted = {partition_of(partition): offset for partition, offset in before.items()}
        return await offsets.delete_before(self._cluster, wanted)

    # --- transactions (Kafka 3.0 and later) -----------------------------------------------------------------

    @operation
    async def list_transactions(
        self, states: Collection[str] = (), *, producer_ids: Collection[int] = (), older_than_ms: int = -1
    ) -> list[TransactionListing]:
        """The transactional ids of all brokers, sorted; only those in one of `states`, of one of these producers, and
        whose transaction has been open so long (Kafka 3.8), if any are given."""
        return await transactions.listing(self._cluster, names_of(states, "states"), producer_ids, older_than_ms)

    @operation
    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """By transactional id."""
        return await transactions.describe(self._cluster, names_of(transactional_ids, "transactional ids"))

    @operation
    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """BrokerError when nobody has used the id."""
        return (await transactions.describe(self._cluster, [transactional_id]))[transactional_id]

    @operation
    async def describe_producers(
        self, partitions: Iterable[Partition], *, node_id: int | None = None
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """The producers that partitions' leaders know, and where their open transactions begin (Kafka 2.8).

        `node_id`: ask this broker, which has replicas of them, instead of the leaders.
        """
        wanted = partitions_of(partitions)
        return await transactions.producers(self._cluster, wanted, node_id)

    @operation
    async def abort_transaction(self, partition: Partition, producer: ProducerState) -> None:
        """End a transaction that hangs in a partition, of a producer from `describe_producers` (Kafka 0.11).

        The transaction's coordinator is not asked: only for one that it does not know of any more.
        """
        await transactions.abort(self._cluster, partition_of(partition), producer)

    @operation
    async def end_transactions(self, prepared: Iterable[PreparedTransaction], *, commit: bool) -> None:
        """Commit or abort what `Producer.prepare_transaction` has left open (Kafka 0.11).

        The same end may be asked for again. PRODUCER_FENCED, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE or
        INVALID_PRODUCER_ID_MAPPING: it is not open any more and cannot end so; brokers have aborted it, or its
        transactional id was used again since. After TimedOut nobody knows: ask again.
        """
        await transactions.end(self._cluster, prepared, commit)

    @operation
    async def fence_producers(self, transactional_ids: Iterable[str]) -> None:
        """Whoever uses these ids cannot write any more; their open transactions are aborted (Kafka 0.11)."""
        await transactions.fence(self._cluster, names_of(transactional_ids, "transactional ids"))


class AdminClient(AdminOperations, Blocking):
    """Options as a mapping with dots or keywords with underscores. TypeError, ValueError: an option is wrong."""


class AsyncAdminClient(AdminOperations, Awaiting):
    """As AdminClient, in any event loop: its methods are awaited, and so is its `close`. `async with`."""


def _name_of(node_id: int | None) -> str:
    return "" if node_id is None else str(node_id)
