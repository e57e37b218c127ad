"""The threads that serve requests between brokers on a member of a cluster, so that clients' requests never delay them.

What blocks a request handler (a disk, the making of topics) must not keep the controller from telling this broker who
leads, nor leaders from changing their ISRs. So these requests have queues and threads of their own. Processors read
them also while the request channel is full (`_core/server/receiving.pyx`).
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker._core.server.request import Request
from kbroker.server.dispatch import Lane
from kbroker.server.handler_pool import HandlerPool
from kbroker.server.request_channel import RequestChannel

CAPACITY = 500
"""Requests that wait in one lane. Each connection has one at most."""

_THREADS = {Lane.CONTROL: "control", Lane.CONTROLLER: "controller-door"}


class ControlLanes:
    """One queue and one thread for each lane beside that of the request handlers."""

    def __init__(self) -> None:
        self.channels = {lane: RequestChannel(CAPACITY) for lane in _THREADS}
        """For `Dispatcher`."""
        self._pools: list[HandlerPool] = []

    def start(self, serve: Callable[[Request], None]) -> None:
        """`serve` is `Dispatcher.serve_in_turn`."""
        self._pools = [HandlerPool(1, self.channels[lane], serve, name) for lane, name in _THREADS.items()]
        for pool in self._pools:
            pool.start()

    def stop(self, timeout_s: float) -> bool:
        """Serve what is queued, then end the threads. Returns False if a request still runs after `timeout_s`."""
        stopped = [pool.stop(timeout_s) for pool in self._pools]
        return all(stopped)
