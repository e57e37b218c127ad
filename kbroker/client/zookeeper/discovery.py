"""Finds brokers in ZooKeeper: those that are registered below /brokers/ids."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.client.config.option import Options
from kbroker.client.errors import ConnectionFailed
from kbroker.client.zookeeper.session import Session
from kbroker.coordination import paths
from kbroker.coordination.store import NoNode, SessionExpired, Store, StoreUnavailable, Watcher, WatchEvent

if TYPE_CHECKING:
    from kbroker.client.network.cluster import Cluster

log = logging.getLogger("kbroker.client")

Address = tuple[str, int]


def registered_brokers(store: Store, security_protocol: str, watch: Watcher | None = None) -> tuple[Address, ...]:
    """Return the addresses of the brokers for a security protocol, in the order of their ids.

    `watch` is called at the next change. Brokers before Kafka 0.9 register PLAINTEXT only. A registration that cannot
    be read is logged and left out.
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
    """Follows the brokers that are registered in ZooKeeper.

    `session`: a session that the caller closes; None: a new one of its own. The constructor raises ConnectionFailed
    when ZooKeeper is not reached, and ValueError for an invalid zookeeper.connect.
    """

    def __init__(self, options: Options, session: Session | None = None):
        self._protocol: str = options["security.protocol"]
        self._session = Session(options) if session is None else session
        self._owns_session = session is None
        self._lock = threading.Lock()  # guards `_brokers` and `_heard`
        self._brokers: tuple[Address, ...] = ()
        self._heard: Callable[[tuple[Address, ...]], object] | None = None
        self._session.on_renewed.append(self._look)
        try:
            self._update(registered_brokers(self._session.store, self._protocol, self._look))
        except (SessionExpired, StoreUnavailable) as error:
            self.close()
            raise ConnectionFailed(str(error)) from None

    @property
    def brokers(self) -> tuple[Address, ...]:
        """The addresses of the registered brokers, as last seen."""
        return self._brokers

    def feed(self, cluster: Cluster) -> None:
        """Give the registered brokers to `cluster` as its bootstrap servers, now and after each change."""
        thread = cluster.network.thread
        with self._lock:
            self._heard = lambda brokers: thread.call_soon(cluster.begin_at, brokers)
            self._heard(self._brokers)

    def close(self) -> None:
        """Close the session if it is its own. Closing twice is allowed."""
        if self._owns_session:
            self._session.close()

    def _look(self, _event: WatchEvent | None = None) -> None:
        """Look for the registered brokers again. Also called on the store's event thread, which it may block."""
        while not self._session.is_closed:
            try:
                brokers = registered_brokers(self._session.store, self._protocol, self._look)
            except SessionExpired:
                return  # the next session looks again
            except StoreUnavailable as error:
                log.warning("%s", error)
            else:
                self._update(brokers)
                return

    def _update(self, brokers: tuple[Address, ...]) -> None:
        with self._lock:
            if brokers == self._brokers:
                return
            self._brokers = brokers
            listed = ", ".join(f"{host}:{port}" for host, port in brokers) or "none"
            log.info("brokers registered in ZooKeeper: %s", listed)
            if self._heard is not None:
                self._heard(brokers)
