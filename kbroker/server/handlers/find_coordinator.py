"""FindCoordinator, key 10, versions 0 to 6: the broker that coordinates a group or a transactional id.

If `__consumer_offsets` or `__transaction_state` does not exist, it is created before the answer. (Kafka creates it
meanwhile and answers COORDINATOR_NOT_AVAILABLE.)
Leaves out: coordinators of share groups. Their key type is refused with INVALID_REQUEST, after which no client tries
again.

v0  a group
v1  key type, throttle time, error message
v2  as v1; the throttle is applied after the response
v3  flexible
v4  several keys, each with its own result (KIP-699)
v5  as v4; the client understands TRANSACTION_ABORTABLE (KIP-890)
v6  share groups (KIP-932)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kbroker._core.wire.codec import lazily
from kbroker.errors import ErrorCode
from kbroker.model import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from kbroker.protocol import messages as M

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.groups.coordinator import GroupCoordinator
    from kbroker.server.handlers.shared.services import Services
    from kbroker.transactions.coordinator import TransactionCoordinator

GROUP_TYPE = 0
TRANSACTION_TYPE = 1
SEVERAL_FROM = 4

_MESSAGES = {
    ErrorCode.NONE: "NONE",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.INVALID_REQUEST: "This broker has coordinators of groups and transactions, not of share groups.",
}


class _Found(NamedTuple):
    error: ErrorCode
    node_id: int = -1
    host: str = ""
    port: int = -1


def blocks(services: Services, request: Request, message: M.FindCoordinatorRequest) -> bool:
    """Whether a topic has to be created or a partition to be loaded first."""
    keys = message.coordinator_keys if request.api_version >= SEVERAL_FROM else [message.key]
    coordinator = _coordinator(services, message.key_type)
    return coordinator is not None and not all(map(coordinator.shards.is_open_for, keys))


def handle(services: Services, request: Request, message: M.FindCoordinatorRequest) -> M.FindCoordinatorResponse:
    """Answer the request. May block: the first group creates a topic."""
    if request.api_version < SEVERAL_FROM:
        found = _find(services, request, message.key_type, message.key)
        return M.FindCoordinatorResponse(
            error_code=found.error,
            error_message=_MESSAGES[found.error],
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )
    keys = message.coordinator_keys
    return M.FindCoordinatorResponse(coordinators=lazily(len(keys), _find_each(services, request, message, keys)))


def _find_each(
    services: Services, request: Request, message: M.FindCoordinatorRequest, keys: Iterable[str]
) -> Iterator[M.FindCoordinatorResponse.Coordinator]:
    coordinator = _coordinator(services, message.key_type)
    by_partition: dict[int, _Found] = {}
    text = _MESSAGES[ErrorCode.INVALID_REQUEST]
    for key in keys:
        partition_id = -1 if coordinator is None else coordinator.shards.partition_for(key)
        found = by_partition.get(partition_id) or _find(services, request, message.key_type, key)
        by_partition[partition_id] = found
        is_refused = found.error is ErrorCode.INVALID_REQUEST
        yield M.FindCoordinatorResponse.Coordinator(
            key=key,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
            error_code=found.error,
            error_message=text if is_refused else "",
        )
        if is_refused:
            text = ""  # only the first result has the text: keys may be one byte, and the response must stay small


def _coordinator(services: Services, key_type: int) -> GroupCoordinator | TransactionCoordinator | None:
    if key_type == GROUP_TYPE:
        return services.groups
    return services.transactions if key_type == TRANSACTION_TYPE else None


def _find(services: Services, request: Request, key_type: int, key: str) -> _Found:
    coordinator = _coordinator(services, key_type)
    if coordinator is None:
        return _Found(ErrorCode.INVALID_REQUEST)
    error = coordinator.shards.open_for(key)
    if error is ErrorCode.NONE:
        here = services.endpoints_for(request.connection)
        return _Found(ErrorCode.NONE, services.node_id, here.host, here.port)
    if error is ErrorCode.NOT_COORDINATOR:
        topic = GROUP_OFFSETS_TOPIC if key_type == GROUP_TYPE else TRANSACTION_STATE_TOPIC
        return _leader_elsewhere(services, request, TopicPartition(topic, coordinator.shards.partition_for(key)))
    return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _leader_elsewhere(services: Services, request: Request, at: TopicPartition) -> _Found:
    image = services.cluster.image
    partition = image.partition(at)
    broker = None if partition is None else image.brokers.get(partition.leader)
    if broker is not None and broker.node_id != services.node_id:
        for endpoint in broker.endpoints:
            if endpoint.listener == request.connection.listener:
                return _Found(ErrorCode.NONE, broker.node_id, endpoint.host, endpoint.port)
    return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
