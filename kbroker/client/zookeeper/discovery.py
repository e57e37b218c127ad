"""Brokers found in a ZooKeeper: those below /brokers/ids, as long as they are there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.client.config import Options
from kbroker.client.errors import ConnectionFailed
from kbroker.client.zookeeper.session import Session
from kbroker.coordination import paths
from kbroker.coordination.store import NoNode, SessionExpired, Store, StoreUnavailable, Watcher, WatchEvent

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

log = logging.getLogger("kbroker.client")

Address = tuple[str, int]


def registered_brokers(store: Store, security_protocol: str, watch: Watcher | None = None) -> tuple[Address, ...]:
    """Where the brokers are reached by that protocol, in order of their ids. `watch` hears of the next change.

    Kafkas before 0.9 register PLAINTEXT. A registration that cannot be read is left out, with a line in the log.
    """
    try:
        names = store.children(paths.BROKER_IDS, watch)
    except NoNode:
        if watch is not None and store.exists(paths.BROKER_IDS, watch) is not None:
            return registered_brokers(store, security_protocol, watch)
        return ()
    found: list[Address] = []
    for name in sorted(names, key=lambda name: (len(name), name)):
        path = f"{paths.BROKER_IDS}/{name}"
        try:
            data, _ = store.get(path, watch)
            endpoints = paths.decode_broker(path, data).endpoints
        except NoNode:
            continue
        except paths.StoreCorrupt as error:
            log.warning("a broker is left out: %s", error)
            continue
        fitting = [(each.host, each.port) for each in endpoints if each.security_protocol == security_protocol]
        if not fitting:
            log.warning("broker %s is left out: it is registered without an endpoint of %s", name, security_protocol)
        found += fitting[:1]
    return tuple(dict.fromkeys(found))


class Discovery:
    """Follows what is registered. `session`: one that somebody else closes; else there is one of its own.

    ConnectionFailed when ZooKeeper is not reached at first, ValueError for an address that is none.
    """

    def __init__(self, options: Options, session: Session | None = None):
        self._protocol: str = options["security.protocol"]
        self._session = Session(options) if session is None else session
        self._owns_session = session is None
        self._lock = threading.Lock()  # guards what follows
        self._brokers: tuple[Address, ...] = ()
        self._heard: Callable[[tuple[Address, ...]], object] | None = None
        self._session.on_renewed.append(self._look)
        try:
            self._take(registered_brokers(self._session.store, self._protocol, self._look))
        except (SessionExpired, StoreUnavailable) as error:
            self.close()
            raise ConnectionFailed(str(error)) from None

    @property
    def brokers(self) -> tuple[Address, ...]:
        """The registered ones, as far as is known."""
        return self._brokers

    def feed(self, cluster: Cluster) -> None:
        """Where it begins is from now on what is registered."""
        thread = cluster.network.thread
        with self._lock:
            self._heard = lambda brokers: thread.call_soon(cluster.begin_at, brokers)
            self._heard(self._brokers)

    def close(self) -> None:
        """Idempotent."""
        if self._owns_session:
            self._session.close()

    def _look(self, _event: WatchEvent | None = None) -> None:
        """On the session's thread of events too: nobody else's watches wait there."""
        while not self._session.is_closed:
            try:
                brokers = registered_brokers(self._session.store, self._protocol, self._look)
            except SessionExpired:
                return  # the next one looks again
            except StoreUnavailable as error:
                log.warning("%s", error)
            else:
                self._take(brokers)
                return

    def _take(self, brokers: tuple[Address, ...]) -> None:
        with self._lock:
            if brokers == self._brokers:
                return
            self._brokers = brokers
            listed = ", ".join(f"{host}:{port}" for host, port in brokers) or "none"
            log.info("brokers registered in ZooKeeper: %s", listed)
            if self._heard is not None:
                self._heard(brokers)
