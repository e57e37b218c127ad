"""A transaction that has everything and waits for its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kbroker.protocol.api import ApiKey

LAST_VERSION_1: Final = {ApiKey.TXN_OFFSET_COMMIT: 4, ApiKey.END_TXN: 4}
"""The next versions of these are of transactions of version 2."""


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """What is needed to end it, anywhere. `version`: of transactions, 1 or 2 (KIP-890)."""

    transactional_id: str
    producer_id: int
    epoch: int
    version: int
