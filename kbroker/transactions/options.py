"""The settings of the transaction coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class TransactionOptions(NamedTuple):
    """Limits and times of transactions, by the names of Kafka's settings with the unit last."""

    max_timeout_ms: int = 900_000
    most_ids: int = 100_000
    id_expiration_ms: int = 7 * 24 * 3_600_000
    abort_interval_ms: int = 10_000
    """The time between two checks for transactions that have timed out."""
    expiration_interval_ms: int = 3_600_000
    """The time between two checks for ids that have expired."""
    load_buffer_bytes: int = 5 << 20
    marker_retry_ms: int = 1_000
    """The time after which a marker that could not be written is tried again."""
    commit_retry_ms: int = 100
    """The time after which a loaded partition is looked at again whose replicas lag behind."""

    add_wait_ms: int = 100
    """How long a request that begins a transaction waits for the markers of the transaction before."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> TransactionOptions:
        """Take the options from the broker's settings."""
        return cls(
            max_timeout_ms=settings["transaction.max.timeout.ms"],
            most_ids=settings["kbroker.transactional.ids.max"],
            id_expiration_ms=settings["transactional.id.expiration.ms"],
            abort_interval_ms=settings["transaction.abort.timed.out.transaction.cleanup.interval.ms"],
            expiration_interval_ms=settings["transaction.remove.expired.transaction.cleanup.interval.ms"],
            add_wait_ms=settings["add.partitions.to.txn.retry.backoff.max.ms"],
            load_buffer_bytes=settings["transaction.state.log.load.buffer.size"],
        )
