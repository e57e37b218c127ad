"""A furnished broker in its own process. It is replaced when it was harmed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

from tests.amplification.bounds import excess
from tests.amplification.figures import Figures, Scales
from tests.amplification.furnishing import PATIENCE_S, SETTINGS, Furnisher
from tests.kit.brokers.process import BrokerProcess, folder_in_memory
from tests.kit.clients.wire import WireClient

TRIES = 3
"""A figure over its bound is measured again: an attack is over it each time, the effect of a busy machine is not."""


class FurnishedBroker:
    """A furnished broker, which is started when it is first used.

    `settings` returns further settings for each start.
    """

    def __init__(self, settings: Callable[[], Mapping[str, object]] = dict):
        self._settings = settings
        self.process: BrokerProcess | None = None

    def ready(self) -> Self:
        if self.process is None:
            self.process = BrokerProcess({**SETTINGS, **self._settings()}, folder_in_memory())
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
        """Return the figures of `build`'s requests that are over their bounds whenever they are sent, or None.

        `limit_of` returns the limits for a number of bytes of requests."""

        def weigh(broker: FurnishedBroker, limit: Callable[[int], Figures]) -> tuple[Figures, Figures]:
            frames = build(broker.furnisher)
            bound = limit(sum(map(len, frames)))
            return broker.scales.weigh(frames, bound), bound

        return self.finding_of(lambda broker: weigh(broker, limit_of))

    def finding_of(self, weigh: Callable[[FurnishedBroker], tuple[Figures, Figures]]) -> str | None:
        """Do what `finding` does, for anything that `weigh` does to a broker.

        `weigh` returns figures and their limits.
        """
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
