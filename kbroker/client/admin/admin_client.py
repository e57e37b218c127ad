"""AdminClient and AsyncAdminClient: describe and change a cluster's topics, settings, groups, records, transactions.

    with AdminClient(bootstrap_servers="localhost:9092") as admin:
        admin.create_topic("orders", partitions=6)

Every method of AdminClient blocks until it is done, for at most default.api.timeout.ms; Ctrl-C interrupts it. Any
number of threads may use one client. `AsyncAdminClient` has the same methods, to be awaited.

Every method raises BrokerError when a broker refuses, with the broker's code, and TimedOut or ConnectionFailed when the
time is over. A call about several things raises PartialFailure when only some of them fail: it has the error of each of
those, and the others are done. A broker that is too old for a call gives the code UNSUPPORTED_VERSION, and a message
that names the API. "Kafka 2.4" in a docstring means: Kafka 2.4 and later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from kbroker.client.admin import brokers, configs, groups, log_dirs, offsets, replicas, topics, transactions
from kbroker.client.admin.results import (
    ClusterDescription,
    ConfigEntry,
    Features,
    FetchedBatches,
    GroupDescription,
    GroupListing,
    LogDirDescription,
    NewTopic,
    OffsetAndTimestamp,
    ProducerState,
    Reassignment,
    ReplicaLogDir,
    TopicDescription,
    TopicPartitionReplica,
    TransactionDescription,
    TransactionListing,
)
from kbroker.client.arguments import names_of, partition_of, partitions_of
from kbroker.client.config.network import NETWORK
from kbroker.client.config.parsing import parse_options, require_servers
from kbroker.client.consumer.group_metadata import OffsetAndMetadata
from kbroker.client.errors import ConnectionFailed
from kbroker.client.network.cluster import Cluster, begin
from kbroker.client.network.connecting import setup_hint
from kbroker.client.network.faces import Awaiting, Blocking, operation
from kbroker.client.prepared_transaction import PreparedTransaction
from kbroker.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from kbroker.client.config.option_types import NetworkOptions

EARLIEST, LATEST, NEWEST = EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP
Partition = TopicPartition | tuple[str, int]
Offset = int | OffsetAndMetadata


class AdminOperations:
    """The methods that AdminClient and AsyncAdminClient share. Their exceptions: see the module's docstring."""

    def __init__(self, config: Mapping[str, Any] | None = None, /, **options: Unpack[NetworkOptions]):
        parsed = parse_options(NETWORK, config, options, "AdminClient")
        require_servers(parsed)
        self._cluster: Cluster = begin(parsed)
        self._thread = self._cluster.network.thread

    @operation
    async def check_connection(self) -> None:
        """Ask one broker for the cluster's brokers, in a single attempt.

        Raises ConnectionFailed when no broker is reached; other calls would try again.
        """
        await self._cluster.any_connection()
        try:
            await self._cluster.metadata([])
        except ConnectionFailed as error:
            error.hint = error.hint or setup_hint(self._cluster.network)
            raise

    # --- topics ---------------------------------------------------------------------------------------------

    @operation
    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted. `internal`: with the brokers' own topics."""
        return await topics.names(self._cluster, internal)

    @operation
    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        """Return the descriptions of topics, by name."""
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
        """Create a topic.

        `partitions` and `replication_factor` -1 stand for the broker's defaults (Kafka 2.4). `assignments` replaces
        both: the node ids of the replicas of partition 0, of partition 1, and so on. `configs`: the topic's settings.
        `validate_only`: check whether the topic could be created, and create nothing (Kafka 0.10.2).
        """
        topic = NewTopic(name, partitions, replication_factor, configs or {}, assignments)
        await topics.create(self._cluster, [topic], validate_only)

    @operation
    async def create_topics(self, wanted: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Create several topics with one request. See `create_topic` for the arguments.

        It returns when a broker's metadata has the new topics, or after 5 s. Raises TypeError when one is no NewTopic.
        """
        await topics.create(self._cluster, list(wanted), validate_only)

    @operation
    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics and all their records."""
        await topics.delete(self._cluster, names_of(names, "topics"))

    @operation
    async def create_partitions(
        self, topic: str, total: int, *, assignments: Sequence[Sequence[int]] | None = None, validate_only: bool = False
    ) -> None:
        """Raise the number of a topic's partitions to `total`. It cannot be lowered again.

        `assignments`: the node ids of the replicas of each new partition. `validate_only`: check, and change nothing.
        """
        await topics.create_partitions(self._cluster, topic, total, assignments, validate_only)

    # --- replicas -------------------------------------------------------------------------------------------

    @operation
    async def elect_leaders(
        self, partitions: Iterable[Partition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, bool]:
        """Make the preferred replica of each partition its leader. Returns whether the leader has changed.

        `partitions` None: of all partitions; the result then has only those that needed an election. `unclean`: elect a
        leader where no replica in sync is alive, although records may be lost (KIP-460; Kafka 2.4). A partition
        whose preferred replica is not in sync or not alive has the error PREFERRED_LEADER_NOT_AVAILABLE.
        """
        chosen = None if partitions is None else partitions_of(partitions)
        return await replicas.elect(self._cluster, chosen, unclean=unclean)

    @operation
    async def alter_partition_reassignments(
        self,
        wanted: Mapping[TopicPartition, Sequence[int] | None] | Mapping[tuple[str, int], Sequence[int] | None],
    ) -> None:
        """Begin to move partitions to the brokers with these node ids, the preferred leader first (Kafka 2.4).
        None in place of the node ids cancels a move that is under way. Returns when the move has begun;
        `list_partition_reassignments` tells what is not done yet. A partition that does not move has the error
        NO_REASSIGNMENT_IN_PROGRESS when its move is cancelled.
        """
        await replicas.reassign(self._cluster, {partition_of(at): ids for at, ids in wanted.items()})

    @operation
    async def list_partition_reassignments(
        self, partitions: Iterable[Partition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the partitions whose replicas are moving (Kafka 2.4). `partitions`: only these are looked at."""
        return await replicas.reassignments(self._cluster, None if partitions is None else partitions_of(partitions))

    @operation
    async def fetch_replica(
        self, partition: Partition, node_id: int, offset: int, *, max_bytes: int = 8 << 20
    ) -> FetchedBatches:
        """Read record batches as they are in the log of one replica, leader or follower (KIP-392; Kafka 2.4).

        The first batch is the one that has `offset`, whatever its size; others follow up to `max_bytes`. Only what the
        replica knows to be committed is read. Below the log's start or above its end there are no batches, and the
        result tells where it begins. An older broker refuses with UNSUPPORTED_VERSION.
        """
        return await replicas.fetch(self._cluster, partition_of(partition), node_id, offset, max_bytes)

    # --- settings -------------------------------------------------------------------------------------------

    @operation
    async def describe_topic_config(self, topic: str) -> dict[str, ConfigEntry]:
        """Return all settings of a topic by name, also those that it takes from the broker or from defaults."""
        return (await configs.describe(self._cluster, configs.TOPIC, [topic]))[topic]

    @operation
    async def describe_topic_configs(
        self, names: Collection[str], *, only: Collection[str] = ()
    ) -> dict[str, dict[str, ConfigEntry]]:
        """Return all settings of several topics, by the topics' names. `only`: those with these names, unless empty."""
        return await configs.describe(self._cluster, configs.TOPIC, names_of(names, "topics"), only)

    @operation
    async def describe_broker_config(self, node_id: int | None) -> dict[str, ConfigEntry]:
        """Return the settings of a broker by name. `node_id` None: those set for all brokers together."""
        name = _name_of(node_id)
        return (await configs.describe(self._cluster, configs.BROKER, [name]))[name]

    @operation
    async def describe_group_config(self, group_id: str) -> dict[str, ConfigEntry]:
        """Return the settings of a group by name (Kafka 4.0)."""
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
        """Change some settings of a topic; the others stay as they are.

        `changes`: new values by name; None removes the topic's own value. `append` and `subtract`: add items to a list,
        or remove them from it. `validate_only`: check, and change nothing.

        Before Kafka 2.3 a broker only takes all settings of a resource at once. Then they are read, changed and
        written: what somebody else changes meanwhile is lost, and `append` and `subtract` raise BrokerError. Raises
        UsageError when such a broker hides a secret setting that is not in `changes`.
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
        """Change some settings of a broker, as `alter_topic_config` does.

        `node_id` None: for all brokers that have no value of their own.
        """
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
        """Change some settings of a group, as `alter_topic_config` does (Kafka 4.0)."""
        await self._alter(configs.GROUP, group_id, configs.operations(changes, append, subtract), validate_only)

    async def _alter(self, kind: int, name: str, changes: list[configs.Operation], validate_only: bool) -> None:
        await configs.alter(self._cluster, kind, name, changes, validate_only)

    # --- cluster --------------------------------------------------------------------------------------------

    @operation
    async def describe_cluster(self) -> ClusterDescription:
        """Return the cluster's id, its controller, and its brokers as they advertise themselves now."""
        return await brokers.describe(self._cluster)

    @operation
    async def describe_features(self) -> Features:
        """Return the feature levels that brokers support, and those in force (Kafka 2.4; some exist from 2.7 on)."""
        return await brokers.features(self._cluster)

    @operation
    async def describe_log_dirs(
        self, node_ids: Collection[int] | None = None
    ) -> dict[int, tuple[LogDirDescription, ...]]:
        """Return the log directories of brokers, by node id; None: of all brokers (Kafka 1.0).

        All brokers are asked at once. PartialFailure has the error of each broker that does not answer.
        """
        return await log_dirs.describe(self._cluster, node_ids)

    @operation
    async def describe_replica_log_dirs(
        self, replicas: Iterable[TopicPartitionReplica | tuple[str, int, int]]
    ) -> dict[TopicPartitionReplica, ReplicaLogDir]:
        """Return the log directory of each replica (topic, partition, node id), and the one it moves to (Kafka 1.1)."""
        return await log_dirs.describe_replicas(self._cluster, [TopicPartitionReplica(*each) for each in replicas])

    @operation
    async def alter_replica_log_dirs(
        self,
        paths: Mapping[TopicPartitionReplica, str] | Mapping[tuple[str, int, int], str],
    ) -> None:
        """Ask brokers to move replicas to other log directories of theirs, in the background (Kafka 1.1).

        `paths` has the new directory of each replica. For a replica that does not exist yet the broker answers with an
        error, but notes the directory and creates the replica there later.
        """
        wanted = {TopicPartitionReplica(*replica): path for replica, path in paths.items()}
        await log_dirs.move(self._cluster, wanted)

    # --- groups ---------------------------------------------------------------------------------------------

    @operation
    async def list_groups(self, *, states: Collection[str] = (), types: Collection[str] = ()) -> list[GroupListing]:
        """Return the groups of all brokers, sorted by name. PartialFailure has lists and errors by node id.

        `states`: only groups in one of these states (Kafka 2.6). `types`: only groups of one of these types (Kafka
        3.8).
        """
        return await groups.listing(self._cluster, names_of(states, "states"), names_of(types, "types"))

    @operation
    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Return the descriptions of groups of either protocol, with their members, by group id.

        A group that does not exist has the state "Dead".
        """
        return await groups.describe(self._cluster, names_of(group_ids, "groups"))

    @operation
    async def describe_group(self, group_id: str) -> GroupDescription:
        """Return the description of one group; its state is "Dead" when it does not exist."""
        return (await groups.describe(self._cluster, [group_id]))[group_id]

    @operation
    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups and their committed offsets (Kafka 1.1). A group with members is refused."""
        await groups.delete(self._cluster, names_of(group_ids, "groups"))

    @operation
    async def delete_group(self, group_id: str) -> None:
        """Delete one group and its committed offsets (Kafka 1.1). A group with members is refused."""
        await groups.delete(self._cluster, [group_id])

    @operation
    async def remove_members(
        self, group_id: str, *, instance_ids: Collection[str] = (), member_ids: Collection[str] = ()
    ) -> None:
        """Remove members from a group: static ones by group.instance.id, others by member id (Kafka 2.4).

        A member that is still running joins again.
        """
        await groups.remove_members(
            self._cluster, group_id, names_of(instance_ids, "instance ids"), names_of(member_ids, "member ids")
        )

    @operation
    async def committed(
        self, group_id: str, partitions: Iterable[Partition] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed positions of a group. A partition without one is left out.

        `partitions` None: all partitions that the group has committed (Kafka 0.10.2). `require_stable`: wait for open
        transactions that are to commit some of these (Kafka 2.5).
        """
        wanted = None if partitions is None else partitions_of(partitions)
        return await groups.committed(self._cluster, group_id, wanted, require_stable)

    @operation
    async def alter_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, Offset] | Mapping[tuple[str, int], Offset]
    ) -> None:
        """Commit offsets for a group, each the next record to read. A group with members is refused."""
        wanted = {
            partition_of(at): each if isinstance(each, OffsetAndMetadata) else OffsetAndMetadata(each)
            for at, each in offsets.items()
        }
        await groups.alter_offsets(self._cluster, group_id, wanted)

    @operation
    async def delete_offsets(self, group_id: str, partitions: Iterable[Partition]) -> None:
        """Delete a group's committed offsets of some partitions (Kafka 2.4).

        A topic that the group subscribes to is refused.
        """
        wanted = partitions_of(partitions)
        await groups.delete_offsets(self._cluster, group_id, wanted)

    # --- records --------------------------------------------------------------------------------------------

    @operation
    async def list_offsets(
        self, partitions: Iterable[Partition], at: int = LATEST, *, read_committed: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return one offset of each partition.

        `at` says which: EARLIEST the first, LATEST the end (behind the last record), NEWEST the record with the latest
        timestamp (Kafka 3.0); any other value the first record at or after that time, in milliseconds since 1970. The
        offset is -1 when there is no such record. `read_committed`: the end is before the first open transaction.
        """
        wanted = partitions_of(partitions)
        return await offsets.listing(self._cluster, wanted, at, read_committed)

    @operation
    async def list_log_end_offsets(
        self, replicas: Iterable[TopicPartitionReplica | tuple[str, int, int]]
    ) -> dict[TopicPartitionReplica, int]:
        """Return the end of the log of each replica (topic, partition, node id), leader or follower.

        What is behind the high watermark, and may still go, is counted too: of a replica that is not in sync, the
        leader's end less its own is by how many offsets it lags.
        """
        return await offsets.log_ends(self._cluster, [TopicPartitionReplica(*each) for each in replicas])

    @operation
    async def delete_records(
        self, before: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset of each partition; offset -1: all records (Kafka 0.11).

        Returns the first offset that each partition has then.
        """
        wanted = {partition_of(partition): offset for partition, offset in before.items()}
        return await offsets.delete_before(self._cluster, wanted)

    # --- transactions (Kafka 3.0 and later) -----------------------------------------------------------------

    @operation
    async def list_transactions(
        self, states: Collection[str] = (), *, producer_ids: Collection[int] = (), older_than_ms: int = -1
    ) -> list[TransactionListing]:
        """Return the transactional ids of all brokers, sorted.

        `states`: only ids in one of these states. `producer_ids`: only ids of one of these producers. `older_than_ms`:
        only ids whose transaction has been open for longer (Kafka 3.8); -1: all.
        """
        return await transactions.listing(self._cluster, names_of(states, "states"), producer_ids, older_than_ms)

    @operation
    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Return the state of transactional ids, by id. Raises BrokerError for an id that nobody has used."""
        return await transactions.describe(self._cluster, names_of(transactional_ids, "transactional ids"))

    @operation
    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Return the state of one transactional id. Raises BrokerError when nobody has used it."""
        return (await transactions.describe(self._cluster, [transactional_id]))[transactional_id]

    @operation
    async def describe_producers(
        self, partitions: Iterable[Partition], *, node_id: int | None = None
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """Return the producers that each partition's leader knows, and where their open transactions begin (Kafka 2.8).

        `node_id`: ask this broker, which must have replicas of the partitions, instead of the leaders.
        """
        wanted = partitions_of(partitions)
        return await transactions.producers(self._cluster, wanted, node_id)

    @operation
    async def abort_transaction(self, partition: Partition, producer: ProducerState) -> None:
        """Abort a hanging transaction in one partition; `producer` is from `describe_producers` (Kafka 0.11).

        The marker is written without asking the transaction's coordinator. Use it only for a transaction that the
        coordinator does not know any more.
        """
        await transactions.abort(self._cluster, partition_of(partition), producer)

    @operation
    async def end_transactions(self, prepared: Iterable[PreparedTransaction], *, commit: bool) -> None:
        """Commit or abort transactions that `Producer.prepare_transaction` has left open (Kafka 0.11).

        Asking again for the same end is safe. After TimedOut the outcome is not known: ask again. BrokerError with
        PRODUCER_FENCED, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE or INVALID_PRODUCER_ID_MAPPING means that the
        transaction is no longer open and cannot end so: brokers have aborted it, or its transactional id was used again
        since.
        """
        await transactions.end(self._cluster, prepared, commit)

    @operation
    async def fence_producers(self, transactional_ids: Iterable[str]) -> None:
        """Fence the producers that use these ids: they cannot write any more, and their open transactions are aborted
        (Kafka 0.11).
        """
        await transactions.fence(self._cluster, names_of(transactional_ids, "transactional ids"))


class AdminClient(AdminOperations, Blocking):
    """The administration client for threads; its methods block. A context manager.

    Options are keywords with underscores, or a mapping with Kafka's dotted names. The constructor raises TypeError for
    an option that does not exist, and ValueError for a value that is not allowed.
    """


class AsyncAdminClient(AdminOperations, Awaiting):
    """The administration client for asyncio: all methods of AdminClient, `close` included, are awaited.

    Any event loop may use it. An asynchronous context manager.
    """


def _name_of(node_id: int | None) -> str:
    return "" if node_id is None else str(node_id)
