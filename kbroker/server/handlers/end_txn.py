"""EndTxn, key 26, versions 0 to 5: a transaction commits or aborts.

Leaves out: nothing.

v0  first
v1  as v0; the throttle is applied after the response
v2  PRODUCER_FENCED in place of INVALID_PRODUCER_EPOCH (KIP-588)
v3  flexible
v4  TRANSACTION_ABORTABLE (KIP-890)
v5  the producer gets a new epoch with each end, and a new producer id when its epochs are used up (KIP-890)
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.server.handlers.shared.answering import answer
from kbroker.server.handlers.shared.producer_errors import for_version

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services
    from kbroker.transactions.answers import EndedTransaction

FENCED_FROM = 2
BUMPED_FROM = 5
MOST_PARTITIONS = 16
"""Most partitions of a transaction that is ended on the processor's thread: more would delay other connections."""


def blocks(services: Services, request: Request, message: M.EndTxnRequest) -> bool:
    """Whether markers have to go to many partitions, or a new producer id has to be fetched."""
    transactions = services.transactions
    return transactions.partition_count(message.transactional_id) > MOST_PARTITIONS or (
        request.api_version >= BUMPED_FROM and transactions.is_used_up(message.transactional_id)
    )


def handle(services: Services, request: Request, message: M.EndTxnRequest) -> None:
    """Answer the request once it is certain how the transaction ends.

    That is when the transaction log says so; markers whose writing need not wait are written before. A version that is
    not advertised any more, since a Kafka has joined the cluster, closes the connection: the client asks for versions
    again and ends the transaction without a new epoch. A Kafka 3.9 that leads a partition would let the next
    transaction begin under the new epoch before it has the marker of this one.
    """
    if request.api_version > services.features.versions_of(ApiKey.END_TXN).max:
        request.close(f"EndTxn {request.api_version} is not served any more: a Kafka is a member of the cluster")
        return
    asked = (message.transactional_id, message.producer_id, message.producer_epoch, message.committed)
    if request.api_version >= BUMPED_FROM:
        services.transactions.end_with_bump(*asked, partial(_bumped, request))
    else:
        services.transactions.end(*asked, partial(_ended, request))


def _ended(request: Request, error: ErrorCode) -> None:
    error = for_version(error, request.api_version, FENCED_FROM)
    answer(request, M.EndTxnResponse(error_code=error), error)


def _bumped(request: Request, ended: EndedTransaction) -> None:
    error, producer_id, producer_epoch = ended
    response = M.EndTxnResponse(error_code=error, producer_id=producer_id, producer_epoch=producer_epoch)
    answer(request, response, error)
