"""The exception for a broker of a test that fails."""

from __future__ import annotations

from kbroker.errors import KbrokerError

SHOWN_LINES = 30


class BrokerFailed(KbrokerError):
    """Raised when a broker does not start, does not stop, or has ended by itself.

    The message holds the last lines of the broker's log.
    """

    def __init__(self, what: str, log: str = ""):
        lines = log.splitlines()
        shown = "".join(f"\n    {line}" for line in lines[-SHOWN_LINES:])
        left_out = f" (the last {SHOWN_LINES} of {len(lines)} lines)" if len(lines) > SHOWN_LINES else ""
        super().__init__(f"{what}; its log{left_out}:{shown}" if lines else f"{what}; its log is empty")
