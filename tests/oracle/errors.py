"""The error codes that Apache Kafka 3.9 can give in an answer of each served API, by its handlers and coordinators.

None: a scenario makes Kafka give the code. A text: why no scenario can, on a single broker with the settings of
`matrix.py`. What only a cluster can give is in `cluster_errors.py`.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey

AUTHORIZER = "nobody is refused anything without an authorizer"
MOVES = "leaders and coordinators do not move on a single broker"
LOADS = "only in the moment in which a coordinator loads its partition; scenarios wait until that is over"
DISK = "only after a log directory has failed; tests of storage do that"
REPLICAS = "only with followers: one replica is its whole ISR"
MARKERS = "only in the moment in which markers are written; scenarios wait until that is over"
POLICY = "only with a policy class of one's own in the broker's class path"
QUOTA = "only over a quota"
NEW_GROUPS = "only in groups of the newer protocol (KIP-848): tests/compat/test_consumer_group_oracle.py"
NEW_COORDINATOR = "only with the coordinator that Kafka 3.9 has for the newer protocol, see DEVIATIONS.md"
SETTING = "only with a setting that all scenarios would feel"
NOT_THROWN = "in the protocol, but Kafka 3.9 does not give it here"

E = ErrorCode
Reasons = dict[ErrorCode, str | None]


def provoked(*codes: ErrorCode) -> Reasons:
    return dict.fromkeys(codes, None)


COORDINATOR: Reasons = {
    E.COORDINATOR_NOT_AVAILABLE: MOVES,
    E.NOT_COORDINATOR: MOVES,
    E.COORDINATOR_LOAD_IN_PROGRESS: LOADS,
    E.GROUP_AUTHORIZATION_FAILED: AUTHORIZER,
}
"""Errors that any request to a group coordinator may get."""
TRANSACTION_COORDINATOR: Reasons = {
    E.COORDINATOR_NOT_AVAILABLE: MOVES,
    E.NOT_COORDINATOR: MOVES,
    E.COORDINATOR_LOAD_IN_PROGRESS: LOADS,
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: AUTHORIZER,
}
"""Errors that any request to a transaction coordinator may get."""
CONTROLLER: Reasons = {E.NOT_CONTROLLER: MOVES, E.THROTTLING_QUOTA_EXCEEDED: QUOTA, E.POLICY_VIOLATION: POLICY}
LEADER: Reasons = {
    E.NOT_LEADER_OR_FOLLOWER: MOVES,
    E.KAFKA_STORAGE_ERROR: DISK,
    E.TOPIC_AUTHORIZATION_FAILED: AUTHORIZER,
}

ERRORS: dict[ApiKey, Reasons] = {
    ApiKey.PRODUCE: {
        **LEADER,
        **provoked(
            E.UNKNOWN_SERVER_ERROR,
            E.CORRUPT_MESSAGE,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.MESSAGE_TOO_LARGE,
            E.INVALID_TOPIC_EXCEPTION,
            E.RECORD_LIST_TOO_LARGE,
            E.INVALID_REQUIRED_ACKS,
            E.INVALID_TIMESTAMP,
            E.OUT_OF_ORDER_SEQUENCE_NUMBER,
            E.INVALID_PRODUCER_EPOCH,
            E.INVALID_PRODUCER_ID_MAPPING,
            E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            E.UNSUPPORTED_COMPRESSION_TYPE,
            E.INVALID_RECORD,
            E.INVALID_TXN_STATE,
            E.TRANSACTION_ABORTABLE,
        ),
        E.NOT_ENOUGH_REPLICAS: REPLICAS,
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: REPLICAS,
        E.REQUEST_TIMED_OUT: REPLICAS,
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
        E.CONCURRENT_TRANSACTIONS: MARKERS,
        E.UNSUPPORTED_FOR_MESSAGE_FORMAT: "only in topics of an older message format, which cannot be made any more",
        E.DUPLICATE_SEQUENCE_NUMBER: NOT_THROWN,
        E.UNKNOWN_PRODUCER_ID: NOT_THROWN,
    },
    ApiKey.FETCH: {
        **LEADER,
        **provoked(
            E.UNKNOWN_SERVER_ERROR,
            E.OFFSET_OUT_OF_RANGE,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.NOT_LEADER_OR_FOLLOWER,
            E.UNKNOWN_LEADER_EPOCH,
            E.FETCH_SESSION_ID_NOT_FOUND,
            E.INVALID_FETCH_SESSION_EPOCH,
            E.UNKNOWN_TOPIC_ID,
            E.INCONSISTENT_TOPIC_ID,
            E.UNSUPPORTED_COMPRESSION_TYPE,
            E.UNSUPPORTED_VERSION,
            E.FETCH_SESSION_TOPIC_ID_ERROR,
        ),
        E.FENCED_LEADER_EPOCH: "the first epoch is 0 and there is none below that",
        E.OFFSET_NOT_AVAILABLE: MOVES,
        E.REPLICA_NOT_AVAILABLE: REPLICAS,
        E.CORRUPT_MESSAGE: DISK,
        E.OFFSET_MOVED_TO_TIERED_STORAGE: "only with tiered storage",
    },
    ApiKey.LIST_OFFSETS: {
        **LEADER,
        **provoked(
            E.UNKNOWN_SERVER_ERROR,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.INVALID_REQUEST,
            E.UNSUPPORTED_VERSION,
            E.UNKNOWN_LEADER_EPOCH,
            E.FENCED_LEADER_EPOCH,
        ),
        E.OFFSET_NOT_AVAILABLE: MOVES,
        E.LEADER_NOT_AVAILABLE: MOVES,
        E.UNSUPPORTED_FOR_MESSAGE_FORMAT: "only in topics of an older message format, which cannot be made any more",
    },
    ApiKey.METADATA: {
        **provoked(
            E.UNKNOWN_SERVER_ERROR,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.INVALID_TOPIC_EXCEPTION,
            E.UNKNOWN_TOPIC_ID,
            E.INVALID_REQUEST,
        ),
        E.LEADER_NOT_AVAILABLE: MOVES,
        E.LISTENER_NOT_FOUND: "all brokers have the same listeners",
        E.REPLICA_NOT_AVAILABLE: REPLICAS,
        E.INVALID_REPLICATION_FACTOR: SETTING,
        E.TOPIC_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.OFFSET_COMMIT: {
        **COORDINATOR,
        **provoked(
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.OFFSET_METADATA_TOO_LARGE,
            E.ILLEGAL_GENERATION,
            E.UNKNOWN_MEMBER_ID,
            E.REBALANCE_IN_PROGRESS,
            E.FENCED_INSTANCE_ID,
        ),
        E.INVALID_COMMIT_OFFSET_SIZE: SETTING,
        E.INVALID_GROUP_ID: "an empty group id may commit, for the sake of clients before 2.2",
        E.TOPIC_AUTHORIZATION_FAILED: AUTHORIZER,
        E.STALE_MEMBER_EPOCH: NEW_GROUPS,
        E.GROUP_ID_NOT_FOUND: NEW_COORDINATOR,
        E.UNSUPPORTED_VERSION: None,
    },
    ApiKey.OFFSET_FETCH: {
        **COORDINATOR,
        **provoked(E.UNSUPPORTED_VERSION, E.UNSTABLE_OFFSET_COMMIT),
        E.TOPIC_AUTHORIZATION_FAILED: AUTHORIZER,
        E.STALE_MEMBER_EPOCH: NEW_GROUPS,
        E.UNKNOWN_MEMBER_ID: NEW_GROUPS,
        E.GROUP_ID_NOT_FOUND: NEW_GROUPS,
        E.UNKNOWN_TOPIC_OR_PARTITION: "what is not committed has offset -1 and no error, topic or not",
    },
    ApiKey.FIND_COORDINATOR: {
        **provoked(E.INVALID_REQUEST, E.COORDINATOR_NOT_AVAILABLE),
        E.GROUP_AUTHORIZATION_FAILED: AUTHORIZER,
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: AUTHORIZER,
        E.INVALID_GROUP_ID: "any text is a group's name here",
    },
    ApiKey.JOIN_GROUP: {
        **COORDINATOR,
        **provoked(
            E.INCONSISTENT_GROUP_PROTOCOL,
            E.UNKNOWN_MEMBER_ID,
            E.INVALID_SESSION_TIMEOUT,
            E.INVALID_GROUP_ID,
            E.MEMBER_ID_REQUIRED,
            E.GROUP_MAX_SIZE_REACHED,
            E.FENCED_INSTANCE_ID,
        ),
        E.REBALANCE_IN_PROGRESS: "only when the coordinator is unloaded under a waiting member",
        E.UNSUPPORTED_VERSION: "only with a message format older than static members",
    },
    ApiKey.HEARTBEAT: {
        **COORDINATOR,
        **provoked(
            E.ILLEGAL_GENERATION,
            E.UNKNOWN_MEMBER_ID,
            E.INVALID_GROUP_ID,
            E.REBALANCE_IN_PROGRESS,
            E.FENCED_INSTANCE_ID,
        ),
    },
    ApiKey.LEAVE_GROUP: {
        **COORDINATOR,
        **provoked(E.UNKNOWN_MEMBER_ID, E.INVALID_GROUP_ID, E.FENCED_INSTANCE_ID),
    },
    ApiKey.SYNC_GROUP: {
        **COORDINATOR,
        **provoked(
            E.ILLEGAL_GENERATION,
            E.INCONSISTENT_GROUP_PROTOCOL,
            E.UNKNOWN_MEMBER_ID,
            E.INVALID_GROUP_ID,
            E.REBALANCE_IN_PROGRESS,
            E.FENCED_INSTANCE_ID,
        ),
    },
    ApiKey.DESCRIBE_GROUPS: {
        **COORDINATOR,
        E.INVALID_GROUP_ID: "any text is a group's name here, that of a dead group",
    },
    ApiKey.LIST_GROUPS: {
        E.COORDINATOR_LOAD_IN_PROGRESS: LOADS,
        E.COORDINATOR_NOT_AVAILABLE: MOVES,
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.SASL_HANDSHAKE: {
        **provoked(E.ILLEGAL_SASL_STATE),
        E.UNSUPPORTED_SASL_MECHANISM: "only on a listener with SASL",
    },
    ApiKey.API_VERSIONS: provoked(E.UNSUPPORTED_VERSION, E.INVALID_REQUEST),
    ApiKey.CREATE_TOPICS: {
        **CONTROLLER,
        **provoked(
            E.TOPIC_ALREADY_EXISTS,
            E.INVALID_TOPIC_EXCEPTION,
            E.INVALID_PARTITIONS,
            E.INVALID_REPLICATION_FACTOR,
            E.INVALID_REPLICA_ASSIGNMENT,
            E.INVALID_CONFIG,
            E.INVALID_REQUEST,
            E.REQUEST_TIMED_OUT,
        ),
        E.TOPIC_AUTHORIZATION_FAILED: AUTHORIZER,
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.DELETE_TOPICS: {
        **CONTROLLER,
        **provoked(E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID, E.INVALID_REQUEST, E.REQUEST_TIMED_OUT),
        E.TOPIC_DELETION_DISABLED: SETTING,
        E.TOPIC_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.DELETE_RECORDS: {
        **LEADER,
        **provoked(E.OFFSET_OUT_OF_RANGE, E.UNKNOWN_TOPIC_OR_PARTITION, E.INVALID_TOPIC_EXCEPTION, E.POLICY_VIOLATION),
        E.REQUEST_TIMED_OUT: REPLICAS,
    },
    ApiKey.INIT_PRODUCER_ID: {
        **TRANSACTION_COORDINATOR,
        **provoked(
            E.INVALID_REQUEST,
            E.INVALID_TRANSACTION_TIMEOUT,
            E.CONCURRENT_TRANSACTIONS,
            E.PRODUCER_FENCED,
            E.INVALID_PRODUCER_EPOCH,
        ),
        E.INVALID_TXN_STATE: NOT_THROWN,
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        **TRANSACTION_COORDINATOR,
        **provoked(
            E.INVALID_REQUEST,
            E.INVALID_PRODUCER_ID_MAPPING,
            E.INVALID_PRODUCER_EPOCH,
            E.PRODUCER_FENCED,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.OPERATION_NOT_ATTEMPTED,
            E.TOPIC_AUTHORIZATION_FAILED,
            E.TRANSACTION_ABORTABLE,
        ),
        E.CONCURRENT_TRANSACTIONS: MARKERS,
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.ADD_OFFSETS_TO_TXN: {
        **TRANSACTION_COORDINATOR,
        **provoked(E.INVALID_REQUEST, E.INVALID_PRODUCER_ID_MAPPING, E.INVALID_PRODUCER_EPOCH, E.PRODUCER_FENCED),
        E.CONCURRENT_TRANSACTIONS: MARKERS,
        E.GROUP_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.END_TXN: {
        **TRANSACTION_COORDINATOR,
        **provoked(
            E.INVALID_REQUEST,
            E.INVALID_PRODUCER_ID_MAPPING,
            E.INVALID_PRODUCER_EPOCH,
            E.PRODUCER_FENCED,
            E.INVALID_TXN_STATE,
        ),
        E.CONCURRENT_TRANSACTIONS: MARKERS,
    },
    ApiKey.WRITE_TXN_MARKERS: {
        **LEADER,
        **provoked(E.UNKNOWN_TOPIC_OR_PARTITION, E.INVALID_PRODUCER_EPOCH, E.TRANSACTION_COORDINATOR_FENCED),
        E.NOT_ENOUGH_REPLICAS: REPLICAS,
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: REPLICAS,
        E.UNSUPPORTED_FOR_MESSAGE_FORMAT: "only in topics of an older message format, which cannot be made any more",
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.TXN_OFFSET_COMMIT: {
        **COORDINATOR,
        **provoked(
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.OFFSET_METADATA_TOO_LARGE,
            E.INVALID_GROUP_ID,
            E.INVALID_REQUEST,
            E.INVALID_PRODUCER_ID_MAPPING,
            E.INVALID_PRODUCER_EPOCH,
            E.INVALID_TXN_STATE,
            E.TRANSACTION_ABORTABLE,
            E.ILLEGAL_GENERATION,
            E.UNKNOWN_MEMBER_ID,
            E.FENCED_INSTANCE_ID,
        ),
        E.CONCURRENT_TRANSACTIONS: MARKERS,
        E.INVALID_COMMIT_OFFSET_SIZE: SETTING,
        E.TOPIC_AUTHORIZATION_FAILED: AUTHORIZER,
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.DESCRIBE_PRODUCERS: {
        **provoked(E.UNKNOWN_TOPIC_OR_PARTITION, E.INVALID_TOPIC_EXCEPTION),
        E.NOT_LEADER_OR_FOLLOWER: MOVES,
        E.TOPIC_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.DESCRIBE_TRANSACTIONS: {
        **TRANSACTION_COORDINATOR,
        **provoked(E.INVALID_REQUEST, E.TRANSACTIONAL_ID_NOT_FOUND),
    },
    ApiKey.LIST_TRANSACTIONS: {
        E.COORDINATOR_LOAD_IN_PROGRESS: LOADS,
        E.COORDINATOR_NOT_AVAILABLE: MOVES,
    },
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {
        **LEADER,
        **provoked(E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_LEADER_EPOCH, E.FENCED_LEADER_EPOCH),
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.DESCRIBE_CONFIGS: {
        **provoked(E.INVALID_REQUEST, E.INVALID_TOPIC_EXCEPTION, E.UNKNOWN_TOPIC_OR_PARTITION),
        E.TOPIC_AUTHORIZATION_FAILED: AUTHORIZER,
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.ALTER_CONFIGS: {
        **CONTROLLER,
        **provoked(E.INVALID_REQUEST, E.INVALID_TOPIC_EXCEPTION, E.UNKNOWN_TOPIC_OR_PARTITION, E.INVALID_CONFIG),
        E.TOPIC_AUTHORIZATION_FAILED: AUTHORIZER,
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.SASL_AUTHENTICATE: {
        **provoked(E.ILLEGAL_SASL_STATE),
        E.SASL_AUTHENTICATION_FAILED: "only on a listener with SASL",
    },
    ApiKey.CREATE_PARTITIONS: {
        **CONTROLLER,
        **provoked(
            E.INVALID_PARTITIONS,
            E.INVALID_REPLICA_ASSIGNMENT,
            E.INVALID_REQUEST,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.REQUEST_TIMED_OUT,
        ),
        E.REASSIGNMENT_IN_PROGRESS: REPLICAS,
        E.TOPIC_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.ELECT_LEADERS: {
        E.NOT_CONTROLLER: MOVES,
        **provoked(E.ELECTION_NOT_NEEDED, E.UNKNOWN_TOPIC_OR_PARTITION, E.INVALID_REQUEST),
        E.PREFERRED_LEADER_NOT_AVAILABLE: REPLICAS,
        E.ELIGIBLE_LEADERS_NOT_AVAILABLE: REPLICAS,
        E.INVALID_TOPIC_EXCEPTION: REPLICAS,
        E.REQUEST_TIMED_OUT: REPLICAS,
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {
        E.NOT_CONTROLLER: MOVES,
        **provoked(E.INVALID_REPLICA_ASSIGNMENT, E.NO_REASSIGNMENT_IN_PROGRESS, E.UNKNOWN_TOPIC_OR_PARTITION),
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {E.NOT_CONTROLLER: MOVES, E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER},
    ApiKey.DELETE_GROUPS: {
        **COORDINATOR,
        **provoked(E.NON_EMPTY_GROUP, E.GROUP_ID_NOT_FOUND),
        E.INVALID_GROUP_ID: "no group has an empty name, so it is one that is not there",
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        **CONTROLLER,
        **provoked(
            E.UNKNOWN_SERVER_ERROR,
            E.INVALID_REQUEST,
            E.INVALID_TOPIC_EXCEPTION,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.INVALID_CONFIG,
        ),
        E.TOPIC_AUTHORIZATION_FAILED: AUTHORIZER,
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.OFFSET_DELETE: {
        **COORDINATOR,
        **provoked(
            E.GROUP_ID_NOT_FOUND,
            E.INVALID_GROUP_ID,
            E.NON_EMPTY_GROUP,
            E.GROUP_SUBSCRIBED_TO_TOPIC,
            E.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        E.TOPIC_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.DESCRIBE_CLUSTER: {
        **provoked(E.UNSUPPORTED_ENDPOINT_TYPE, E.MISMATCHED_ENDPOINT_TYPE),
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.ALTER_REPLICA_LOG_DIRS: {
        **provoked(E.LOG_DIR_NOT_FOUND),
        E.KAFKA_STORAGE_ERROR: DISK,
        E.REPLICA_NOT_AVAILABLE: MOVES,
        E.UNKNOWN_TOPIC_OR_PARTITION: "of a directory that is there: tests/oracle/test_client_log_dirs.py asks both",
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.DESCRIBE_LOG_DIRS: {
        E.KAFKA_STORAGE_ERROR: DISK,
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
    },
    ApiKey.DESCRIBE_QUORUM: {
        **provoked(E.UNKNOWN_TOPIC_OR_PARTITION),
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
        E.NOT_LEADER_OR_FOLLOWER: MOVES,
    },
    ApiKey.UPDATE_FEATURES: {
        **provoked(E.INVALID_UPDATE_VERSION),
        E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER,
        E.NOT_CONTROLLER: MOVES,
    },
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: {
        **provoked(E.THROTTLING_QUOTA_EXCEEDED),
        E.INVALID_REQUEST: NOT_THROWN,
    },
    ApiKey.LIST_CONFIG_RESOURCES: {E.CLUSTER_AUTHORIZATION_FAILED: AUTHORIZER},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {
        **provoked(E.UNKNOWN_TOPIC_OR_PARTITION, E.INVALID_REQUEST, E.UNKNOWN_SERVER_ERROR),
        E.INVALID_TOPIC_EXCEPTION: "an impossible name is UNKNOWN_SERVER_ERROR here",
        E.TOPIC_AUTHORIZATION_FAILED: AUTHORIZER,
    },
}
