"""What handlers of requests between brokers have in common: only a member of a cluster obeys them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.server.handlers.shared.answering import answer

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.cluster.controller_requests import AllocateProducerIds, AlterPartition, ControlledShutdown
    from kbroker.protocol.messages import Message
    from kbroker.replication.partitions import ReplicatedPartitions
    from kbroker.server.handlers.shared.services import Services


def partitions_of(services: Services) -> ReplicatedPartitions:
    """Return this member's partitions. Raises ProtocolError (CLUSTER_AUTHORIZATION_FAILED) if the broker is alone."""
    if services.partitions is None:
        raise _alone()
    return services.partitions


def ask_controller(
    services: Services, request: Request, asked: AlterPartition | ControlledShutdown | AllocateProducerIds
) -> None:
    """Have the controller answer the request, if this broker is the controller; else the answer is `refusal`'s.

    Raises ProtocolError (CLUSTER_AUTHORIZATION_FAILED) if the broker is alone.
    """
    if services.controller is None:
        raise _alone()
    services.controller.ask(asked, partial(_answer, request))


def _alone() -> ProtocolError:
    text = "This broker is not in a cluster: no other broker may direct it."
    return ProtocolError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, text)


def _answer(request: Request, response: Message) -> None:
    answer(request, response, getattr(response, "error_code", ErrorCode.NONE))
