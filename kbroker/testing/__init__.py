"""A real broker for the tests of any project: `with Broker() as broker:`; docs/TESTING.md is its guide.

`broker.py` is the one that people use, over `broker_process.py` (a subprocess) or `broker_inprocess.py`. Nothing of the
server knows of tests: what is done to a broker here is done from outside.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbroker.testing.broker import Broker as Broker
    from kbroker.testing.broker_failed import BrokerFailed as BrokerFailed
    from kbroker.testing.faults import Fault as Fault
    from kbroker.testing.faults import Faults as Faults
    from kbroker.testing.zookeeper import ZooKeeper as ZooKeeper

__all__ = ["Broker", "BrokerFailed", "Fault", "Faults", "ZooKeeper"]

_MODULES = {
    "Broker": "broker",
    "BrokerFailed": "broker_failed",
    "Fault": "faults",
    "Faults": "faults",
    "ZooKeeper": "zookeeper",
}


def __getattr__(name: str) -> Any:
    """pytest imports this package at its start, for the plugin; the rest only where a test asks for it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"kbroker.testing.{_MODULES[name]}"), name)
