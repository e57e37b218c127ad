"""A transaction that is complete and waits to be committed or aborted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kbroker.protocol.api import ApiKey

LAST_VERSION_1: Final = {ApiKey.TXN_OFFSET_COMMIT: 4, ApiKey.END_TXN: 4}
"""The last versions of these APIs for transactions of version 1; higher ones are for version 2 (KIP-890)."""


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """All that any process needs to end a prepared transaction. `version` is the transaction's, 1 or 2 (KIP-890)."""

    transactional_id: str
    producer_id: int
    epoch: int
    version: int
