"""A broker's membership in the cluster of a ZooKeeper: it joins, registers itself, and comes back after a lost session.

A driver without threads: the broker calls `connect` and `register` when it starts, then `step` whenever `woken` is set
or the time that `step` has returned is over. The broker waits for ZooKeeper only during its start. It serves on while
ZooKeeper is away, and while its session has ended: leader epochs and ISRs fence it, if they have to.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from kbroker.clock import Clock
from kbroker.cluster import members
from kbroker.cluster.config_notifications import ConfigNotifications
from kbroker.cluster.joining import (
    CannotJoin,
    InterBrokerListeners,
    check_addresses,
    check_cluster_id,
    check_listeners,
    check_tree,
    only_local,
    same_address,
)
from kbroker.coordination import paths
from kbroker.coordination.store import (
    AnswerLost,
    Create,
    Delete,
    NodeExists,
    Operation,
    SessionExpired,
    SetData,
    Stat,
    Store,
    StoreUnavailable,
    WatchEvent,
)
from kbroker.errors import KbrokerError
from kbroker.model import Endpoint

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S = 1.0
"""The pause between two attempts while ZooKeeper is away or refuses."""
PURGE_S = 60.0
"""How often old config notifications are looked for when there are no new ones."""


@dataclass(frozen=True, slots=True)
class MembershipOptions:
    """How to be a member. `address` is zookeeper.connect, for messages."""

    address: str
    session_timeout_s: float
    listeners: InterBrokerListeners
    kbroker_version: str
    reserved_max_id: int = 1000
    generates_ids: bool = True
    """Whether a broker without an id gets one above `reserved_max_id`."""


class Member(Protocol):
    """What the broker does about its membership. Called by the thread that calls the membership's methods."""

    def session_ended(self) -> None:
        """The session is gone, and the registration with it. A controller resigns before this returns."""
        ...

    def registered(self, store: Store, broker_epoch: int) -> None:
        """This broker is registered, in this session, which replaces an earlier one. All configs are to be read."""
        ...

    def configs_changed(self, entity_paths: Sequence[str]) -> None:
        """Configs have changed; the paths of their nodes are given without "/config/"."""
        ...

    def group_configs_changed(self) -> None: ...

    def brokers_changed(self, kbroker_versions: Mapping[int, str | None]) -> None:
        """Other brokers are registered than before.

        `kbroker_versions` has the others by id: the version of each kbroker, None for a Kafka. A broker whose
        registration cannot be read stays what it was, or is left out. Called before this broker registers, too.
        """
        ...

    def must_stop(self, reason: str) -> None:
        """This broker does not know a feature that the cluster has finalized, and must stop."""
        ...


