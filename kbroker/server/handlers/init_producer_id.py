"""InitProducerId, key 22, versions 0 to 5: an id for an idempotent producer, an id and epoch for a transactional one.

An idempotent producer always gets a new id, whatever id and epoch it sends: it bumps its epoch itself.
Leaves out: nothing.

v0  first
v1  the throttle is applied after the response
v2  flexible (KIP-482)
v3  the producer's current id and epoch (KIP-360)
v4  PRODUCER_FENCED in place of INVALID_PRODUCER_EPOCH (KIP-588)
v5  TRANSACTION_ABORTABLE (KIP-890)
"""

from __future__ import annotations

from kbroker._core.server.request import Request
from kbroker.errors import ErrorCode, NotNow
from kbroker.model import NO_PRODUCER_ID
from kbroker.protocol import messages as M
from kbroker.rules.transaction import NO_PRODUCER_EPOCH
from kbroker.server.handlers.shared.answering import answer
from kbroker.server.handlers.shared.producer_errors import for_version
from kbroker.server.handlers.shared.services import Services
from kbroker.transactions.answers import InitializedProducer

FENCED_FROM = 4


def handle(services: Services, request: Request, message: M.InitProducerIdRequest) -> M.InitProducerIdResponse | None:
    """Answer the request. May block: producer ids come from the coordination store.

    A transactional producer is answered once its epoch is in the transaction log.
    """
    if (message.producer_id == NO_PRODUCER_ID) != (message.producer_epoch == NO_PRODUCER_EPOCH):
        return _response(InitializedProducer(ErrorCode.INVALID_REQUEST))
    if message.transactional_id is None:
        try:
            return _response(InitializedProducer(ErrorCode.NONE, services.producer_ids.next(), 0))
        except NotNow:
            return _response(InitializedProducer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))

    def initialized(result: InitializedProducer) -> None:
        error = for_version(result.error, request.api_version, FENCED_FROM)
        answer(request, _response(result._replace(error=error)), error)

    is_new = message.producer_id == NO_PRODUCER_ID
    expected = None if is_new else (message.producer_id, message.producer_epoch)
    services.transactions.init_producer_id(
        message.transactional_id,
        message.transaction_timeout_ms,
        expected,
        initialized,
        request.connection.peer_host,
    )
    return None


def _response(result: InitializedProducer) -> M.InitProducerIdResponse:
    return M.InitProducerIdResponse(
        error_code=result.error, producer_id=result.producer_id, producer_epoch=result.producer_epoch
    )
