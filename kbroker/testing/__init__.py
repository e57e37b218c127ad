"""A real broker for the tests of any project: `with Broker() as broker:`. The guide is docs/TESTING.md.

`broker.py` has the class that tests use; it runs a `broker_process.py` (a subprocess) or a `broker_inprocess.py`.
`cluster.py` has several brokers and a ZooKeeper. The server has no code for tests: everything here is done to a broker
from outside.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbroker.testing.broker import Broker as Broker
    from kbroker.testing.broker_failed import BrokerFailed as BrokerFailed
    from kbroker.testing.cluster import Cluster as Cluster
    from kbroker.testing.faults import Fault as Fault
    from kbroker.testing.faults import Faults as Faults
    from kbroker.testing.zookeeper import ZooKeeper as ZooKeeper

__all__ = ["Broker", "BrokerFailed", "Cluster", "Fault", "Faults", "ZooKeeper"]

_MODULES = {
    "Broker": "broker",
    "BrokerFailed": "broker_failed",
    "Cluster": "cluster",
    "Fault": "faults",
    "Faults": "faults",
    "ZooKeeper": "zookeeper",
}


def __getattr__(name: str) -> Any:
    """Import a class when its name is first used. pytest imports this package at its start, for the plugin alone."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"kbroker.testing.{_MODULES[name]}"), name)
