"""A furnished broker in a process of its own, which is replaced when it has been hurt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from tests.amplification.bounds import excess
from tests.amplification.figures import Figures, Scales
from tests.amplification.furnishing import PATIENCE_S, SETTINGS, Furnisher
from tests.kit.broker import BrokerProcess, folder_in_memory
from tests.kit.wire import WireClient

TRIES = 3
"""What is over its bound is weighed again: what is amplified is so each time, what a busy machine did is not."""


class FurnishedBroker:
    """Made when it is first asked for."""

    def __init__(self) -> None:
        self.process: BrokerProcess | None = None

    def ready(self) -> Self:
        if self.process is None:
            self.process = BrokerProcess({**SETTINGS}, folder_in_memory())
            self.process.owns_folder = True
            self.process.__enter__()
            self.client = WireClient("127.0.0.1", self.process.port, timeout_s=PATIENCE_S)
            self.furnisher = Furnisher(self.client)
            self.furnisher.furnish()
            self.scales = Scales(self.process.pid, self.process.port)
        return self

    def discard(self) -> None:
        if self.process is not None:
            process, self.process = self.process, None
            self.client.close()
            self.scales.close()
            process.kill()
            process.__exit__(None, None, None)

    def finding(self, build: Callable[[Furnisher], Sequence[bytes]], limit_of: Callable[[int], Figures]) -> str | None:
        """What of the requests that `build` makes is over its bound each time that they are sent; None if nothing is.

        `limit_of`: of so many bytes of requests."""

        def weigh(broker: FurnishedBroker, limit: Callable[[int], Figures]) -> tuple[Figures, Figures]:
            frames = build(broker.furnisher)
            bound = limit(sum(map(len, frames)))
            return broker.scales.weigh(frames, bound), bound

        return self.finding_of(lambda broker: weigh(broker, limit_of))

    def finding_of(self, weigh: Callable[[FurnishedBroker], tuple[Figures, Figures]]) -> str | None:
        """The same of whatever `weigh` does to a broker; it returns the figures and their limit."""
        found: str | None = None
        for _ in range(TRIES):
            try:
                figures, limit = weigh(self.ready())
            except BaseException:
                self.discard()
                raise
            found = excess(figures, limit)
            if found is None:
                return None
            found = f"{found} ({figures})"
            self.discard()
        return found
