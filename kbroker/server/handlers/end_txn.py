"""EndTxn, key 26, versions 0 to 4: a transaction commits or aborts.

Leaves out: nothing.

v0  first
v1  as v0; the throttle is applied after the response
v2  PRODUCER_FENCED in place of INVALID_PRODUCER_EPOCH (KIP-588)
v3  flexible
v4  TRANSACTION_ABORTABLE (KIP-890)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.server.answering import answer
from kbroker.server.handlers.producer_errors import for_version

if TYPE_CHECKING:
    from kbroker._core.request import Request
    from kbroker.server.services import Services

FENCED_FROM = 2
MOST_PARTITIONS = 16
"""Partitions that are written to on the processor's thread; more keep others waiting for too long."""


def blocks(services: Services, request: Request, message: M.EndTxnRequest) -> bool:
    """Whether there are many partitions to write a marker to."""
    return services.transactions.partition_count(message.transactional_id) > MOST_PARTITIONS


def handle(services: Services, request: Request, message: M.EndTxnRequest) -> None:
    """Answers when it is in the log how the transaction ends, and what can be done at once is done."""

    def ended(error: ErrorCode) -> None:
        error = for_version(error, request.api_version, FENCED_FROM)
        answer(request, M.EndTxnResponse(error_code=error), error)

    services.transactions.end(
        message.transactional_id, message.producer_id, message.producer_epoch, message.committed, ended
    )