class Membership:
    """One broker's membership. `connect`, `register`, then `step` again and again, then `leave`.

    `open_session` opens a session with the store and makes the chroot; it raises StoreUnavailable after its own time
    limit. `step` and the calls of a start must not overlap. Watchers only note what has happened and set `woken`.
    """

    def __init__(self, options: MembershipOptions, open_session: Callable[[], Store], clock: Clock, member: Member):
        self._options = options
        self._open_session = open_session
        self._clock = clock
        self._member = member
        self.woken = threading.Event()
        self._lock = threading.Lock()  # guards `_happened`; taken alone
        self._happened: set[str] = set()
        self._session: Store | None = None
        self._leaves = False
        self._is_registered = False
        self.node_id = -1
        """This broker's id; -1 before `connect`."""
        self.cluster_id = ""
        self._endpoints: tuple[Endpoint, ...] = ()
        self._rack: str | None = None
        self._own_sessions: set[int] = set()
        self._notifications = ConfigNotifications(self._noting("configs"))
        self._changed_configs: list[str] = []
        """What notifications have told of and the member has not carried out yet."""
        self._versions: dict[int, str | None] = {}
        """The version of kbroker of each other broker, None for a Kafka, as the member was told."""
        self._unreadable: frozenset[int] = frozenset()
        """The brokers whose registrations could not be read at the last look."""
        self._refusal = ""
        self._due_s = 0.0

    @property
    def is_registered(self) -> bool:
        """Whether this broker is registered, as far as it knows.

        False from the end of a session to the next one, and while the session may have ended without word.
        """
        session = self._session
        return self._is_registered and session is not None and not session.may_have_ended

    # --- start ----------------------------------------------------------------------------------------------------

    def connect(self, node_id: int, known_cluster_id: str | None) -> Store:
        """Open the session and check that this broker may join; nothing is registered yet.

        `node_id` -1: an id is generated. `known_cluster_id` is that of the log directories, None for new ones. Raises
        CannotJoin if ZooKeeper cannot be reached or a check fails, or if `leave` is called meanwhile.
        """
        try:
            session = self._open()
            check_cluster_id(self._cluster_id_there(session), known_cluster_id)
            self._check_tree(session)
            self._insist(session, lambda: members.ensure_layout(session))
            self.cluster_id = self._insist(session, lambda: members.ensure_cluster_id(session, None, tuple))
            check_cluster_id(self.cluster_id, known_cluster_id)
            self.node_id = self._insist(session, lambda: self._generated_id(session)) if node_id < 0 else node_id
            self._await_free(session, lambda: self._is_free(session))
        except KbrokerError as error:
            self.leave()
            raise self._refused(error) from error
        return session

    def register(self, endpoints: Sequence[Endpoint], rack: str | None) -> int:
        """Register this broker under `endpoints`, where clients and brokers find it. Returns its broker epoch.

        Raises CannotJoin if the listeners do not fit those of the others, if another broker has one of the addresses,
        if only this machine reaches the address for brokers, and others are elsewhere, or if ZooKeeper is away.
        """
        self._endpoints, self._rack = tuple(endpoints), rack
        session = self._session_or_fail()
        try:
            self._await_free(session, lambda: self._other_with_same_address(session) is None)
            self._insist(session, lambda: self._check_addresses(session))
            return self._insist(session, lambda: self._register(session))
        except KbrokerError as error:
            self.leave()
            raise self._refused(error) from error

    def leave(self) -> None:
        """Close the session, so that the registration is gone at once if ZooKeeper can be reached. Idempotent."""
        self._leaves = True
        self.woken.set()
        if self._session is not None:
            self._session.close()

    def _insist(self, session: Store, step: Callable[[], T]) -> T:
        """Do a step that may be done twice, again while its answers are lost, for up to two session timeouts."""
        deadline = self._clock.monotonic() + 2 * self._options.session_timeout_s
        while True:
            try:
                return step()
            except AnswerLost:
                if self._leaves or session.may_have_ended or self._clock.monotonic() >= deadline:
                    raise

    def _refused(self, error: KbrokerError) -> CannotJoin:
        if isinstance(error, SessionExpired) and self._leaves:
            return CannotJoin(f"zookeeper.connect={self._options.address}: given up")
        return CannotJoin(f"zookeeper.connect={self._options.address}: {error}")

    def _open(self) -> Store:
        session = self._open_session()
        self._session = session
        if self._leaves:
            session.close()
        self._own_sessions.add(session.session_id)
        session.on_end(self._noted("session"))
        return session

    def _cluster_id_there(self, session: Store) -> str | None:
        found = session.get_many([paths.CLUSTER_ID])[0]
        return None if found is None else paths.decode_cluster_id(paths.CLUSTER_ID, found[0])

    def _check_tree(self, session: Store, *, was_member: bool = False) -> None:
        feature, controller, migration = session.get_many([paths.FEATURE, paths.CONTROLLER, paths.MIGRATION])
        check_tree(
            paths.decode_feature(paths.FEATURE, feature[0]) if feature else None,
            paths.decode_controller(paths.CONTROLLER, controller[0]) if controller else None,
            has_migration=migration is not None and not was_member,
        )

    def _generated_id(self, session: Store) -> int:
        if not self._options.generates_ids:
            raise CannotJoin("broker.id is not set, and broker.id.generation.enable is false")
        made = self._options.reserved_max_id + session.set(paths.BROKER_SEQUENCE, b"").version
        log.info("this broker gets the id %d", made)
        return made

    # --- waiting for a former life of this broker -----------------------------------------------------------------

    def _await_free(self, session: Store, is_free: Callable[[], bool]) -> None:
        """Wait until `is_free`: a process that was killed stays registered until its session ends.

        Raises BrokerIdTaken if it is still there after two session timeouts.
        """
        if is_free():
            return
        seconds = 2 * self._options.session_timeout_s
        log.warning("%s: waiting up to %.0f s for that session to end", self._occupant(session), seconds)
        deadline = self._clock.monotonic() + seconds
        while True:
            self.woken.clear()
            session.children(paths.BROKER_IDS, self._noting("brokers"))
            if is_free():
                return
            if self._leaves or not self.woken.wait(max(0.0, deadline - self._clock.monotonic())):
                raise members.BrokerIdTaken(
                    f"{self._occupant(session)}, and alive: each broker has a broker.id and addresses "
                    "(advertised.listeners, or listeners) of its own"
                )

    def _is_free(self, session: Store) -> bool:
        return session.exists(paths.broker_path(self.node_id)) is None

    def _occupant(self, session: Store) -> str:
        """Say who is registered with this broker's id or address, for messages."""
        registered = self._registrations(session)
        if self.node_id in registered:
            own = registered[self.node_id]
            where = ", ".join(map(str, own.endpoints if own is not None else ())) or "without endpoints"
            return f"broker.id={self.node_id} is registered already ({where})"
        other = self._other_with_same_address(session)
        where = ", ".join(f"{each.host}:{each.port}" for each in self._endpoints)
        return f"broker {other} is registered with an address of this broker ({where})"

    def _registrations(
        self, session: Store, watcher: Callable[[WatchEvent], None] | None = None
    ) -> dict[int, paths.BrokerRegistration | None]:
        """Return the registered brokers by id; None for a registration that cannot be read, which is told once."""
        ids = paths.broker_ids_of(session.children(paths.BROKER_IDS, watcher))
        registered: dict[int, paths.BrokerRegistration | None] = {}
        unreadable: dict[int, paths.StoreCorrupt] = {}
        for node_id, found in zip(ids, session.get_many(list(map(paths.broker_path, ids))), strict=True):
            if found is not None:
                try:
                    registered[node_id] = paths.decode_broker(paths.broker_path(node_id), found[0])
                except paths.StoreCorrupt as error:
                    registered[node_id], unreadable[node_id] = None, error
        for node_id in sorted(unreadable.keys() - self._unreadable):
            log.error("broker %d is passed over: %s", node_id, unreadable[node_id])
        self._unreadable = frozenset(unreadable)
        return registered

    def _others(self, session: Store) -> dict[int, paths.BrokerRegistration]:
        """The other brokers whose registrations can be read."""
        return self._readable_others(self._registrations(session))

    def _readable_others(
        self, registered: Mapping[int, paths.BrokerRegistration | None]
    ) -> dict[int, paths.BrokerRegistration]:
        return {at: found for at, found in registered.items() if found is not None and at != self.node_id}

    def _other_with_same_address(self, session: Store) -> int | None:
        return same_address(self._endpoints, self._others(session))

    def _check_addresses(self, session: Store) -> None:
        others = self._others(session)
        check_addresses(self._endpoints, self._options.listeners, others)
        for node_id in only_local(self._endpoints, self._options.listeners, others):
            log.warning(
                "broker %d is registered with an address that only its own machine reaches: set its "
                "advertised.listeners, unless it is on this machine",
                node_id,
            )

    # --- registering ----------------------------------------------------------------------------------------------

    def _register(self, session: Store, *, was_member: bool = False) -> int:
        # The broker knows who else is there before a controller can give it roles.
        registered = self._registrations(session)
        self._tell_brokers(registered)
        misfit = self._misfit(self._readable_others(registered))
        if misfit is not None and not was_member:
            raise misfit
        registration = paths.BrokerRegistration(
            self._endpoints, self._rack, self._clock.wall_ms(), self._options.kbroker_version
        )
        path = paths.broker_path(self.node_id)
        creation: list[Operation] = [Create(path, ephemeral=True), SetData(path, paths.encode_broker(registration))]
        try:
            stat = session.multi(creation)[1]
        except NodeExists:
            stat = self._replace_own(session, path, creation)
        except StoreUnavailable:
            # The connection is lost: it may have been made, in this session, which lives on.
            found = session.exists(path)
            if found is None or found.owner != session.session_id:
                raise
            stat = found
        assert isinstance(stat, Stat), stat
        log.info("registered in ZooKeeper %s as broker %d", self._options.address, self.node_id)
        self._watch(session)
        self._notifications.begin(session)
        self._member.registered(session, stat.creation_id)
        self._is_registered = True
        if misfit is not None:
            log.warning("this broker serves on, although a start would be refused now: %s", misfit)
        return stat.creation_id

    def _misfit(self, others: Mapping[int, paths.BrokerRegistration]) -> CannotJoin | None:
        """Return why this broker's listeners do not fit those of the others; None if they do.

        Only a start is refused for that. Others may have come with other listeners while this broker served, in a
        rolling change of them for example. If it stayed away after a lost session, an outage of ZooKeeper could keep
        most brokers out, although they served until then.
        """
        try:
            check_listeners(self._endpoints, self._options.listeners, others)
        except CannotJoin as error:
            return error
        return None

    def _replace_own(self, session: Store, path: str, creation: Sequence[Operation]) -> Stat:
        """Replace the registration of an earlier session of this process, which ZooKeeper has not ended yet.

        Raises BrokerIdTaken if the registration is that of another process.
        """
        found = session.exists(path)
        if found is not None and found.owner == session.session_id:
            return found
        if found is None or found.owner not in self._own_sessions:
            raise members.BrokerIdTaken(self._occupant(session))
        result = session.multi([Delete(path, found.version), *creation])[2]
        assert isinstance(result, Stat), result
        return result

    def _watch(self, session: Store) -> None:
        """Watch what a member has to notice. Changes before this call are noticed too, by the first `step`."""
        session.exists(paths.broker_path(self.node_id), self._noting("registration"))
        session.exists(paths.FEATURE, self._noting("feature"))
        session.exists(paths.GROUP_CONFIGS, self._noting("groups"))
        self._note("brokers")

    def _note(self, what: str) -> None:
        with self._lock:
            self._happened.add(what)
        self.woken.set()

    def _noted(self, what: str) -> Callable[[], None]:
        return lambda: self._note(what)

    def _noting(self, what: str) -> Callable[[WatchEvent], None]:
        return lambda _event: self._note(what)

    def ask_for_roles(self) -> None:
        """Have `step` ask the controller to tell this broker all its roles again. For any thread.

        A log directory has failed, or logs can be used again: the answer to LeaderAndIsr says which.
        """
        self._note("directory")

    # --- afterwards -----------------------------------------------------------------------------------------------

    def step(self) -> float:
        """Do what is due, and return after how many seconds to call again, if `woken` is not set before."""
        if self._leaves:
            return PURGE_S
        self.woken.clear()
        with self._lock:
            happened, self._happened = self._happened, set()
        try:
            self._carry_out(happened)
            self._refusal = ""
        except KbrokerError as error:
            with self._lock:
                self._happened |= happened
            if str(error) != self._refusal and not self._leaves:
                self._refusal = str(error)
                log.warning("membership in ZooKeeper %s, the broker serves on: %s", self._options.address, error)
            return RETRY_S
        return PURGE_S

    def _carry_out(self, happened: set[str]) -> None:
        """Carry out what has happened, and take each from `happened` when it is done."""
        if "session" in happened:
            self._join_again()
            happened.clear()
        session = self._session_or_fail()
        if "feature" in happened:
            self._check_feature(session)
            happened.discard("feature")
        if "registration" in happened:
            self._check_registration(session)
            happened.discard("registration")
        if "brokers" in happened:
            self._tell_brokers(self._registrations(session, self._noting("brokers")))
            happened.discard("brokers")
        now_s = self._clock.monotonic()
        if "configs" in happened or now_s >= self._due_s:
            self._changed_configs += self._notifications.take(session, now_s)
            if self._changed_configs:
                self._member.configs_changed(list(dict.fromkeys(self._changed_configs)))
                self._changed_configs.clear()
            self._due_s = now_s + PURGE_S
            happened.discard("configs")
        if "directory" in happened:
            session.create(paths.LOG_DIR_EVENT_PREFIX, paths.encode_log_dir_event(self.node_id), sequential=True)
            happened.discard("directory")
        if "groups" in happened:
            session.exists(paths.GROUP_CONFIGS, self._noting("groups"))
            self._member.group_configs_changed()
            happened.discard("groups")

    def _join_again(self) -> None:
        """Open a new session and register in it. What came from the old one does not matter any more."""
        self._leave_cluster()
        if self._session is not None:
            self._session.close()
        self._session = None
        session = self._open()
        there = self._cluster_id_there(session)
        if there != self.cluster_id:
            raise CannotJoin(f"it holds cluster {there}, and not {self.cluster_id} as before")
        self._check_readable_tree(session)
        self._changed_configs.clear()
        self._register(session, was_member=True)

    def _check_feature(self, session: Store) -> None:
        session.exists(paths.FEATURE, self._noting("feature"))
        try:
            self._check_readable_tree(session)
        except CannotJoin as error:
            self._member.must_stop(str(error))

    def _check_readable_tree(self, session: Store) -> None:
        """Check the tree as a member that is back: go on with one that cannot be read, which asks for nothing.

        /migration is made long before KRaft takes the cluster over, which it does not while a broker is registered that
        cannot go along. Whoever stayed away would only be missed.
        """
        try:
            self._check_tree(session, was_member=True)
        except paths.StoreCorrupt as error:
            log.error("passed over, for it cannot be read: %s", error)

    def _check_registration(self, session: Store) -> None:
        """Register again if somebody has removed the registration, or if that has been begun and not finished."""
        if session.exists(paths.broker_path(self.node_id), self._noting("registration")) is None:
            log.warning("the registration of broker %d was removed: registering again", self.node_id)
            self._leave_cluster()
        if not self._is_registered:
            self._register(session, was_member=True)

    def _leave_cluster(self) -> None:
        """Tell the broker, once for each registration, that it is not registered any more."""
        if self._is_registered:
            self._is_registered = False
            self._member.session_ended()

    def _tell_brokers(self, registered: Mapping[int, paths.BrokerRegistration | None]) -> None:
        """Tell the member which other brokers are registered, if they are other ones than before."""
        versions: dict[int, str | None] = {}
        for node_id, registration in registered.items():
            if node_id == self.node_id:
                continue
            if registration is not None:
                versions[node_id] = registration.kbroker
            elif node_id in self._versions:
                versions[node_id] = self._versions[node_id]
        if versions != self._versions:
            self._versions = versions
            self._member.brokers_changed(versions)

    def _session_or_fail(self) -> Store:
        if self._session is None:
            raise StoreUnavailable("there is no session yet")
        return self._session
