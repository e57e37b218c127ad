"""Requests of clients that wait until the metadata says that their topics are there, or gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kbroker.clock import Clock
from kbroker.cluster.cluster import Answered, TopicResult
from kbroker.cluster.image import MetadataImage
from kbroker.errors import ErrorCode, ProtocolError

IsDone = Callable[[MetadataImage, str], TopicResult | None]
"""Returns the result for a topic by its name, or None while the image does not show it."""


@dataclass(eq=False)
class _Request:
    names: Sequence[str]
    is_done: IsDone
    deadline_s: float
    answered: Answered
    results: dict[str, TopicResult] = field(default_factory=dict)


class AwaitedTopics:
    """The waiting requests. Thread-safe. Answers are given on the thread that calls, under no lock."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._lock = threading.Lock()  # guards `_waiting`; taken alone
        self._waiting: list[_Request] = []

    def add(
        self,
        names: Sequence[str],
        known: dict[str, TopicResult],
        is_done: IsDone,
        timeout_ms: int,
        answered: Answered,
        image: Callable[[], MetadataImage],
    ) -> None:
        """Answer when each of `names` has a result. `known` are those that have one already, such as a refusal.

        Without time left, a topic that is not done is REQUEST_TIMED_OUT. `image` is read after the request is added,
        so that no change is missed.
        """
        request = _Request(names, is_done, self._clock.monotonic() + timeout_ms / 1000, answered, known)
        with self._lock:
            self._waiting.append(request)
        self.look(image())

    def look(self, image: MetadataImage) -> None:
        """Answer the requests that are done in `image`, and those whose time is over."""
        if not self._waiting:
            return
        now_s = self._clock.monotonic()
        done = []
        with self._lock:
            for request in self._waiting:
                for name in request.names:
                    if name not in request.results and (result := request.is_done(image, name)) is not None:
                        request.results[name] = result
                if len(request.results) == len(request.names) or now_s >= request.deadline_s:
                    done.append(request)
            self._waiting = [request for request in self._waiting if request not in done]
        timed_out = ProtocolError(ErrorCode.REQUEST_TIMED_OUT)
        for request in done:
            request.answered([request.results.get(name, timed_out) for name in request.names])

    def seconds_left(self) -> float | None:
        """Seconds until the next time-out; None if nothing waits."""
        with self._lock:
            if not self._waiting:
                return None
            return max(0.0, min(each.deadline_s for each in self._waiting) - self._clock.monotonic())
