"""The members of the cluster: its id, its brokers, and the broker that is its controller."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable
from uuid import UUID

from kbroker.clock import Clock
from kbroker.cluster.image import Broker
from kbroker.coordination import paths
from kbroker.coordination.store import Create, NodeExists, Operation, SetData, Store, parent_of
from kbroker.errors import ConfigError
from kbroker.model import Endpoint

# Ids with a meaning in Kafka: "no id", and the metadata log of a KRaft cluster.
_RESERVED_IDS = frozenset({UUID(int=0), UUID(int=1)})


class BrokerIdTaken(ConfigError):
    """Another broker with the same id is registered and alive."""


def random_id(draw: Callable[[], UUID] = uuid.uuid4) -> UUID:
    """A new random id by Kafka's rules: not a reserved one, and its text does not begin with "-"."""
    while True:
        drawn = draw()
        if drawn not in _RESERVED_IDS and not paths.encode_uuid(drawn).startswith("-"):
            return drawn


def ensure_layout(store: Store) -> None:
    """Create the nodes of Kafka's layout that are missing. Other brokers may do the same at the same time."""
    while operations := _missing_layout(store):
        with contextlib.suppress(NodeExists):
            store.multi(operations)


def _missing_layout(store: Store) -> list[Operation]:
    missing: dict[str, None] = {}
    for path in paths.PERSISTENT:
        upwards = []
        while path != "/" and path not in missing and store.exists(path) is None:
            upwards.append(path)
            path = parent_of(path)
        missing.update(dict.fromkeys(reversed(upwards)))
    operations: list[Operation] = [Create(path) for path in missing]
    if store.exists(paths.CONTROLLER_EPOCH) is None:
        operations.append(Create(paths.CONTROLLER_EPOCH, b"0"))
    if store.exists(paths.FEATURE) is None:
        operations.append(Create(paths.FEATURE, paths.encode_feature()))
    return operations


def ensure_cluster_id(store: Store, proposed: str | None, heritage: Callable[[], Iterable[Operation]]) -> str:
    """Return the cluster's id. A new cluster gets `proposed` (the id in the log directories), or a random id.

    `heritage` returns operations that are written together with the id of a new cluster.
    """
    while store.exists(paths.CLUSTER_ID) is None:
        cluster_id = proposed or paths.encode_uuid(random_id())
        operations = [Create(paths.CLUSTER_ID, paths.encode_cluster_id(cluster_id)), *heritage()]
        parent = parent_of(paths.CLUSTER_ID)
        # Another broker of a new cluster may be faster.
        with contextlib.suppress(NodeExists):
            store.multi(operations if store.exists(parent) else [Create(parent), *operations])
    return paths.decode_cluster_id(paths.CLUSTER_ID, store.get(paths.CLUSTER_ID)[0])


def register_broker(
    store: Store, node_id: int, endpoints: tuple[Endpoint, ...], rack: str | None, clock: Clock
) -> Broker:
    """Register this broker for as long as the session lasts. Raises BrokerIdTaken if its id is in use."""
    registration = paths.BrokerRegistration(endpoints, rack, clock.wall_ms())
    path = paths.broker_path(node_id)
    try:
        store.create(path, paths.encode_broker(registration), ephemeral=True)
    except NodeExists:
        raise BrokerIdTaken(f"broker.id={node_id}: a broker with this id is already in the cluster") from None
    return Broker(node_id, endpoints, rack, store.get(path)[1].creation_id)


def become_controller(store: Store, node_id: int, clock: Clock) -> tuple[int, int]:
    """Become the controller of a cluster that has no other broker.

    Returns the controller epoch and the version of its node, which fences later writes.
    """
    data, stat = store.get(paths.CONTROLLER_EPOCH)
    try:
        epoch = int(data) + 1
    except ValueError:
        raise paths.StoreCorrupt(paths.CONTROLLER_EPOCH, "no number") from None
    store.multi(
        [
            Create(paths.CONTROLLER, paths.encode_controller(node_id, clock.wall_ms()), ephemeral=True),
            SetData(paths.CONTROLLER_EPOCH, str(epoch).encode(), stat.version),
        ]
    )
    return epoch, stat.version + 1
