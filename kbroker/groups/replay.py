"""Makes groups from the records of one partition of `__consumer_offsets`.

While batches are read, only the newest value of each key is kept, as bytes; the values that are left at the end are
decoded. Offsets of a transaction count once its commit marker is read (KIP-98), unless a newer record of the key was
read. A record that deletes an offset also deletes what open transactions have written for it before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from kbroker.errors import BadInput
from kbroker.groups import consumer_records, records
from kbroker.groups.records import GroupKey, GroupValue, OffsetKey
from kbroker.protocol.records import Batch, ControlType, control_type
from kbroker.rules.consumer_group_member import Change
from kbroker.rules.group_offsets import GroupOffsets

LOG = logging.getLogger(__name__)


class PartitionReplay:
    """Applies every batch of a partition in order; then `groups` gives the groups."""

    def __init__(self, name: object):
        self._name = name
        self._newest: dict[bytes, tuple[bytes | None, int]] = {}
        """The newest value and the base offset of its batch, by key."""
        self._open: dict[int, dict[bytes, tuple[bytes | None, int]]] = {}
        """The same for transactions that have not ended, by producer id."""
        self.consumer_groups: dict[str, list[Change]] = {}
        """The changes of each group of the consumer protocol (KIP-848); complete once `groups` has been iterated."""

    def apply_batch(self, batch: Batch) -> None:
        """Apply the next batch. Raises what reading its records raises."""
        info = batch.info
        if info.is_control:
            for record in batch.records():
                self._end_transaction(info.producer_id, control_type(record))
            return
        at = info.base_offset
        target = self._open.setdefault(info.producer_id, {}) if info.is_transactional else self._newest
        for record in batch.records():
            if record.key is None:
                LOG.warning("%s: the record at offset %d has no key", self._name, record.offset)
                continue
            if record.value is None:
                for written in (target,) if info.is_transactional else self._open.values():
                    written.pop(record.key, None)
            if record.value is not None or not info.is_transactional:
                target[record.key] = (record.value, at)

    def _end_transaction(self, producer_id: int, kind: ControlType | None) -> None:
        if kind is None:
            return
        for key, (value, at) in self._open.pop(producer_id, {}).items():
            if kind is ControlType.COMMIT and self._newest.get(key, (None, -1))[1] < at:
                self._newest[key] = (value, at)

    def groups(self) -> Iterator[tuple[str, GroupValue | None, GroupOffsets]]:
        """Every group id with the record of its members (or None) and its offsets. To be called once."""
        values: dict[str, GroupValue] = {}
        offsets: dict[str, GroupOffsets] = {}
        for key, (value, at) in self._newest.items():
            if value is not None:
                self._decode(key, value, at, None, values, offsets)
        for producer_id, written in self._open.items():
            for key, (value, at) in written.items():
                if value is not None:
                    self._decode(key, value, at, producer_id, values, offsets)
        self._newest, self._open = {}, {}
        for group_id in values.keys() | offsets.keys() | self.consumer_groups.keys():
            yield group_id, values.get(group_id), offsets.get(group_id) or GroupOffsets()

    def _decode(
        self,
        key: bytes,
        value: bytes,
        at: int,
        producer_id: int | None,
        values: dict[str, GroupValue],
        offsets: dict[str, GroupOffsets],
    ) -> None:
        try:
            about = records.decode_key(key)
            if isinstance(about, GroupKey):
                values[about.group_id] = records.decode_group_value(value)
            elif isinstance(about, OffsetKey):
                of_group = offsets.setdefault(about.group_id, GroupOffsets())
                committed = records.decode_offset_value(value, at)
                if producer_id is None:
                    of_group.set_committed(about.partition, committed)
                else:
                    of_group.set_transactional(producer_id, about.partition, committed)
            elif (change := consumer_records.decode(key, value)) is not None:
                self.consumer_groups.setdefault(change[0], []).append(change[1])
            else:
                LOG.warning(
                    "%s: a record of a kind that is not known (key %s) is left alone", self._name, key[:2].hex()
                )
        except BadInput as error:
            LOG.error("%s: a record of the batch at offset %d is skipped: %s", self._name, at, error)
