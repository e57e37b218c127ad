"""ListTransactions, key 66, versions 0 to 1: the transactional ids that this broker coordinates (KIP-664).

Leaves out: nothing.

v0  first
v1  a filter by how long ago the transaction began (KIP-994)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.protocol import messages as M

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services


def handle(services: Services, request: Request, message: M.ListTransactionsRequest) -> M.ListTransactionsResponse:
    """Answer the request at once."""
    error, listed, unknown = services.transactions.list_transactions(
        message.producer_id_filters, message.state_filters, message.duration_filter
    )
    states = [
        M.ListTransactionsResponse.TransactionState(
            transactional_id=each.transactional_id, producer_id=each.producer_id, transaction_state=each.state
        )
        for each in listed
    ]
    return M.ListTransactionsResponse(error_code=error, unknown_state_filters=unknown, transaction_states=states)
