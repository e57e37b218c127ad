"""The values of request fields, so that requests name things that exist and ask for as much of them as possible.

Values are found by the name of a field. STRUCT.FIELD goes before FIELD, and an API's own table before the one for all.
Every text is the name of something heavy unless a table says otherwise, so a new API is about heavy things too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kbroker.protocol.api import ApiKey, request_class
from kbroker.protocol.records import encode_batch
from tests.amplification.furnishing import CONSUMERS, DOOMED, HEAVY, SEGMENTS, TIME, Furnisher
from tests.amplification.shapes import scalars_in

EVERYWHERE: dict[str, Any] = {
    "any string": HEAVY,
    "any bool": True,
    # Groups
    "protocol_type": "consumer",
    "protocol_name": "range",
    "group_instance_id": None,
    "instance_id": None,
    "rack_id": None,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 1,
    "committed_metadata": "",
    "retention_time_ms": -1,
    "states_filter": "Stable",
    "types_filter": "classic",
    "server_assignor": None,
    "subscribed_topic_regex": None,
    # Records: at once, and of each partition one small batch, so that there is room for all of them
    "max_wait_ms": 0,
    "min_bytes": 0,
    "max_bytes": 2**31 - 1,
    "partition_max_bytes": 100,
    "isolation_level": 1,
    "session_epoch": -1,
    "current_leader_epoch": -1,
    "last_fetched_epoch": -1,
    "replica_id": -1,
    "timestamp": -1,
    "max_num_offsets": 1_000_000,
    "timeout_ms": 1,
    "acks": 1,
    # Administration
    "resource_type": 2,
    "configuration_keys[]": None,
    "configuration_keys": "retention.ms",
    "endpoint_type": 1,
    "cursor": None,
    "response_partition_limit": 2000,
    "transaction_timeout_ms": 1000,
    "state_filters": "Ongoing",
    "duration_filter": -1,
    "client_software_name": "heavy",
    "client_software_version": "1",
    "mechanism": "PLAIN",
    "cluster_id": None,
    "reason": None,
}
CHANGING: dict[str, Any] = EVERYWHERE | {"any string": DOOMED}
"""The values for requests that change what they name."""

TOPIC_CONFIG = {"AlterableConfig.name": "retention.ms", "value": "604800000"}
NEW_TOPIC = {"num_partitions": 1, "replication_factor": 1, "assignments[]": None, "configs[]": None}
OF_API: dict[ApiKey, dict[str, Any]] = {
    ApiKey.PRODUCE: CHANGING | {"transactional_id": None, "records": encode_batch([(TIME, None, b"x")])},
    ApiKey.OFFSET_COMMIT: CHANGING | {"OffsetCommitRequestTopic.name": HEAVY, "member_id": ""},
    ApiKey.JOIN_GROUP: CHANGING | {"member_id": "", "JoinGroupRequestProtocol.name": "range"},
    ApiKey.HEARTBEAT: CHANGING,
    ApiKey.LEAVE_GROUP: CHANGING,
    ApiKey.SYNC_GROUP: CHANGING,
    ApiKey.CONSUMER_GROUP_DESCRIBE: EVERYWHERE | {"any string": CONSUMERS},
    ApiKey.CREATE_TOPICS: EVERYWHERE | NEW_TOPIC,
    ApiKey.DELETE_TOPICS: CHANGING,
    ApiKey.DELETE_RECORDS: CHANGING | {"offset": -1},
    ApiKey.INIT_PRODUCER_ID: CHANGING | {"producer_id": -1, "producer_epoch": -1},
    ApiKey.ADD_PARTITIONS_TO_TXN: CHANGING | {"AddPartitionsToTxnTopic.name": HEAVY},
    ApiKey.ADD_OFFSETS_TO_TXN: CHANGING,
    ApiKey.END_TXN: CHANGING,
    ApiKey.WRITE_TXN_MARKERS: CHANGING,
    ApiKey.TXN_OFFSET_COMMIT: CHANGING | {"TxnOffsetCommitRequestTopic.name": HEAVY},
    ApiKey.ALTER_CONFIGS: CHANGING | TOPIC_CONFIG,
    ApiKey.CREATE_PARTITIONS: CHANGING | {"count": 3, "assignments[]": None},
    ApiKey.DELETE_GROUPS: CHANGING,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: CHANGING | TOPIC_CONFIG,
    ApiKey.OFFSET_DELETE: CHANGING | {"OffsetDeleteRequestTopic.name": HEAVY},
    ApiKey.CONSUMER_GROUP_HEARTBEAT: CHANGING | {"subscribed_topic_names": HEAVY, "group_id": "doomed-consumers"},
}


def given_for(api_key: ApiKey, furnisher: Furnisher) -> dict[str, Any]:
    """Return the values for a request of this API, after making again what the request before may have removed."""
    given = dict(OF_API.get(api_key, EVERYWHERE))
    name = given["any string"]
    changes = name == DOOMED
    producer = furnisher.doomed_producer if changes else furnisher.heavy_producer
    for field, value in {
        "producer_id": producer[0],
        "v3_and_below_producer_id": producer[0],
        "producer_epoch": producer[1],
        "v3_and_below_producer_epoch": producer[1],
        "fetch_offset": furnisher.deep_offset,
        "topic_id": furnisher.topic_ids[name if changes else HEAVY],
    }.items():
        given.setdefault(field, value)
    return given


VARIANTS: dict[str, tuple[Any, ...]] = {
    "resource_type": (4, 8, 16, 32),
    "key_type": (1, 2),
    "timestamp": (0, TIME, TIME + 1, -2, -3, -4, -5),
    "isolation_level": (0,),
    "fetch_offset": (0, SEGMENTS + 1, 1 << 40),
    "max_num_offsets": (1,),
    "leader_epoch": (-1, 1 << 30),
    "config_operation": (1, 2, 3),
    "require_stable": (False,),
    "validate_only": (False,),
    "verify_only": (False,),
    "session_epoch": (0,),
    "acks": (0, -1),
}
"""Further values of fields, with which a request means something else."""


def variants_of(api_key: ApiKey, version: int) -> Iterator[dict[str, Any]]:
    """Yield variants of a request: none first, then each of the values that a field may have."""
    yield {}
    names = {path.rpartition(".")[2] for path, _ in scalars_in(request_class(api_key), version)}
    for name in sorted(names & VARIANTS.keys()):
        yield from ({name: value} for value in VARIANTS[name])


RESTORED: dict[ApiKey, str] = {
    ApiKey.DELETE_TOPICS: "doomed_records",
    ApiKey.DELETE_RECORDS: "doomed_records",
    ApiKey.DELETE_GROUPS: "doomed_group",
    ApiKey.OFFSET_DELETE: "doomed_group",
    ApiKey.INIT_PRODUCER_ID: "doomed_transaction",
    ApiKey.END_TXN: "doomed_transaction",
    ApiKey.ADD_PARTITIONS_TO_TXN: "doomed_transaction",
    ApiKey.TXN_OFFSET_COMMIT: "doomed_transaction",
}
"""API -> the method of a furnisher that makes again what requests of the API remove."""
