"""DescribeTransactions, key 65, version 0: state and partitions of transactional ids (KIP-664).

Leaves out: nothing.

v0  first
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker._core.wire.codec import lazily
from kbroker.protocol import messages as M
from kbroker.server.handlers.shared.naming import each_once

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services
    from kbroker.transactions.coordinator import TransactionCoordinator

_Response = M.DescribeTransactionsResponse


def handle(
    services: Services, request: Request, message: M.DescribeTransactionsRequest
) -> M.DescribeTransactionsResponse:
    """Answer the request at once."""
    once = each_once(message.transactional_ids)
    states = (_describe(services.transactions, transactional_id) for transactional_id in once)
    return _Response(transaction_states=lazily(len(once), states))


def _describe(
    transactions: TransactionCoordinator, transactional_id: str
) -> M.DescribeTransactionsResponse.TransactionState:
    described = transactions.describe(transactional_id)
    topics: dict[str, list[int]] = {}
    for topic, partition_id in sorted(described.partitions):
        topics.setdefault(topic, []).append(partition_id)
    return _Response.TransactionState(
        error_code=described.error,
        transactional_id=transactional_id,
        transaction_state=described.state,
        transaction_timeout_ms=described.timeout_ms,
        transaction_start_time_ms=described.start_ms,
        producer_id=described.producer_id,
        producer_epoch=described.producer_epoch,
        topics=[_Response.TopicData(topic=topic, partitions=ids) for topic, ids in topics.items()],
    )
