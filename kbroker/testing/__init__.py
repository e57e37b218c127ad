"""A real broker for the tests of any project: `with Broker() as broker:`; docs/TESTING.md is its guide.

`broker.py` is the one that people use, over `broker_process.py` (a subprocess) or `broker_inprocess.py`. Nothing of the
server knows of tests: what is done to a broker here is done from outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbroker.testing.broker import Broker as Broker
    from kbroker.testing.broker_failed import BrokerFailed as BrokerFailed

__all__ = ["Broker", "BrokerFailed"]


def __getattr__(name: str) -> Any:
    """pytest imports this package at its start, for the plugin; the broker only where a test asks for one."""
    if name == "Broker":
        from kbroker.testing.broker import Broker

        return Broker
    if name == "BrokerFailed":
        from kbroker.testing.broker_failed import BrokerFailed

        return BrokerFailed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
