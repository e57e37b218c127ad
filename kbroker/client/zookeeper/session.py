"""A client's session with ZooKeeper; when it has expired, a new one is begun."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kbroker.client.config.option import Options
from kbroker.client.errors import ConnectionFailed
from kbroker.coordination.store import InvalidPath, SessionExpired, StoreUnavailable
from kbroker.coordination.zookeeper import ZooKeeperStore
from kbroker.errors import ConfigError

log = logging.getLogger("kbroker.client")

AGAIN_S = 1.0
"""The time between two attempts to begin a new session."""


class Session:
    """Keeps a session with ZooKeeper. For any thread.

    `store` is the current session; calls of an expired one raise SessionExpired. The constructor raises
    ConnectionFailed when ZooKeeper is not reached, and ValueError for an invalid zookeeper.connect.
    """

    def __init__(self, options: Options):
        self.on_expired: list[Callable[[], object]] = []
        """Functions called when the session has expired, and its ephemeral nodes are gone. They may block."""
        self.on_renewed: list[Callable[[], object]] = []
        """Functions called on the same thread when a new session has replaced an expired one."""
        self._address: str = options["zookeeper.connect"]
        self._timeout_s = options.seconds("zookeeper.session.timeout.ms")
        self._connect_timeout_s = self._timeout_s
        if options["zookeeper.connection.timeout.ms"] is not None:
            self._connect_timeout_s = options.seconds("zookeeper.connection.timeout.ms")
        self._closed = threading.Event()
        self._lock = threading.Lock()  # guards that no session is put into `_store` after `close`
        self._renewal = threading.Lock()  # held while a new session is begun: that one may expire at once
        try:
            self._store = self._begin()
        except (ConfigError, InvalidPath) as error:
            raise ValueError(f"zookeeper.connect: {error}") from None
        except StoreUnavailable as error:
            raise ConnectionFailed(str(error), hint="is zookeeper.connect right, and does it run?") from None

    @property
    def store(self) -> ZooKeeperStore:
        return self._store

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """End the session; its ephemeral nodes go at once. Closing twice is allowed."""
        with self._lock:
            self._closed.set()
        self.on_expired.clear()
        self.on_renewed.clear()
        self._store.close()

    def _begin(self) -> ZooKeeperStore:
        store = ZooKeeperStore(self._address, self._timeout_s, connect_timeout_s=self._connect_timeout_s)
        store.on_end(self._ended)
        return store

    def _ended(self) -> None:
        threading.Thread(target=self._run, name="kbroker-zookeeper", daemon=True).start()

    def _run(self) -> None:
        with self._renewal:
            self._renew()

    def _renew(self) -> None:
        self._notify(self.on_expired)
        while not self.is_closed:
            try:
                store = self._begin()
            except (SessionExpired, StoreUnavailable) as error:
                log.warning("%s", error)
                self._closed.wait(AGAIN_S)
                continue
            with self._lock:
                if not self.is_closed:
                    self._store = store
            if self.is_closed:
                store.close()
                return
            log.info("a new session with ZooKeeper %s has begun", self._address)
            self._notify(self.on_renewed)
            return

    def _notify(self, listeners: list[Callable[[], object]]) -> None:
        for heard in listeners:
            try:
                heard()
            except Exception:
                log.exception("a client failed over the end of its session with ZooKeeper")
