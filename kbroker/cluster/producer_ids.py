"""Producer ids (KIP-98): unique in the cluster, for ever.

A broker takes a block of ids and gives them out from memory. A broker that is alone takes it from its coordination
store, a member of a cluster asks the controller. The block is durable before its first id is used, so a broker that
dies loses the rest of its block but never gives an id twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from kbroker.coordination import paths
from kbroker.coordination.paths import ProducerIdBlock
from kbroker.coordination.store import BadVersion, Store
from kbroker.errors import NotNow
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

LOG = logging.getLogger(__name__)

BLOCK_SIZE = 1000
FETCH_AHEAD = BLOCK_SIZE // 10
"""A member asks for the next block when it has fewer ids left than this."""
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


class ProducerIdSource(Protocol):
    """Gives out producer ids. Thread-safe."""

    def next(self) -> int:
        """Return an id that has never been used. May block. Raises NotNow if there is none now."""
        ...


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


class AskController(Protocol):
    """Sends requests to the controller; see `replication.surroundings.AskController`."""

    def __call__(
        self,
        make: Callable[[int], M.Message],
        api_key: int,
        highest_version: int,
        answered: Callable[[M.Message | None, int], None],
    ) -> None: ...


class NoIdYet(NotNow):
    """The controller has not answered with a block of producer ids yet."""


class AllocatedProducerIds:
    """The producer ids of a member of a cluster. Thread-safe; it never waits.

    The next block is asked for before the last id of a block is given out. `broker_epoch` is the epoch of this broker's
    registration.
    """

    def __init__(self, node_id: int, broker_epoch: Callable[[], int], ask_controller: AskController):
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._ask_controller = ask_controller
        self._lock = threading.Lock()
        self._block = range(0)
        """The ids that are given out next."""
        self._next_block: range | None = None
        self._is_asking = False
        self._is_used = False
        """Whether somebody has wanted an id: before, no block is taken, as in Kafka."""

    def next(self) -> int:
        """Return an id that has never been used. Raises NoIdYet while the controller has given none."""
        with self._lock:
            self._is_used = True
            if not self._block and self._next_block is not None:
                self._block, self._next_block = self._next_block, None
            producer_id = self._block[0] if self._block else None
            self._block = self._block[1:]
            must_ask = self._must_ask_locked()
        if must_ask:
            self._ask()
        if producer_id is None:
            raise NoIdYet("the controller has given no producer ids yet")
        return producer_id

    def fetch_ahead(self) -> None:
        """Ask for the next block, if ids are wanted, it is time for it, and no request is under way."""
        with self._lock:
            must_ask = self._is_used and self._must_ask_locked()
        if must_ask:
            self._ask()

    def _must_ask_locked(self) -> bool:
        if self._is_asking or self._next_block is not None or len(self._block) >= FETCH_AHEAD:
            return False
        self._is_asking = True
        return True

    def _ask(self) -> None:
        def make(_: int) -> M.Message:
            return M.AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())

        try:
            self._ask_controller(make, ApiKey.ALLOCATE_PRODUCER_IDS, 0, self._answered)
        except BaseException:
            self._answered(None, -1)
            raise

    def _answered(self, answer: M.Message | None, _: int) -> None:
        block = None
        if isinstance(answer, M.AllocateProducerIdsResponse):
            first, count = answer.producer_id_start, answer.producer_id_len
            if answer.error_code:
                LOG.info("the controller gives no producer ids: error %d", answer.error_code)
            elif not (first >= 0 and count > 0 and first + count - 1 <= MAX_PRODUCER_ID):
                LOG.error("the controller gives producer ids that cannot be: %d from %d on", count, first)
            else:
                block = range(first, first + count)
        with self._lock:
            self._is_asking = False
            if block is not None:
                self._next_block = block
