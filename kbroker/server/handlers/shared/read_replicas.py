"""Which replica a consumer is told to fetch from, if replica.selector.class asks for that (KIP-392)."""

from __future__ import annotations

from kbroker._core.server.peer import Connection
from kbroker.model import TopicPartition
from kbroker.rules.read_replica import NO_REPLICA, ReadReplica, nearest_in_rack
from kbroker.server.handlers.shared.reachable_brokers import reachable_brokers
from kbroker.server.handlers.shared.services import Services


def read_replica_of(
    services: Services, connection: Connection, topic: str, partition_id: int, rack: str, offset: int
) -> int:
    """Return the node that a consumer in `rack` is to fetch from at `offset`; NO_REPLICA: from this broker.

    Candidates are members of the ISR that have the offset and that the consumer can reach.
    """
    log = services.logs.get(TopicPartition(topic, partition_id))
    if log is None:
        return NO_REPLICA
    racks = {each.node_id: each.rack for each in reachable_brokers(services, services.cluster.image, connection)}
    candidates = [
        ReadReplica(each.node_id, racks[each.node_id], each.log_end_offset, each.last_caught_up_ms)
        for each in log.state.followers()
        if each.in_sync and each.node_id in racks and each.log_start_offset <= offset <= each.log_end_offset
    ]
    return nearest_in_rack(rack, services.config["broker.rack"], candidates)
