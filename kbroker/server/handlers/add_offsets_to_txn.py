"""AddOffsetsToTxn, key 25, versions 0 to 4: a producer is about to commit a group's offsets in its transaction.

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
from kbroker.model import GROUP_OFFSETS_TOPIC, TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.transaction import FIRST_VERSION
from kbroker.server.handlers.shared.answering import answer
from kbroker.server.handlers.shared.producer_errors import for_version

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

FENCED_FROM = 2


def handle(services: Services, request: Request, message: M.AddOffsetsToTxnRequest) -> None:
    """Answer the request once the transaction log has the partition of the group's offsets in the transaction."""

    def added(error: ErrorCode) -> None:
        error = for_version(error, request.api_version, FENCED_FROM)
        answer(request, M.AddOffsetsToTxnResponse(error_code=error), error)

    services.transactions.add_when_ended(
        message.transactional_id,
        message.producer_id,
        message.producer_epoch,
        [TopicPartition(GROUP_OFFSETS_TOPIC, services.groups.shards.partition_for(message.group_id))],
        added,
        FIRST_VERSION,
    )
