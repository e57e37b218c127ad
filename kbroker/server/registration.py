"""Keeps a broker registered in ZooKeeper, and keeps the topics shown there up to date (docs/ZOOKEEPER.md).

One thread does everything. It is woken by a new metadata image, by the end of its session, and when somebody removes
the broker's nodes; then it reads what is there and writes what is missing. The broker waits for ZooKeeper only during
its start, and serves on while ZooKeeper is away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kbroker.clock import Clock
from kbroker.cluster import members
from kbroker.cluster.image import MetadataImage
from kbroker.cluster.shown_nodes import CannotRegister, changes, check_cluster
from kbroker.cluster.topics import Topics
from kbroker.coordination import paths
from kbroker.coordination.parcels import parcels
from kbroker.coordination.store import Check, NodeExists, Operation, SessionExpired, Store, StoreUnavailable, WatchEvent
from kbroker.coordination.zookeeper import ZooKeeperStore
from kbroker.errors import KbrokerError
from kbroker.model import Endpoint

LOG = logging.getLogger(__name__)

RETRY_S = 1.0
"""The pause between two attempts while ZooKeeper is away or refuses."""
STOP_S = 6.0
"""How long a stop waits for the thread; it may be in the middle of connecting."""


@dataclass(frozen=True, slots=True)
class RegistrationOptions:
    """How to connect to ZooKeeper; `address` as in zookeeper.connect."""

    address: str
    session_timeout_s: float
    connection_timeout_s: float


class Registration:
    """The broker's registration. The broker calls `connect`, `start` and `stop`, in that order."""

    def __init__(self, options: RegistrationOptions, store: Store, topics: Topics, clock: Clock):
        self._options = options
        self._store = store
        self._topics = topics
        self._clock = clock
        self._node_id = topics.node_id
        self._endpoints: tuple[Endpoint, ...] = ()
        self._rack: str | None = None
        self._session: ZooKeeperStore | None = None
        self._has_ended = False
        self._shown: MetadataImage | None = None
        self._refusal = ""
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="registration", daemon=True)

    # --- for the broker -----------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect, and check that ZooKeeper's nodes are of this cluster and that no other broker has this id.

        Called before the logs are opened. Waits for an earlier session of this broker to end. Raises CannotRegister if
        ZooKeeper cannot be reached, if a check fails, or if `stop` is called meanwhile.
        """
        options = self._options
        LOG.info(
            "waiting for ZooKeeper at %s, for up to %.0f s (zookeeper.connection.timeout.ms)",
            options.address, options.connection_timeout_s,
        )  # fmt: skip
        try:
            self._open()
            check_cluster(self._session_or_fail(), self._store, self._node_id)
            self._await_end(paths.broker_path(self._node_id))
            self._await_end(paths.CONTROLLER)
        except KbrokerError as error:
            self.stop()
            raise self._refused(error) from error

    def start(self, endpoints: Sequence[Endpoint], rack: str | None) -> None:
        """Register the broker with `endpoints`, where clients connect; topics follow after this has returned.

        Raises CannotRegister if that is refused, or does not succeed within the connection timeout.
        """
        self._endpoints, self._rack = tuple(endpoints), rack
        deadline = time.monotonic() + self._options.connection_timeout_s
        while not self._thread.is_alive():
            try:
                self._join()
                self._topics.on_change(self._woken.set)
                self._woken.set()
                self._thread.start()
            except (StoreUnavailable, SessionExpired) as error:
                # It was there a moment ago, and may come back.
                if time.monotonic() > deadline:
                    self.stop()
                    raise self._refused(error) from error
                self._woken.clear()
                self._woken.wait(RETRY_S)
                if self._stopping:
                    raise self._refused(error) from error
            except KbrokerError as error:
                self.stop()
                raise self._refused(error) from error

    def stop(self) -> None:
        """Close the session and end the thread. If ZooKeeper can be reached, the registration is gone at once."""
        self._stopping = True
        self._woken.set()
        if self._session is not None:
            self._session.close()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    # --- at the start -------------------------------------------------------------------------------------------------

    def _refused(self, error: KbrokerError) -> CannotRegister:
        return CannotRegister(f"zookeeper.connect={self._options.address}: {error}")

    def _await_end(self, path: str) -> None:
        """Wait until the node is gone: a process that was killed stays registered until its session times out.

        Raises BrokerIdTaken if it is still there after two session timeouts.
        """
        session = self._session_or_fail()
        if session.exists(path, self._wake) is None:
            return
        seconds = 2 * self._options.session_timeout_s
        who = self._registered(session)
        LOG.warning(
            "broker.id=%d is still registered in ZooKeeper (%s): waiting up to %.0f s for that session to end",
            self._node_id, who, seconds,
        )  # fmt: skip
        deadline = time.monotonic() + seconds
        while session.exists(path, self._wake) is not None:
            if not self._woken.wait(max(0.0, deadline - time.monotonic())):
                raise members.BrokerIdTaken(
                    f"broker.id={self._node_id}: a broker with this id is registered there and alive ({who})"
                )
            self._woken.clear()

    def _registered(self, session: Store) -> str:
        """Return the endpoints of the broker that is registered with this id, for messages."""
        path = paths.broker_path(self._node_id)
        found = session.get_many([path])[0]
        if found is None:
            return "as the controller"
        try:
            return ", ".join(map(str, paths.decode_broker(path, found[0]).endpoints))
        except paths.StoreCorrupt as error:
            return str(error)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause: float | None = None
        while True:
            self._woken.wait(pause)
            if self._stopping:
                return
            self._woken.clear()
            pause = None
            try:
                self._step()
                self._refusal = ""
            except SessionExpired:
                pause = RETRY_S
            except KbrokerError as error:
                pause, self._shown = RETRY_S, None
                if not self._stopping and str(error) != self._refusal:
                    self._refusal = str(error)
                    LOG.warning("not in step with ZooKeeper, the broker serves on: %s", error)
            except Exception:
                pause, self._shown = RETRY_S, None
                LOG.exception("not in step with ZooKeeper, the broker serves on")

    def _step(self) -> None:
        """Bring ZooKeeper up to date: the session, the registration, the newest topics."""
        session = self._join()
        image = self._topics.image
        if self._shown is not image:
            self._write(session, changes(self._store, session, image, self._shown))
            self._shown = image

    def _join(self) -> ZooKeeperStore:
        """Return the session in which this broker is registered; if it has ended, open a new one and register."""
        if self._session is None or self._has_ended:
            self._open()
            check_cluster(self._session_or_fail(), self._store, self._node_id)
        session = self._session_or_fail()
        if not self._is_mine(session, paths.broker_path(self._node_id)):
            self._register(session)
        if not self._is_mine(session, paths.CONTROLLER):
            controller = paths.encode_controller(self._node_id, self._clock.wall_ms())
            session.create(paths.CONTROLLER, controller, ephemeral=True)
        return session

    def _open(self) -> None:
        self._has_ended, self._shown = False, None
        if self._session is not None:
            self._session.close()
            self._session = None
        options = self._options
        try:
            self._session = ZooKeeperStore(
                options.address,
                options.session_timeout_s,
                connect_timeout_s=options.connection_timeout_s,
                connects=False,
            )
            if self._stopping:
                self._session.close()
            self._session.connect()
        except StoreUnavailable as error:
            limit = f"{options.connection_timeout_s * 1000:.0f}"
            raise StoreUnavailable(f"{error} (zookeeper.connection.timeout.ms={limit})") from error
        self._session.on_end(self._take_end)

    def _take_end(self) -> None:
        self._has_ended = True
        self._woken.set()

    def _is_mine(self, session: ZooKeeperStore, path: str) -> bool:
        """Whether the node exists and belongs to this session. The thread is woken when the node changes."""
        stat = session.exists(path, self._wake)
        return stat is not None and stat.owner == session.session_id

    def _wake(self, _event: WatchEvent) -> None:
        self._woken.set()

    def _register(self, session: ZooKeeperStore) -> None:
        session.make_chroot()
        members.ensure_layout(session)
        there = members.ensure_cluster_id(session, self._topics.cluster_id, tuple)
        if there != self._topics.cluster_id:
            raise CannotRegister(f"it holds cluster {there} since a moment ago")
        registration = paths.BrokerRegistration(self._endpoints, self._rack, self._clock.wall_ms())
        try:
            session.create(paths.broker_path(self._node_id), paths.encode_broker(registration), ephemeral=True)
        except NodeExists:
            raise members.BrokerIdTaken(
                f"broker.id={self._node_id}: another broker is registered with this id ({self._registered(session)})"
            ) from None
        self._shown = None
        LOG.info("registered in ZooKeeper %s as broker %d", self._options.address, self._node_id)

    def _write(self, session: ZooKeeperStore, operations: Sequence[Operation]) -> None:
        """Write `operations`; ZooKeeper refuses them if this broker is not registered any more."""
        fence = Check(paths.broker_path(self._node_id))
        for some in parcels(operations):
            session.multi([fence, *some])

    def _session_or_fail(self) -> ZooKeeperStore:
        assert self._session is not None, "not connected"
        return self._session
