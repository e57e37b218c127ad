"""What may be asked from the controller with `Controller.ask`, as values, and its answers.

Requests for new, larger and deleted topics are in `topic_requests.py`. A broker that is not the controller answers at
once, with NOT_CONTROLLER in the answer's own form (`refusal`): in ControlledShutdown it is STALE_CONTROLLER_EPOCH.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.controller.outcomes import ElectionOutcome as ElectionOutcome


class AlterPartition(NamedTuple):
    """A leader's change of ISRs (KIP-497). Answer: AlterPartitionResponse."""

    request: M.AlterPartitionRequest
    version: int


class ControlledShutdown(NamedTuple):
    """A broker that is about to stop gives its partitions away. Answer: ControlledShutdownResponse."""

    request: M.ControlledShutdownRequest


class AllocateProducerIds(NamedTuple):
    """A broker asks for a block of producer ids (KIP-730). Answer: AllocateProducerIdsResponse."""

    request: M.AllocateProducerIdsRequest


PREFERRED = 0
UNCLEAN = 1


class ElectLeaders(NamedTuple):
    """Elections of the PREFERRED or UNCLEAN kind (KIP-460). Answer: {partition: ElectionOutcome}."""

    kind: int
    partitions: tuple[TopicPartition, ...]


class AlterReassignments(NamedTuple):
    """Partitions and the replicas that they are to have; None cancels what is under way (KIP-455).

    Answer: {partition: PartitionOutcome}, or an ErrorCode for all.
    """

    targets: Mapping[TopicPartition, tuple[int, ...] | None]


class PartitionOutcome(NamedTuple):
    error: ErrorCode
    message: str | None = None


class ListReassignments(NamedTuple):
    """Partitions whose replicas are being changed; None: all. Answer: {partition: Assignment}, or an ErrorCode."""

    partitions: tuple[TopicPartition, ...] | None


Answered = Callable[[Any], None]
"""Called once, on the thread that calls `Controller.step` or on the asking one. It must not block."""


REFUSALS = {
    ErrorCode.NOT_CONTROLLER: "This broker is not the controller.",
    ErrorCode.UNKNOWN_SERVER_ERROR: "The controller has failed at the request: its log says why.",
}
"""What a refusal of a whole request means, for the answers that have room for a text."""


def refusal(request: Any, error: ErrorCode) -> Any:
    """Return the answer to `request` that says `error` and nothing else."""
    if isinstance(request, AlterPartition):
        return M.AlterPartitionResponse(error_code=error)
    if isinstance(request, ControlledShutdown):
        moved = error == ErrorCode.NOT_CONTROLLER
        return M.ControlledShutdownResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH if moved else error)
    if isinstance(request, AllocateProducerIds):
        return M.AllocateProducerIdsResponse(error_code=error)
    if isinstance(request, ElectLeaders):
        return dict.fromkeys(request.partitions, ElectionOutcome(error))
    if isinstance(request, AlterReassignments | ListReassignments):
        return error
    return dict.fromkeys(request[0], error)
