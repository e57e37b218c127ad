"""What the controller tells the other brokers: a channel to each, in order, one request at a time.

A request is repeated until it is answered or the broker is removed: a broker that has missed one would never learn what
was in it. Nothing here waits for a broker.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.clock import Clock
from kbroker.cluster.peers import Peers
from kbroker.protocol.messages import Message

LEADER_AND_ISR_VERSION = 7
STOP_REPLICA_VERSION = 4
UPDATE_METADATA_VERSION = 8
"""The versions of inter.broker.protocol.version 3.4 to 3.9, which are not negotiated."""
RETRY_MS = 100


class ControlChannels:
    """The channels of one controller in one epoch. Any thread may call it."""

    def __init__(self, peers: Peers, clock: Clock, answered: Callable[[int, Message], None], timeout_ms: int):
        """`answered` gets a broker's id and its answer, on the peers' thread."""
        self._peers = peers
