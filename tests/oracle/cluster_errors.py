"""The error codes that Apache Kafka 3.9 can give only where there are several brokers, or between them.

It goes on where `errors.py` ends: with each code that a single broker cannot give, and all codes of the APIs between
brokers. None: a case of the cluster makes Kafka give the code. A text: why none does.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from tests.oracle.errors import AUTHORIZER, NOT_THROWN, Reasons, provoked

STARTS = "only in the moment in which a coordinator starts or stops"
SHRINKS = "only if the ISR shrinks while an append waits for it"
LATE = "only if the broker is told of its new leaders later than it answers"
ANYWHERE = "any broker of a cluster in ZooKeeper changes configs"
QUORUM = "only in KRaft"
BAD_RECORDS = "only with a damaged segment; tests of storage do that"
ZOOKEEPER = "only while ZooKeeper refuses or is away"

E = ErrorCode
COORDINATOR: Reasons = {E.NOT_COORDINATOR: None, E.COORDINATOR_NOT_AVAILABLE: STARTS}
CONTROLLER: Reasons = {E.NOT_CONTROLLER: None}
BETWEEN: Reasons = {E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER}

IN_A_CLUSTER: dict[ApiKey, Reasons] = {
    ApiKey.LEADER_AND_ISR: {
        **BETWEEN,
        **provoked(
            E.STALE_CONTROLLER_EPOCH,
            E.STALE_BROKER_EPOCH,
            E.KAFKA_STORAGE_ERROR,
            E.INCONSISTENT_TOPIC_ID,
            E.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        E.UNKNOWN_SERVER_ERROR: ZOOKEEPER,
    },
    ApiKey.STOP_REPLICA: {
        **BETWEEN,
        **provoked(E.STALE_CONTROLLER_EPOCH, E.STALE_BROKER_EPOCH, E.KAFKA_STORAGE_ERROR, E.FENCED_LEADER_EPOCH),
    },
    ApiKey.UPDATE_METADATA: {**BETWEEN, **provoked(E.STALE_CONTROLLER_EPOCH, E.STALE_BROKER_EPOCH)},
    ApiKey.CONTROLLED_SHUTDOWN: {
        **BETWEEN,
        **provoked(E.STALE_CONTROLLER_EPOCH, E.STALE_BROKER_EPOCH, E.BROKER_NOT_AVAILABLE),
    },
    ApiKey.ALTER_PARTITION: {
        **BETWEEN,
        **provoked(
            E.NOT_CONTROLLER,
            E.STALE_BROKER_EPOCH,
            E.UNKNOWN_TOPIC_ID,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.FENCED_LEADER_EPOCH,
            E.INVALID_UPDATE_VERSION,
            E.INVALID_REQUEST,
            E.INELIGIBLE_REPLICA,
            E.OPERATION_NOT_ATTEMPTED,
        ),
        E.UNKNOWN_SERVER_ERROR: ZOOKEEPER,
    },
    ApiKey.ALLOCATE_PRODUCER_IDS: {
        **BETWEEN,
        **provoked(E.NOT_CONTROLLER, E.BROKER_ID_NOT_REGISTERED, E.STALE_BROKER_EPOCH),
        E.UNKNOWN_SERVER_ERROR: ZOOKEEPER,
    },
    ApiKey.PRODUCE: {
        **provoked(E.NOT_LEADER_OR_FOLLOWER, E.NOT_ENOUGH_REPLICAS, E.REQUEST_TIMED_OUT, E.KAFKA_STORAGE_ERROR),
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: SHRINKS,
    },
    ApiKey.FETCH: {
        **provoked(E.KAFKA_STORAGE_ERROR, E.FENCED_LEADER_EPOCH),
        E.OFFSET_NOT_AVAILABLE: NOT_THROWN,
        E.REPLICA_NOT_AVAILABLE: NOT_THROWN,
        E.CORRUPT_MESSAGE: BAD_RECORDS,
    },
    ApiKey.LIST_OFFSETS: provoked(
        E.NOT_LEADER_OR_FOLLOWER, E.KAFKA_STORAGE_ERROR, E.OFFSET_NOT_AVAILABLE, E.LEADER_NOT_AVAILABLE
    ),
    ApiKey.METADATA: provoked(E.LEADER_NOT_AVAILABLE, E.REPLICA_NOT_AVAILABLE),
    ApiKey.OFFSET_COMMIT: COORDINATOR,
    ApiKey.OFFSET_FETCH: COORDINATOR,
    ApiKey.JOIN_GROUP: COORDINATOR,
    ApiKey.HEARTBEAT: COORDINATOR,
    ApiKey.LEAVE_GROUP: COORDINATOR,
    ApiKey.SYNC_GROUP: COORDINATOR,
    ApiKey.DESCRIBE_GROUPS: COORDINATOR,
    ApiKey.LIST_GROUPS: {E.COORDINATOR_NOT_AVAILABLE: STARTS},
    ApiKey.DELETE_GROUPS: COORDINATOR,
    ApiKey.OFFSET_DELETE: COORDINATOR,
    ApiKey.TXN_OFFSET_COMMIT: COORDINATOR,
    ApiKey.INIT_PRODUCER_ID: COORDINATOR,
    ApiKey.ADD_PARTITIONS_TO_TXN: COORDINATOR,
    ApiKey.ADD_OFFSETS_TO_TXN: COORDINATOR,
    ApiKey.END_TXN: COORDINATOR,
    ApiKey.DESCRIBE_TRANSACTIONS: COORDINATOR,
    ApiKey.LIST_TRANSACTIONS: {E.COORDINATOR_NOT_AVAILABLE: STARTS},
    ApiKey.CREATE_TOPICS: CONTROLLER,
    ApiKey.DELETE_TOPICS: CONTROLLER,
    ApiKey.CREATE_PARTITIONS: {**CONTROLLER, **provoked(E.REASSIGNMENT_IN_PROGRESS, E.INVALID_TOPIC_EXCEPTION)},
    ApiKey.ELECT_LEADERS: {
        **CONTROLLER,
        **provoked(E.PREFERRED_LEADER_NOT_AVAILABLE, E.ELIGIBLE_LEADERS_NOT_AVAILABLE, E.INVALID_TOPIC_EXCEPTION),
        E.REQUEST_TIMED_OUT: LATE,
    },
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: CONTROLLER,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: CONTROLLER,
    ApiKey.UPDATE_FEATURES: CONTROLLER,
    ApiKey.ALTER_CONFIGS: {E.NOT_CONTROLLER: ANYWHERE},
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {E.NOT_CONTROLLER: ANYWHERE},
    ApiKey.DELETE_RECORDS: provoked(E.NOT_LEADER_OR_FOLLOWER, E.REQUEST_TIMED_OUT, E.KAFKA_STORAGE_ERROR),
    ApiKey.WRITE_TXN_MARKERS: {
        **provoked(E.NOT_LEADER_OR_FOLLOWER, E.NOT_ENOUGH_REPLICAS),
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: SHRINKS,
        E.KAFKA_STORAGE_ERROR: "a partition in a failed log directory is UNKNOWN_TOPIC_OR_PARTITION here",
    },
    ApiKey.DESCRIBE_PRODUCERS: provoked(E.NOT_LEADER_OR_FOLLOWER, E.KAFKA_STORAGE_ERROR),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: provoked(E.NOT_LEADER_OR_FOLLOWER, E.KAFKA_STORAGE_ERROR),
    ApiKey.ALTER_REPLICA_LOG_DIRS: provoked(
        E.KAFKA_STORAGE_ERROR, E.REPLICA_NOT_AVAILABLE, E.UNKNOWN_TOPIC_OR_PARTITION
    ),
    ApiKey.DESCRIBE_LOG_DIRS: provoked(E.KAFKA_STORAGE_ERROR),
    ApiKey.DESCRIBE_QUORUM: {E.NOT_LEADER_OR_FOLLOWER: QUORUM},
}
