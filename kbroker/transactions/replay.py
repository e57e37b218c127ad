"""Makes transactional ids from the records of one partition of `__transaction_state`.

While batches are read, only the newest value of each key is kept, as bytes; the values that are left at the end are
decoded.
"""

from __future__ import annotations

import logging

from kbroker.errors import BadInput
from kbroker.protocol.records import Batch
from kbroker.rules.transaction import Transaction
from kbroker.transactions import records

LOG = logging.getLogger(__name__)


class PartitionReplay:
    """Applies every batch of a partition in order; then `transactions` gives the transactional ids."""

    def __init__(self, name: object):
        self._name = name
        self._newest: dict[bytes, tuple[bytes, int]] = {}
        """The newest value and the base offset of its batch, by key."""

    def apply_batch(self, batch: Batch) -> None:
        """Apply the next batch. Raises what reading its records raises."""
        if batch.info.is_control:
            return
        for record in batch.records():
            if record.key is None:
                LOG.warning("%s: the record at offset %d has no key", self._name, record.offset)
            elif record.value is None:
                self._newest.pop(record.key, None)
            else:
                self._newest[record.key] = (record.value, batch.info.base_offset)

    def transactions(self) -> dict[str, Transaction]:
        """All transactional ids, by name. To be called once."""
        found: dict[str, Transaction] = {}
        for key, (value, at) in self._newest.items():
            try:
                transactional_id = records.decode_key(key)
                if transactional_id is None:
                    LOG.warning(
                        "%s: a record of a kind that is not known (key %s) is left alone", self._name, key[:2].hex()
                    )
                else:
                    found[transactional_id] = records.decode_value(transactional_id, value)
            except BadInput as error:
                LOG.error("%s: a record of the batch at offset %d is skipped: %s", self._name, at, error)
        self._newest = {}
        return found
