"""AllocateProducerIds, key 67, version 0: a broker asks the controller for a block of producer ids (KIP-730).

A broker that is not the controller answers NOT_CONTROLLER, one that is alone CLUSTER_AUTHORIZATION_FAILED.
Leaves out: nothing.

v0  first; flexible
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cluster.controller_requests import AllocateProducerIds
from kbroker.server.handlers.shared.between_brokers import ask_controller

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.protocol import messages as M
    from kbroker.server.handlers.shared.services import Services


def handle(services: Services, request: Request, message: M.AllocateProducerIdsRequest) -> None:
    ask_controller(services, request, AllocateProducerIds(message))
