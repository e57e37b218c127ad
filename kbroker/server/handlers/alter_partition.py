"""AlterPartition, key 56, versions 0 to 3: leaders ask the controller to change their ISRs (KIP-497).

A broker that is not the controller answers NOT_CONTROLLER, one that is alone CLUSTER_AUTHORIZATION_FAILED.
Leaves out: nothing.

v0  first; flexible
v1  leader recovery state (KIP-704)
v2  topic ids; INELIGIBLE_REPLICA where versions before answer OPERATION_NOT_ATTEMPTED (KIP-841)
v3  the broker epoch of each replica in the ISR (KIP-903)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cluster.controller_requests import AlterPartition
from kbroker.server.handlers.shared.between_brokers import ask_controller

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.protocol import messages as M
    from kbroker.server.handlers.shared.services import Services


def handle(services: Services, request: Request, message: M.AlterPartitionRequest) -> None:
    ask_controller(services, request, AlterPartition(message, request.api_version))
