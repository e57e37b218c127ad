"""InitProducerId (key 22), versions 0 to 5: an id for an idempotent producer.

v2 flexible (KIP-482)
v3 the producer's current id and epoch (KIP-360): an idempotent producer bumps its epoch itself and gets a new id here,
   whatever it sends
v4 PRODUCER_FENCED in place of INVALID_PRODUCER_EPOCH (KIP-588)
v5 TRANSACTION_ABORTABLE (KIP-890)

Left out: transactional ids. They are refused with INVALID_REQUEST, which clients report at once as a request to an
incompatible broker; the coordinator's retriable errors would have them wait in vain until their own time limit.
"""

from __future__ import annotations

from kbroker._core.processor import Request
from kbroker.errors import ErrorCode, NotNow
from kbroker.model import NO_PRODUCER_ID
from kbroker.protocol import messages as M
from kbroker.server.services import Services

NO_PRODUCER_EPOCH = -1


def handle(services: Services, request: Request, message: M.InitProducerIdRequest) -> M.InitProducerIdResponse:
    if (message.producer_id == NO_PRODUCER_ID) != (message.producer_epoch == NO_PRODUCER_EPOCH):
        return _refused(ErrorCode.INVALID_REQUEST)
    if message.transactional_id is not None:
        return _refused(ErrorCode.INVALID_REQUEST)
    try:
        producer_id = services.producer_ids.next()
    except NotNow:
        return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return M.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refused(error: ErrorCode) -> M.InitProducerIdResponse:
    return M.InitProducerIdResponse(error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)
