"""The settings that transactions know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class TransactionOptions(NamedTuple):
    """Limits and times of transactions, by the names of Kafka's settings with the unit last."""

    max_timeout_ms: int = 900_000
    most_ids: int = 100_000
    id_expiration_ms: int = 7 * 24 * 3_600_000
    abort_interval_ms: int = 10_000
    """How often transactions that have been open for too long are looked for."""
    expiration_interval_ms: int = 3_600_000
    """How often ids that nobody uses any more are looked for."""
    load_buffer_bytes: int = 5 << 20
    marker_retry_ms: int = 1_000
    """How long after a marker could not be written it is tried again."""

    add_wait_ms: int = 100
    """How long what begins a transaction waits for the markers of the one before."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> TransactionOptions:
        """From the broker's settings."""
        return cls(
            max_timeout_ms=settings["transaction.max.timeout.ms"],
            most_ids=settings["kbroker.transactional.ids.max"],
            id_expiration_ms=settings["transactional.id.expiration.ms"],
            abort_interval_ms=settings["transaction.abort.timed.out.transaction.cleanup.interval.ms"],
            expiration_interval_ms=settings["transaction.remove.expired.transaction.cleanup.interval.ms"],
            add_wait_ms=settings["add.partitions.to.txn.retry.backoff.max.ms"],
            load_buffer_bytes=settings["transaction.state.log.load.buffer.size"],
        )
