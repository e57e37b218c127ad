"""`Cluster`: several brokers and the ZooKeeper that they share, for one test or for all tests of a run."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from kbroker.testing.broker import START_TIMEOUT_S, Broker
from kbroker.testing.broker_failed import BrokerFailed
from kbroker.testing.reserved_port import ReservedPort
from kbroker.testing.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from kbroker.client import AdminClient
    from kbroker.testing.cuts import Cuts

SETTLE_TIMEOUT_S = 60.0
LOOK_EVERY_S = 0.05
QUICK = {
    "zookeeper.session.timeout.ms": 2000,
    "zookeeper.connection.timeout.ms": 30_000,  # else as the session's, too short for a start on a busy machine
    "replica.lag.time.max.ms": 3000,
}
"""Defaults that differ from the brokers': a broker that is silent is given up after seconds."""
OF_THE_KIT = ("broker.id", "node.id", "zookeeper.connect", "kbroker.http.address")
HOST = "127.0.0.1"
HTTP_TIMEOUT_S = 10.0


class Cluster:
    """Brokers 1 to `brokers`, each in a subprocess, and a ZooKeeper: all are at rest when the `with` block begins.

        with Cluster(3) as cluster:
            cluster.create_topic("views", partitions=6)
            cluster.kill(cluster.leader("views", 0))

    `brokers` maps ids to `Broker`s. `settings`: those of all brokers, by Kafka's names. `racks`: the rack of each
    broker (broker.rack), that of broker 1 first. `zookeeper_jars`: see `zookeeper.find_jars`. `log_level`,
    `start_timeout_s`: as a Broker's. With three brokers or more each partition has three replicas by default, and an
    acknowledgement of acks=all needs two of them. `cuts`: `isolate` can cut brokers off, since everybody reaches them
    through proxies; a broker that was killed is then given up after two seconds.

    A Cluster is for one thread at a time. The end of the `with` block raises BrokerFailed when a broker has ended by
    itself. The constructor raises ZooKeeperMissing when Java or ZooKeeper's jars are not found, and ValueError for
    settings that it makes itself, and for more or fewer racks than brokers.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        settings: Mapping[str, object] | None = None,
        racks: Sequence[str] | None = None,
        cuts: bool = False,
        zookeeper_jars: str | Path | None = None,
        log_level: Literal["debug", "info", "warning", "error"] = "info",
        start_timeout_s: float = START_TIMEOUT_S,
    ):
        if brokers < 1:
            raise ValueError(f"{brokers} brokers are none")
        given = dict(settings or {})
        for name in OF_THE_KIT:
            if name in given:
                raise ValueError(f"settings: {name} is not for tests to set")
        if racks is not None and len(racks) != brokers:
            raise ValueError(f"{len(racks)} racks are not one for each of {brokers} brokers")
        self.brokers: dict[int, Broker] = {}
        with contextlib.ExitStack() as stack:
            self.zookeeper = ZooKeeper(zookeeper_jars)
            stack.callback(self.zookeeper.close)
            self._isolated: set[int] = set()
            self._addresses: dict[int, str] = {}
            self._http: dict[int, str] = {}
            self._cuts: Cuts | None = None
            if cuts:
                self._cuts = _new_cuts()
                stack.callback(self._cuts.close)
            for broker_id in range(1, brokers + 1):
                own = {**_replicated(brokers), **QUICK, **given}
                own |= {"broker.id": broker_id, "zookeeper.connect": self.zookeeper.connect}
                port = ReservedPort(HOST)
                stack.callback(port.release)
                own["kbroker.http.address"] = self._http[broker_id] = f"{HOST}:{port.port}"
                if racks is not None:
                    own["broker.rack"] = racks[broker_id - 1]
                if self._cuts is not None:
                    own |= self._behind_proxies(broker_id, self._cuts)
                broker = Broker(settings=own, log_level=log_level, start_timeout_s=start_timeout_s)
                stack.callback(broker.close)
                self.brokers[broker_id] = broker
            self._stack = stack.pop_all()

    def _behind_proxies(self, broker_id: int, cuts: Cuts) -> dict[str, object]:
        """Return the settings of a broker that can be cut off."""
        self._addresses[broker_id] = cuts.before_broker(broker_id, lambda: self.brokers[broker_id].port)
        return {
            "zookeeper.connect": cuts.before_zookeeper(broker_id, lambda: self.zookeeper.port),
            "advertised.listeners": f"PLAINTEXT://{self._addresses[broker_id]}",
        }

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, for the setting `bootstrap.servers` of any client."""
        return ",".join(map(self._address, self.brokers))

    def _address(self, broker_id: int) -> str:
        return self._addresses.get(broker_id) or self.brokers[broker_id].bootstrap_servers

    def http_address(self, broker_id: int) -> str:
        """Return the address HOST:PORT where a broker serves /metrics, /health and /ready."""
        return self._http[broker_id]

    # --- its life ----------------------------------------------------------------------------------------
    def start(self, *broker_ids: int) -> None:
        """Start the brokers with these ids, or all that do not run, at once. Return when they are at rest.

        Raises BrokerFailed when one does not start, or when a replica does not come into sync within 60 s.
        """
        waiting = [self.brokers[each] for each in broker_ids or self.brokers if self.brokers[each].pid is None]
        if waiting:
            with ThreadPoolExecutor(len(waiting)) as pool:
                for _ in pool.map(lambda broker: broker.start(), waiting):
                    pass
        self.await_in_sync()

    def stop(self, broker_id: int) -> None:
        """Stop a broker as SIGTERM does: it hands its partitions over first."""
        self.brokers[broker_id].stop()

    def kill(self, *broker_ids: int) -> None:
        """Kill brokers with SIGKILL, as crashes would."""
        for broker_id in broker_ids:
            self.brokers[broker_id].kill()

    def pause(self, broker_id: int) -> None:
        """Stop all threads of a broker (SIGSTOP), until `resume`: the others give it up after two seconds."""
        self.brokers[broker_id].pause()

    def resume(self, broker_id: int) -> None:
        """Let a paused broker go on."""
        self.brokers[broker_id].resume()

    @contextlib.contextmanager
    def paused(self, broker_id: int) -> Iterator[None]:
        """A context manager: `pause`, and `resume` at the end of the block."""
        with self.brokers[broker_id].paused():
            yield

    def isolate(self, broker_id: int, *, clients_too: bool = False) -> None:
        """Cut a broker off from all others and from ZooKeeper until `rejoin`, as a broken cable would.

        It stays as it is, with its clients, unless `clients_too`; the others give it up after two seconds. Whoever has
        a broker's id as `client.id` is taken for that broker. Raises RuntimeError without `cuts=True`.
        """
        if self._cuts is None:
            raise RuntimeError("nothing stands between the brokers; make the cluster with cuts=True")
        self.brokers[broker_id]._runner.check_running()
        self._cuts.cut(broker_id, clients_too=clients_too)
        self._isolated.add(broker_id)

    def rejoin(self, broker_id: int) -> None:
        """End what `isolate` has done to a broker."""
        if self._cuts is not None:
            self._cuts.mend(broker_id)
        self._isolated.discard(broker_id)

    @contextlib.contextmanager
    def isolated(self, broker_id: int, *, clients_too: bool = False) -> Iterator[None]:
        """A context manager: `isolate`, and `rejoin` at the end of the block."""
        self.isolate(broker_id, clients_too=clients_too)
        try:
            yield
        finally:
            self.rejoin(broker_id)

    def close(self) -> None:
        """End all brokers and the ZooKeeper in whatever state they are, and remove their data."""
        self._stack.close()

    def __enter__(self) -> Self:
        try:
            self.zookeeper.start()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for broker in self.brokers.values():
                    broker._runner.check_alive()
        finally:
            self.close()

    # --- what tests do first, and ask ----------------------------------------------------------------------
    def create_topic(self, name: str, partitions: int = 1, replication_factor: int = -1, **configs: object) -> None:
        """Create a topic, and return when all its replicas are in sync. `configs`: its settings: `retention_ms=1000`.

        Brokers that are stopped, killed, paused or isolated are given up by the others before that. Raises
        kbroker.client.BrokerError when the cluster refuses, and BrokerFailed as `await_in_sync`.
        """
        named = {key.replace("_", "."): str(value) for key, value in configs.items()}
        with self._admin() as admin:
            self._wait(lambda: self._misregistered(admin), SETTLE_TIMEOUT_S)
            admin.create_topic(name, partitions, replication_factor, named)
        self.await_in_sync(name)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the id of a partition's leader; -1 when it has none."""
        with self._admin() as admin:
            return admin.describe_topics([topic])[topic].partitions[partition].leader

    def controller(self) -> int:
        """Return the id of the controller; -1 when there is none."""
        with self._admin() as admin:
            return admin.describe_cluster().controller_id

    def await_in_sync(self, *topics: str, timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        """Wait until all running brokers are registered and all replicas of the topics on them, or of all, in sync.

        Those that are paused or isolated are left out, once the others have given them up. Raises BrokerFailed when
        that takes longer than `timeout_s`.
        """
        from kbroker.client import ClientError

        running = set(self._reachable())

        def missing() -> str:
            try:
                with self._admin() as admin:
                    if what := self._misregistered(admin):
                        return what
                    names = topics or tuple(admin.list_topics(internal=True))
                    found = admin.describe_topics(names)
            except ClientError as error:
                return str(error)
            for name, topic in found.items():
                for at, each in enumerate(topic.partitions):
                    if each.leader < 0 or set(each.in_sync) != set(each.replicas) & running:
                        return f"{name}-{at} has in sync {sorted(each.in_sync)} of {sorted(each.replicas)}"
            return ""

        self._wait(missing, timeout_s)

    def _misregistered(self, admin: AdminClient) -> str:
        """Return which brokers are registered and should not be, or should be; "" if all is as it should be.

        Each broker is asked, also whether it is registered itself. One that was paused, or whose ZooKeeper was, tells
        what was so before until it has heard from ZooKeeper.
        """
        from kbroker.client import ClientError
        from kbroker.protocol import messages as M

        async def told_by(broker_id: int) -> tuple[int, list[int]]:
            told = await admin._cluster.call(M.DescribeClusterRequest(), broker_id)
            return told.controller_id, sorted(each.broker_id for each in told.brokers)

        running = self._reachable()
        try:
            admin.describe_cluster()  # where the brokers are
            for broker_id in running:
                controller_id, registered = admin._thread.call(told_by(broker_id))
                if registered != running:
                    return f"broker {broker_id} tells of brokers {registered}, and {running} can be reached"
                if controller_id not in running:
                    return f"broker {broker_id} tells of no controller"
                if not self._is_registered(broker_id):
                    return f"broker {broker_id} is not registered"
        except (ClientError, OSError, HTTPException) as error:
            return str(error) or repr(error)
        return ""

    def _is_registered(self, broker_id: int) -> bool:
        """Return whether a broker has a session with ZooKeeper, and a controller has told it that it is registered."""
        with urllib.request.urlopen(f"http://{self._http[broker_id]}/metrics", timeout=HTTP_TIMEOUT_S) as answer:
            return b"\nkbroker_registered 1.0\n" in answer.read()

    def _wait(self, missing: Callable[[], str], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while what := missing():
            for broker in self.brokers.values():
                if broker.pid is not None:
                    broker._runner.check_alive()
            if time.monotonic() > deadline:
                raise BrokerFailed(f"the cluster is not at rest after {timeout_s:g} s: {what}", self._logs())
            time.sleep(LOOK_EVERY_S)

    def _reachable(self) -> list[int]:
        """Return the ids of the brokers that run and are neither paused nor isolated, in order."""
        running = [each for each, broker in self.brokers.items() if broker.pid is not None]
        return [each for each in running if each not in self._isolated and not self.brokers[each]._runner.is_paused]

    def _logs(self) -> str:
        return "\n".join(f"broker {each}: {line}" for each, broker in self.brokers.items()
                         for line in broker.log.splitlines()[-10:])  # fmt: skip

    def _admin(self) -> AdminClient:
        from kbroker.client import AdminClient

        running = [self._address(broker_id) for broker_id in self._reachable()]
        if not running:
            raise RuntimeError("no broker of the cluster runs")
        return AdminClient(bootstrap_servers=",".join(running), client_id="kbroker.testing")


def _new_cuts() -> Cuts:
    from kbroker.testing.cuts import Cuts

    return Cuts()


def _replicated(brokers: int) -> dict[str, object]:
    """Return the settings of replication that a cluster of so many brokers has by default."""
    factor, in_sync = min(3, brokers), 2 if brokers >= 3 else 1
    return {
        "default.replication.factor": factor,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": in_sync,
    }
