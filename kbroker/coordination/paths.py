"""The paths of the nodes and the formats of their data: the ZooKeeper layout of Apache Kafka 3.9, byte for byte.

A real ZooKeeper and real Kafka brokers may share these nodes with kbroker. So it reads older versions of the formats
too, and writes what 3.9 writes. `decode_x` raises StoreCorrupt if the data is not in any of the formats.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.errors import KbrokerError
from kbroker.model import NO_UUID, Endpoint, TopicPartition

CLUSTER_ID = "/cluster/id"
CONSUMERS = "/consumers"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE = "/brokers/seqid"
TOPICS = "/brokers/topics"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
GROUP_CONFIGS = "/config/groups"
"""Not in Kafka's layout: Kafka has configs of groups only in KRaft."""
CONFIG_CHANGES = "/config/changes"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
ISR_CHANGE_NOTIFICATIONS = "/isr_change_notification"
LOG_DIR_EVENT_NOTIFICATIONS = "/log_dir_event_notification"
FEATURE = "/feature"
MIGRATION = "/migration"
"""Exists while a cluster moves to KRaft."""
PRODUCER_ID_BLOCK = "/latest_producer_id_block"

CONFIG_CHANGE_PREFIX = f"{CONFIG_CHANGES}/config_change_"
ISR_CHANGE_PREFIX = f"{ISR_CHANGE_NOTIFICATIONS}/isr_change_"
LOG_DIR_EVENT_PREFIX = f"{LOG_DIR_EVENT_NOTIFICATIONS}/log_dir_event_"
"""Paths of the sequential notification nodes, before their numbers."""

DEFAULT_ENTITY = "<default>"

PERSISTENT = (
    CONSUMERS,
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE,
    ISR_CHANGE_NOTIFICATIONS,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENT_NOTIFICATIONS,
    TOPIC_CONFIGS,
    "/config/clients",
    "/config/users",
    BROKER_CONFIGS,
    "/config/ips",
)
"""The nodes that a broker creates when it starts if they are missing, with their parents."""


_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]+")
_ESCAPED = re.compile(r"(?:%[0-9A-F]{2})+")
_URL_TO_BASE64 = str.maketrans("-_+/", "+/!!")


INT16_MAX = 2**15 - 1
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
HIGHEST_CONTROLLER_EPOCH = INT32_MAX - 1
MAX_PORT = 2**16 - 1
MOST_LEFT_OUT = 10_000
"""How many partitions a topic's node may leave out below others that it names: each takes memory on every broker."""


class StoreCorrupt(KbrokerError):
    """A node's data is not in the format that its path asks for."""

    def __init__(self, path: str, what: str):
        super().__init__(f"coordination store, node {path}: {what}")
        self.path = path


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def broker_ids_of(names: Iterable[str]) -> list[int]:
    """The ids of the brokers among the children of BROKER_IDS. Names that are no broker's id are left out."""
    return [int(name) for name in names if _is_number(name) and int(name) <= INT32_MAX]


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition_id: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition_id}"


def partition_state_path(topic: str, partition_id: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition_id}/state"


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def broker_config_path(entity: str) -> str:
    """The path of the configs of a broker; `entity` is its id, or DEFAULT_ENTITY for the configs of all brokers."""
    return f"{BROKER_CONFIGS}/{entity}"


def group_config_path(group_id: str) -> str:
    """The path of a group's configs. Characters that may not be in a path are escaped as in URLs."""
    name = _NOT_PLAIN.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), group_id)
    return f"{GROUP_CONFIGS}/{name}"


def group_of_config(name: str) -> str:
    """The group id from the name of a node below GROUP_CONFIGS. Raises StoreCorrupt if it cannot be decoded."""
    try:
        return _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("%", "")).decode(), name)
    except ValueError as error:
        raise StoreCorrupt(f"{GROUP_CONFIGS}/{name}", f"no group's name: {error}") from None


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def consumer_offset_path(group_id: str, topic: str, partition_id: int) -> str:
    """The path of a committed offset. It may not be valid, since a group id may be anything: see `store.check_path`."""
    return f"{CONSUMERS}/{group_id}/offsets/{topic}/{partition_id}"


class TopicAssignment(NamedTuple):
    """The data of /brokers/topics/<topic>. The id is NO_UUID for a topic of a Kafka before 2.8."""

    topic_id: UUID
    replicas: dict[int, tuple[int, ...]]
    adding: dict[int, tuple[int, ...]]
    removing: dict[int, tuple[int, ...]]


