"""The APIs of the protocol, the versions that this broker serves, and the versions of their headers.

`SERVED` is what ApiVersions answers; `docs/PROTOCOL.md` is generated from it. A request outside `min` to `max` closes
its connection, as in Kafka (ApiVersions itself answers UNSUPPORTED_VERSION in version 0: KIP-511).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from kbroker.protocol import messages


class ApiKey(IntEnum):
    """API keys. On the wire. Do not renumber."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87

    @property
    def label(self) -> str:
        """The name in the protocol guide: `ListOffsets`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


class ApiVersions(NamedTuple):
    """The versions of one API that the broker advertises."""

    min: int
    max: int
    flexible_from: int | None  # first version with tagged fields (KIP-482)


# The ranges of Apache Kafka 3.9. Produce, EndTxn, TxnOffsetCommit and WriteTxnMarkers have one version more, for
# transactions of version 2 (KIP-890, KIP-1228).
# SaslHandshake and SaslAuthenticate answer ILLEGAL_SASL_STATE on a listener without SASL, as in Kafka.
SERVED: dict[ApiKey, ApiVersions] = {
    ApiKey.PRODUCE: ApiVersions(0, 12, 9),
    ApiKey.FETCH: ApiVersions(0, 17, 12),
    ApiKey.LIST_OFFSETS: ApiVersions(0, 9, 6),
    ApiKey.METADATA: ApiVersions(0, 12, 9),
    ApiKey.LEADER_AND_ISR: ApiVersions(0, 7, 4),
    ApiKey.STOP_REPLICA: ApiVersions(0, 4, 2),
    ApiKey.UPDATE_METADATA: ApiVersions(0, 8, 6),
    ApiKey.CONTROLLED_SHUTDOWN: ApiVersions(0, 3, 3),
    ApiKey.OFFSET_COMMIT: ApiVersions(0, 9, 8),
    ApiKey.OFFSET_FETCH: ApiVersions(0, 9, 6),
    ApiKey.FIND_COORDINATOR: ApiVersions(0, 6, 3),
    ApiKey.JOIN_GROUP: ApiVersions(0, 9, 6),
    ApiKey.HEARTBEAT: ApiVersions(0, 4, 4),
    ApiKey.LEAVE_GROUP: ApiVersions(0, 5, 4),
    ApiKey.SYNC_GROUP: ApiVersions(0, 5, 4),
    ApiKey.DESCRIBE_GROUPS: ApiVersions(0, 5, 5),
    ApiKey.LIST_GROUPS: ApiVersions(0, 5, 3),
    ApiKey.SASL_HANDSHAKE: ApiVersions(0, 1, None),
    ApiKey.API_VERSIONS: ApiVersions(0, 4, 3),
    ApiKey.CREATE_TOPICS: ApiVersions(0, 7, 5),
    ApiKey.DELETE_TOPICS: ApiVersions(0, 6, 4),
    ApiKey.DELETE_RECORDS: ApiVersions(0, 2, 2),
    ApiKey.INIT_PRODUCER_ID: ApiVersions(0, 5, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ApiVersions(0, 4, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: ApiVersions(0, 5, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: ApiVersions(0, 4, 3),
    ApiKey.END_TXN: ApiVersions(0, 5, 3),
    ApiKey.WRITE_TXN_MARKERS: ApiVersions(0, 2, 1),
    ApiKey.TXN_OFFSET_COMMIT: ApiVersions(0, 5, 3),
    ApiKey.DESCRIBE_CONFIGS: ApiVersions(0, 4, 4),
    ApiKey.ALTER_CONFIGS: ApiVersions(0, 2, 2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: ApiVersions(0, 2, 2),
    ApiKey.DESCRIBE_LOG_DIRS: ApiVersions(0, 4, 2),
    ApiKey.SASL_AUTHENTICATE: ApiVersions(0, 2, 2),
    ApiKey.CREATE_PARTITIONS: ApiVersions(0, 3, 2),
    ApiKey.DELETE_GROUPS: ApiVersions(0, 2, 2),
    ApiKey.ELECT_LEADERS: ApiVersions(0, 2, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ApiVersions(0, 1, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ApiVersions(0, 0, 0),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ApiVersions(0, 0, 0),
    ApiKey.OFFSET_DELETE: ApiVersions(0, 0, None),
    ApiKey.DESCRIBE_QUORUM: ApiVersions(0, 2, 0),
    ApiKey.ALTER_PARTITION: ApiVersions(0, 3, 0),
    ApiKey.UPDATE_FEATURES: ApiVersions(0, 1, 0),
    ApiKey.DESCRIBE_CLUSTER: ApiVersions(0, 1, 0),
    ApiKey.DESCRIBE_PRODUCERS: ApiVersions(0, 0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: ApiVersions(0, 0, 0),
    ApiKey.LIST_TRANSACTIONS: ApiVersions(0, 1, 0),
    ApiKey.ALLOCATE_PRODUCER_IDS: ApiVersions(0, 0, 0),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ApiVersions(0, 1, 0),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ApiVersions(0, 1, 0),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: ApiVersions(0, 0, 0),
    ApiKey.LIST_CONFIG_RESOURCES: ApiVersions(0, 1, 0),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ApiVersions(0, 0, 0),
}


def is_served(api_key: int, version: int) -> bool:
    """Return whether requests of this API and version are served."""
    versions = SERVED.get(api_key)  # type: ignore[call-overload]  # an int finds its ApiKey
    return versions is not None and versions.min <= version <= versions.max


def request_class(api_key: ApiKey) -> type[messages.Message]:
    found: type[messages.Message] = getattr(messages, f"{api_key.label}Request")
    return found


def response_class(api_key: ApiKey) -> type[messages.Message]:
    found: type[messages.Message] = getattr(messages, f"{api_key.label}Response")
    return found


def is_flexible(api_key: ApiKey, version: int) -> bool:
    """Return whether a version has compact sizes and tagged fields (KIP-482)."""
    flexible_from = request_class(api_key).FLEXIBLE_FROM
    return flexible_from is not None and version >= flexible_from


def request_header_version(api_key: ApiKey, version: int) -> int:
    """Return the request header's version: 1, or 2 with tagged fields.

    It is 0, a header without client id, for ControlledShutdown 0 only.
    """
    if api_key == ApiKey.CONTROLLED_SHUTDOWN and version == 0:
        return 0
    return 2 if is_flexible(api_key, version) else 1


def response_header_version(api_key: ApiKey, version: int) -> int:
    """Return the response header's version: 0, or 1 with tagged fields.

    It is always 0 for ApiVersions: its client does not know yet which versions the broker serves (KIP-511).
    """
    if api_key == ApiKey.API_VERSIONS:
        return 0
    return 1 if is_flexible(api_key, version) else 0
