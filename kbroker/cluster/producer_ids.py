"""Producer ids (KIP-98): unique in the cluster, for ever.

A broker takes a block of ids from the coordination store and gives them out from memory. The block is durable before
its first id is used, so a broker that dies loses the rest of its block but never gives an id twice.
"""

from __future__ import annotations

import threading

from kbroker.coordination import paths
from kbroker.coordination.paths import ProducerIdBlock
from kbroker.coordination.store import BadVersion, Store
from kbroker.errors import NotNow

BLOCK_SIZE = 1000
MAX_PRODUCER_ID = 2**63 - 1


class ProducerIdsExhausted(NotNow):
    """All 2**63 ids have been given out."""


def ids_before(now_ms: int, node_id: int) -> ProducerIdBlock:
    """A block of producer ids to be stored as the last one given out, so that later ids were used in no other cluster.

    Other clusters count from 0, a thousand ids at a time, and so stay below 65,536 ids for each second since 1970. As
    the clock moves on, the result is never the same again. It is below 2**53, for clients that keep numbers as
    JavaScript does.
    """
    last = (now_ms // 1000 << 16) - 1
    return ProducerIdBlock(node_id, last - BLOCK_SIZE + 1, last)


class ProducerIds:
    """The producer ids that this broker gives out. Thread-safe; waits for the store once in BLOCK_SIZE calls."""

    def __init__(self, store: Store, node_id: int):
        self._store = store
        self._node_id = node_id
        self._lock = threading.Lock()
        self._next = 0
        self._last = -1

    def next(self) -> int:
        """Return an id that has never been used. Raises NotNow if the store cannot be asked or no id is left."""
        with self._lock:
            if self._next > self._last:
                block = self._take_block()
                self._next, self._last = block.first, block.last
            producer_id = self._next
            self._next += 1
            return producer_id

    def _take_block(self) -> ProducerIdBlock:
        while True:
            data, stat = self._store.get(paths.PRODUCER_ID_BLOCK)
            taken = paths.decode_producer_id_block(paths.PRODUCER_ID_BLOCK, data).last if data else -1
            if taken > MAX_PRODUCER_ID - BLOCK_SIZE:
                raise ProducerIdsExhausted(f"the last block of producer ids ends at {taken}")
            block = ProducerIdBlock(self._node_id, taken + 1, taken + BLOCK_SIZE)
            try:
                self._store.set(paths.PRODUCER_ID_BLOCK, paths.encode_producer_id_block(block), stat.version)
            except BadVersion:
                continue  # another broker took this block: try the next
            return block
