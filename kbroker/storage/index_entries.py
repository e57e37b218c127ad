"""The entries of a segment's index files, in Apache Kafka's formats. On disk. Do not change."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

INDEX_ENTRY = struct.Struct(">ii")
TIME_INDEX_ENTRY = struct.Struct(">qi")
ABORTED_TRANSACTION = struct.Struct(">hqqqq")
"""An entry of a .txnindex: version 0, producer id, first offset, last offset, last stable offset."""


class AbortedTransaction(NamedTuple):
    """An entry of a .txnindex: a transaction that a marker in the segment has aborted."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The marker's offset."""
    last_stable_offset: int
    """The log's last stable offset once the marker was appended."""


def aborted_transactions(data: bytes) -> Iterator[AbortedTransaction]:
    """Return the entries of a .txnindex. A torn entry at the end is ignored."""
    whole = len(data) - len(data) % ABORTED_TRANSACTION.size
    return (AbortedTransaction(*entry) for _, *entry in ABORTED_TRANSACTION.iter_unpack(data[:whole]))