class PartitionRegistration(NamedTuple):
    """The data of .../partitions/<id>/state. `leader` is -1 if there is none."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    leader_recovery_state: int = 0
    """0: recovered. 1: recovering, because the leader was elected unclean (KIP-704)."""


class BrokerRegistration(NamedTuple):
    """The data of /brokers/ids/<id>."""

    endpoints: tuple[Endpoint, ...]
    rack: str | None
    timestamp_ms: int
    kbroker: str | None = None
    """The version of a broker that is a kbroker; None for Kafka, which has no such field and does not read it."""


class ControllerRegistration(NamedTuple):
    """The data of /controller."""

    broker_id: int
    timestamp_ms: int
    kraft_controller_epoch: int = -1
    """Above 0 while a KRaft controller has taken the cluster over."""


class FeatureNode(NamedTuple):
    """The data of /feature: the finalized version level of each feature, by name."""

    is_enabled: bool
    features: dict[str, int]


class LogDirEvent(NamedTuple):
    """The data of a node below LOG_DIR_EVENT_NOTIFICATIONS: a log directory of the broker has failed."""

    broker_id: int


class ProducerIdBlock(NamedTuple):
    """The last block of producer ids given out, from `first` to `last`, both included."""

    broker_id: int
    first: int
    last: int


def encode_uuid(value: UUID) -> str:
    """The text of a UUID in Kafka: 22 characters, URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> UUID:
    """The UUID of a text from `encode_uuid`. Raises ValueError if it is not one."""
    if len(text) != 22:
        raise ValueError(f"{text!r} is not 22 characters long")
    try:
        return UUID(bytes=binascii.a2b_base64(text.translate(_URL_TO_BASE64) + "==", strict_mode=True))
    except ValueError as error:
        raise ValueError(f"{text!r} is not base64: {error}") from None


def encode_topic(assignment: TopicAssignment) -> bytes:
    return _encode(
        {
            "partitions": _replicas_by_text(assignment.replicas),
            "topic_id": encode_uuid(assignment.topic_id),
            "adding_replicas": _replicas_by_text(assignment.adding, no_empty=True),
            "removing_replicas": _replicas_by_text(assignment.removing, no_empty=True),
            "version": 3,
        }
    )


