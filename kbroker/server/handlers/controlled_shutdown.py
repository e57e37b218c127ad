"""ControlledShutdown, key 7, versions 0 to 3: a broker that is about to stop asks the controller to move its leaders.

The answer names the partitions that the broker still leads. A broker that is not the controller answers
STALE_CONTROLLER_EPOCH, one that is alone CLUSTER_AUTHORIZATION_FAILED.
Leaves out: nothing.

v0  first; its request header has no client id
v1  a header with client id
v2  broker epoch (KIP-380)
v3  flexible
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cluster.controller_requests import ControlledShutdown
from kbroker.server.handlers.shared.between_brokers import ask_controller

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.protocol import messages as M
    from kbroker.server.handlers.shared.services import Services


def handle(services: Services, request: Request, message: M.ControlledShutdownRequest) -> None:
    ask_controller(services, request, ControlledShutdown(message))
