"""LeaderAndIsr, key 4, versions 0 to 7: the controller gives this broker its roles in partitions.

The answer comes when all roles are taken. A broker that is alone answers CLUSTER_AUTHORIZATION_FAILED.
Leaves out: what only a KRaft controller sends (KIP-866), so `is_kraft_controller` and `type` are not looked at.

v0  first, partitions one by one
v1  tells whether a replica is new (KIP-112)
v2  broker epoch; partitions by topic (KIP-380)
v3  replicas that are being added and removed (KIP-455)
v4  flexible
v5  topic ids, also in the answer; type of the request (KIP-516)
v6  leader recovery state (KIP-704); a leader takes RECOVERING for RECOVERED, as in Kafka
v7  tells whether the controller is of KRaft (KIP-866)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.server.handlers.shared.between_brokers import partitions_of

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.protocol import messages as M
    from kbroker.server.handlers.shared.services import Services


def handle(services: Services, request: Request, message: M.LeaderAndIsrRequest) -> M.LeaderAndIsrResponse:
    return partitions_of(services).leader_and_isr(message, request.api_version)
