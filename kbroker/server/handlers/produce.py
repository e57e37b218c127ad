"""Produce, key 0, versions 0 to 12, is served by `_core/server/produce/produce.pyx`, which says what each one added.

A request comes here if it may block: it has to open a log, roll a segment or inflate a large compressed batch, or a log
directory is stalled. It also comes here if it begins a transaction in a partition. Then the transaction's coordinator
is asked whether the partition is in the transaction, or from version 12 on to add it (KIP-890). That alone does not
block, so it is done on the processor's thread, and the append follows when the coordinator has answered.
Leaves out: what the compiled core leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker._core.server.request import Request
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.server.handlers.shared.services import Services

FIRST_ABORTABLE_VERSION = 11
FIRST_ADDING_VERSION = 12
PRODUCE_ERRORS = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.INVALID_TXN_STATE,
    ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_ENOUGH_REPLICAS,
}
"""Error codes of the transaction's coordinator, and the codes that Produce answers for them."""


def blocks(services: Services, request: Request, message: None) -> bool:
    """Whether the request has to do more than ask the coordinator of its transaction and append, and so may block."""
    return not request.only_verifies


def handle(services: Services, request: Request, message: None) -> None:
    """Answer the request once the batches are appended and, with acks, as durable as the flush policy asks for.

    As in Kafka, a coordinator's error that clients of this version do not retry is answered with a code that they do.
    """
    asked = request.check_blocking()
    if asked is None:
        request.run_blocking()
        return
    transactional_id, producer_id, producer_epoch, places = asked
    partitions = [TopicPartition(*at) for at in places]
    who = (transactional_id, producer_id, producer_epoch)

    def told(codes: Mapping[TopicPartition, ErrorCode]) -> None:
        request.run_blocking([code_for_version(codes[at], request.api_version) for at in partitions])

    adds = request.api_version >= FIRST_ADDING_VERSION
    ask = services.verifier.add if adds else services.verifier.verify
    ask(*who, partitions, told)


def code_for_version(error: ErrorCode, version: int) -> ErrorCode:
    """The code that Produce answers, in this version, for an error of the transaction's coordinator."""
    if error is ErrorCode.TRANSACTION_ABORTABLE and version >= FIRST_ABORTABLE_VERSION:
        return error
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and version >= FIRST_ADDING_VERSION:
        return error
    return PRODUCE_ERRORS.get(error, error)
