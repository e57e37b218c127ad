"""StopReplica, key 5, versions 0 to 4: the controller ends this broker's part in partitions, and may delete their logs.

A broker that is alone answers CLUSTER_AUTHORIZATION_FAILED.
Leaves out: nothing.

v0  first, partitions one by one; all are deleted or none
v1  broker epoch; partitions by topic (KIP-380)
v2  flexible
v3  leader epoch, and whether to delete, of each partition (KIP-570)
v4  tells whether the controller is of KRaft (KIP-866), which is not looked at
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.server.handlers.shared.between_brokers import partitions_of

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.protocol import messages as M
    from kbroker.server.handlers.shared.services import Services


def handle(services: Services, request: Request, message: M.StopReplicaRequest) -> M.StopReplicaResponse:
    return partitions_of(services).stop_replicas(message)