def decode_topic(path: str, data: bytes) -> TopicAssignment:
    fields = _decode(path, data)
    try:
        return TopicAssignment(
            decode_uuid(fields["topic_id"]) if "topic_id" in fields else NO_UUID,
            _assigned(fields["partitions"]),
            _replicas_by_id(fields.get("adding_replicas") or {}),
            _replicas_by_id(fields.get("removing_replicas") or {}),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreCorrupt(path, f"no topic assignment: {error!r}") from error


def decode_topic_id(path: str, data: bytes) -> UUID:
    """The topic id in 22 bytes of the data of `path`. Raises StoreCorrupt if they are not one."""
    try:
        return decode_uuid(data.decode())
    except ValueError as error:
        raise StoreCorrupt(path, f"no topic id: {error}") from error


def encode_partition_state(state: PartitionRegistration) -> bytes:
    fields: dict[str, Any] = {"controller_epoch": state.controller_epoch, "leader": state.leader, "version": 1}
    if state.leader_recovery_state:
        fields["leader_recovery_state"] = state.leader_recovery_state
    return _encode(fields | {"leader_epoch": state.leader_epoch, "isr": list(state.isr)})


def decode_partition_state(path: str, data: bytes) -> PartitionRegistration:
    fields = _decode(path, data)
    try:
        return PartitionRegistration(
            _number(fields["leader"], low=-1),
            _epoch(fields["leader_epoch"]),
            _brokers(fields["isr"]),
            _epoch(fields["controller_epoch"]),
            _number(fields.get("leader_recovery_state", 0), high=1),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(path, f"no partition state: {error!r}") from error


def encode_config(configs: Mapping[str, str]) -> bytes:
    return _encode({"version": 1, "config": dict(configs)})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    """The configs by name; {} for a node without data, as in Kafka."""
    if not data:
        return {}
    fields = _decode(path, data)
    try:
        return {_text(name): _text(str(value)) for name, value in fields["config"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreCorrupt(path, f"no configs: {error!r}") from error


def encode_broker(broker: BrokerRegistration) -> bytes:
    plaintext = next((endpoint for endpoint in broker.endpoints if endpoint.security_protocol == "PLAINTEXT"), None)
    fields: dict[str, Any] = {
        "features": {},
        "listener_security_protocol_map": {each.listener: each.security_protocol for each in broker.endpoints},
        "endpoints": [str(endpoint) for endpoint in broker.endpoints],
    }
    if broker.rack is not None:
        fields["rack"] = broker.rack
    fields |= {
        "jmx_port": -1,
        # Only for readers older than Kafka 0.9, which know one PLAINTEXT listener.
        "port": plaintext.port if plaintext else -1,
        "host": plaintext.host if plaintext else None,
        "version": 5,
        "timestamp": str(broker.timestamp_ms),
    }
    if broker.kbroker is not None:
        fields["kbroker"] = broker.kbroker
    return _encode(fields)


def decode_broker(path: str, data: bytes) -> BrokerRegistration:
    fields = _decode(path, data)
    try:
        protocols = fields.get("listener_security_protocol_map", {})
        if "endpoints" in fields:
            endpoints = tuple(_endpoint(text, protocols) for text in fields["endpoints"])
        else:
            port = _number(fields["port"], low=-1, high=MAX_PORT)
            endpoints = (Endpoint("PLAINTEXT", "PLAINTEXT", _text(fields["host"]), port),)
        rack, kbroker = fields.get("rack"), fields.get("kbroker")
        return BrokerRegistration(
            endpoints,
            None if rack is None else _text(rack),
            _of_text(fields.get("timestamp", -1)),
            None if kbroker is None else _text(kbroker),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreCorrupt(path, f"no broker registration: {error!r}") from error


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    return _encode(
        {"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": -1},
    )


def decode_controller(path: str, data: bytes) -> ControllerRegistration:
    """The controller's registration; a Kafka before 0.8.1 writes its id alone."""
    if data.isdigit() and len(data) <= 10 and int(data) <= INT32_MAX:
        return ControllerRegistration(int(data), -1)
    fields = _decode(path, data)
    try:
        return ControllerRegistration(
            _number(fields["brokerid"]),
            _of_text(fields.get("timestamp", -1)),
            _number(fields.get("kraftControllerEpoch", -1), low=-1),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(path, f"no controller: {error!r}") from error


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def decode_controller_epoch(path: str, data: bytes) -> int:
    if not data.isdigit() or len(data) > 10 or int(data) > HIGHEST_CONTROLLER_EPOCH:
        raise StoreCorrupt(path, "no controller epoch")
    return int(data)


def encode_cluster_id(cluster_id: str) -> bytes:
    return _encode({"version": "1", "id": cluster_id})


def decode_cluster_id(path: str, data: bytes) -> str:
    fields = _decode(path, data)
    try:
        cluster_id = _text(fields["id"])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(path, f"no cluster id: {error!r}") from error
    if not cluster_id:
        raise StoreCorrupt(path, "no cluster id")
    return cluster_id


def encode_feature() -> bytes:
    return _encode({"features": {}, "version": 2, "status": 1})


def decode_feature(path: str, data: bytes) -> FeatureNode:
    """The finalized features. Version 1 of the node has a lowest and a highest level of each: the highest counts."""
    fields = _decode(path, data)
    try:
        levels = {
            _text(name): _number(level["max_version_level"] if isinstance(level, dict) else level, high=INT16_MAX)
            for name, level in fields["features"].items()
        }
        return FeatureNode(_number(fields["status"]) == 1, levels)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreCorrupt(path, f"no features: {error!r}") from error


def encode_config_change(entity_path: str) -> bytes:
    """A node below CONFIG_CHANGES. `entity_path` is the path of the configs that have changed, after "/config/"."""
    return _encode({"version": 2, "entity_path": entity_path})


def decode_config_change(path: str, data: bytes) -> str:
    """The path, after "/config/", of the configs that have changed. Version 1 of the node has type and name of it."""
    fields = _decode(path, data)
    try:
        if "entity_path" in fields:
            return _text(fields["entity_path"])
        return f"{_text(fields['entity_type'])}/{_text(fields['entity_name'])}"
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(path, f"no config change: {error!r}") from error


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """Data of PREFERRED_REPLICA_ELECTION, and of a node below ISR_CHANGE_NOTIFICATIONS."""
    listed = [{"topic": each.topic, "partition": each.partition_id} for each in partitions]
    return _encode({"version": 1, "partitions": listed})


def decode_partitions(path: str, data: bytes) -> list[TopicPartition]:
    fields = _decode(path, data)
    try:
        return [_partition(each) for each in fields["partitions"]]
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(path, f"no partitions: {error!r}") from error


def encode_reassignment(replicas: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    """Data of REASSIGN_PARTITIONS: the replicas that each partition is to have."""
    listed = [
        {"topic": each.topic, "partition": each.partition_id, "replicas": list(brokers)}
        for each, brokers in replicas.items()
    ]
    return _encode({"version": 1, "partitions": listed})


def decode_reassignment(path: str, data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    fields = _decode(path, data)
    try:
        return {_partition(each): _brokers(each["replicas"]) for each in fields["partitions"]}
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(path, f"no reassignment: {error!r}") from error


def encode_log_dir_event(broker_id: int) -> bytes:
    return _encode({"version": 1, "broker": broker_id, "event": 1})


def decode_log_dir_event(path: str, data: bytes) -> LogDirEvent:
    fields = _decode(path, data)
    try:
        return LogDirEvent(_number(fields["broker"]))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(path, f"no event of a log directory: {error!r}") from error


def sequence_of(name: str) -> int:
    """The number of a sequential node, from its name or path. Raises StoreCorrupt if it has none."""
    number = name[-10:]
    if not (number.isascii() and number.isdigit() and len(number) == 10 and int(number) <= INT32_MAX):
        raise StoreCorrupt(name, "not the name of a sequential node")
    return int(number)


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    return _encode(
        {"version": 1, "broker": block.broker_id, "block_start": str(block.first), "block_end": str(block.last)}
    )


def decode_producer_id_block(path: str, data: bytes) -> ProducerIdBlock:
    fields = _decode(path, data)
    try:
        first, last = _of_text(fields["block_start"]), _of_text(fields["block_end"])
        if not 0 <= first <= last + 1 <= INT64_MAX + 1:
            raise ValueError(f"from {first} to {last}")
        return ProducerIdBlock(_number(fields["broker"], low=-1), first, last)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(path, f"no block of producer ids: {error!r}") from error


def encode_consumer_offset(offset: int) -> bytes:
    return str(offset).encode()


def decode_consumer_offset(path: str, data: bytes) -> int:
    try:
        offset = int(data)
    except ValueError as error:
        raise StoreCorrupt(path, f"no offset: {error}") from None
    if not -INT64_MAX - 1 <= offset <= INT64_MAX:
        raise StoreCorrupt(path, f"no offset: {offset}")
    return offset


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _decode(path: str, data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise StoreCorrupt(path, f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise StoreCorrupt(path, "not a JSON object")
    return fields


def _replicas_by_text(replicas: Mapping[int, Sequence[int]], *, no_empty: bool = False) -> dict[str, list[int]]:
    return {str(each): list(brokers) for each, brokers in replicas.items() if brokers or not no_empty}


def _assigned(fields: Mapping[str, Sequence[int]]) -> dict[int, tuple[int, ...]]:
    """The replicas of each partition. Raises ValueError if one has none, or if too many partitions are left out."""
    replicas = _replicas_by_id(fields)
    without = [each for each, brokers in replicas.items() if not brokers]
    if without:
        raise ValueError(f"partition {without[0]} has no replicas")
    if max(replicas, default=-1) - len(replicas) >= MOST_LEFT_OUT:
        raise ValueError(f"it leaves out more than {MOST_LEFT_OUT} partitions below {max(replicas)}")
    return replicas


def _replicas_by_id(fields: Mapping[str, Sequence[int]]) -> dict[int, tuple[int, ...]]:
    replicas = {}
    for name, brokers in fields.items():
        if not _is_number(name) or int(name) > INT32_MAX:
            raise ValueError(f"no partition's number: {name!r}")
        replicas[int(name)] = _brokers(brokers)
    return replicas


def _endpoint(text: str, protocols: Mapping[str, str]) -> Endpoint:
    listener, _, address = _text(text).partition("://")
    host, _, port = address.rpartition(":")
    protocol = _text(protocols.get(listener, listener))
    number = _number(_of_text(port), high=MAX_PORT)
    return Endpoint(listener, protocol, host.removeprefix("[").removesuffix("]"), number)


# --- values in JSON, which somebody may have written who meant something else. All raise TypeError or ValueError ------


def _number(value: object, *, low: int = 0, high: int = INT32_MAX) -> int:
    """A number of the JSON text, which the protocol has room for."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"no number: {value!r}")
    if not low <= value <= high:
        raise ValueError(f"not from {low} to {high}: {value}")
    return value


def _epoch(value: object) -> int:
    """An epoch after which there can be a higher one."""
    return _number(value, high=INT32_MAX - 1)


def _of_text(value: object) -> int:
    """A number of 64 bits, as such or as text."""
    if isinstance(value, str) and _is_number(value.removeprefix("-")):
        value = int(value)
    return _number(value, low=-INT64_MAX - 1, high=INT64_MAX)


def _is_number(text: str) -> bool:
    """Whether the text is a number that is not negative, as a program writes it."""
    return text.isascii() and text.isdigit() and len(text) <= 20 and (text == "0" or not text.startswith("0"))


def _text(value: object) -> str:
    """A text that the protocol has room for, and that can be in UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"no text: {value!r}")
    if len(value.encode()) > INT16_MAX:
        raise ValueError(f"a text of more than {INT16_MAX} bytes")
    return value


def _brokers(values: object) -> tuple[int, ...]:
    """The ids of brokers; one that is named twice counts once."""
    if not isinstance(values, list):
        raise TypeError(f"no list: {values!r}")
    return tuple(dict.fromkeys(map(_number, values)))


def _partition(fields: Mapping[str, object]) -> TopicPartition:
    return TopicPartition(_text(fields["topic"]), _number(fields["partition"]))
