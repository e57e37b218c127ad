"""A thread that drives something which has no thread of its own: it calls its step again and again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

LOG = logging.getLogger(__name__)

PAUSE_AFTER_BUG_S = 1.0
"""The pause after a step that has raised, which none should."""


class SteppedThread:
    """Calls `step` until `stop`. It waits for as many seconds as `step` returns, or until `woken` is set.

    `wake` ends a wait inside of `step`, if it has one.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float],
        woken: threading.Event | None = None,
        wake: Callable[[], None] = lambda: None,
    ):
        self.woken = woken or threading.Event()
        self._wake = wake
        self._name = name
        self._step = step
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Let the step that runs end, then end the thread; wait for it no longer than `timeout_s`."""
        self._is_stopping = True
        self.woken.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._is_stopping:
            self.woken.clear()
            try:
                pause_s = self._step()
            except Exception:
                LOG.exception("%s: a step failed", self._name)
                pause_s = PAUSE_AFTER_BUG_S
            if not self._is_stopping:
                self.woken.wait(pause_s)
