"""`Broker`: a real broker for one test or one session of tests."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from kbroker.testing.broker_process import BrokerProcess
from kbroker.testing.folder import Folder, remove_ownerless
from kbroker.testing.reserved_port import ReservedPort

if TYPE_CHECKING:
    from kbroker.testing.broker_inprocess import BrokerInprocess
    from kbroker.testing.fault_proxy import FaultProxy
    from kbroker.testing.faults import Faults

START_TIMEOUT_S = 30.0
LARGEST_REQUEST = 100 << 20
"""The broker's own default of socket.request.max.bytes."""

QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
"""Defaults that differ from the broker's own: a test waits for no second member, and for no fifty new partitions."""

OF_THE_KIT = {
    "listeners": "host=",
    "port": "nothing: the system chooses one, and it stays the same",
    "host.name": "host=",
    "log.dirs": "directory=",
    "log.dir": "directory=",
}


class Broker:
    """A broker in a subprocess, on a free port, with temporary data: ready when the `with` block begins.

        with Broker(settings={"num.partitions": 3}) as broker:
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

    `settings` have Kafka's names. `inprocess`: inside of this process, which starts no other; it cannot be killed or
    paused then. `faults`: clients connect through a proxy that does what `broker.faults` is told. `directory`: where
    the data is kept (log.dirs), instead of a temporary one. `host`: what it listens on.
    BrokerFailed: it did not start, or did not stop as it should. Not for several threads at once; different brokers are
    independent of each other.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, object] | None = None,
        inprocess: bool = False,
        faults: bool = False,
        directory: str | Path | None = None,
        host: str = "127.0.0.1",
        log_level: Literal["debug", "info", "warning", "error"] = "info",
        start_timeout_s: float = START_TIMEOUT_S,
    ):
        given = {name: _text(value) for name, value in (settings or {}).items()}
        for name in given.keys() & OF_THE_KIT:
            raise ValueError(f"settings: {name} is not for tests to set; use {OF_THE_KIT[name]}")
        _remove_ownerless_once()
        self.host = host
        self._start_timeout_s = start_timeout_s
        self._port = ReservedPort(host)
        self._folder = Folder()
        data = self._folder.path / "data" if directory is None else Path(directory).absolute()
        listener = f"PLAINTEXT://{self.bootstrap_servers}"
        self._proxy: FaultProxy | None = None
        self._ports = [self._port]
        if faults:
            given.setdefault("advertised.listeners", listener)
            behind = ReservedPort(host)
            self._ports.append(behind)
            listener = f"PLAINTEXT://{_address(host, behind.port)}"
            self._proxy = _fault_proxy((host, self.port), (host, behind.port), given)
        overrides = {**QUICK, **given, "listeners": listener, "log.dirs": str(data)}
        self._log_path = self._folder.path / "broker.log"
        self._log_path.touch()
        made = _inprocess() if inprocess else BrokerProcess
        self._runner = made([f"{name}={value}" for name, value in overrides.items()], self._log_path, log_level)
        self._last_log = ""
        self._close = weakref.finalize(self, _close, self._runner, self._proxy, self._ports, self._folder)

    @property
    def port(self) -> int:
        """The same from the first start to the last."""
        return self._port.port

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT, for the setting of that name of any client."""
        return _address(self.host, self.port)

    @property
    def pid(self) -> int | None:
        """Of its process; None while it is stopped, and always inside of this one."""
        return self._runner.pid

    @property
    def log(self) -> str:
        """Everything that it has logged, in all its starts; still there when it is closed."""
        return self._log_path.read_text(errors="replace") if self._close.alive else self._last_log

    @property
    def faults(self) -> Faults:
        """Where a test says what is to go wrong; RuntimeError unless it was made with `faults=True`."""
        if self._proxy is None:
            raise RuntimeError("nothing stands between clients and this broker; make it with faults=True")
        return self._proxy.faults

    # --- its life ----------------------------------------------------------------------------------------
    def start(self) -> None:
        """Returns when clients can connect. After `stop` or `kill`: with the same data, on the same port."""
        if not self._close.alive:
            raise RuntimeError("the broker is closed, and its data is gone; make another one")
        self._runner.start(self._start_timeout_s)
        if self._proxy is not None:
            self._proxy.open()

    def stop(self) -> None:
        """As SIGTERM does; returns when it has ended. BrokerFailed when it had not lived, or does not end."""
        self._shut_proxy()
        self._runner.stop()

    def kill(self) -> None:
        """SIGKILL, as a crash. What was acknowledged is there after the next `start`."""
        self._shut_proxy()
        self._runner.kill()

    def restart(self, *, kill: bool = False) -> None:
        """`stop`, or `kill`, and `start`."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    def pause(self) -> None:
        """It stands still, its connections stay open: what clients send is not answered until `resume`."""
        self._runner.pause()

    def resume(self) -> None:
        self._runner.resume()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """`pause`, and `resume` at the end of the block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def close(self) -> None:
        """End it, whatever state it is in, and remove its data if that is temporary. Idempotent."""
        if self._close.alive:
            self._last_log = self.log
            self._close()

    def _shut_proxy(self) -> None:
        if self._proxy is not None:
            self._proxy.shut()

    def __enter__(self) -> Self:
        try:
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
                self._runner.check_alive()
        finally:
            self.close()

    # --- what tests do first -----------------------------------------------------------------------------
    def create_topic(self, name: str, partitions: int = 1, **configs: object) -> None:
        """A topic, there for every client when this returns; `configs` as in `retention_ms=1000`.

        kbroker.client.BrokerError when the broker refuses, RuntimeError when it is not running.
        """
        self._runner.check_running()
        from kbroker.client import AdminClient

        named = {key.replace("_", "."): _text(value) for key, value in configs.items()}
        with AdminClient(bootstrap_servers=self.bootstrap_servers, client_id="kbroker.testing") as admin:
            admin.create_topic(name, partitions, 1, named)


def _inprocess() -> type[BrokerInprocess]:
    from kbroker.testing.broker_inprocess import BrokerInprocess

    return BrokerInprocess


def _fault_proxy(address: tuple[str, int], target: tuple[str, int], settings: Mapping[str, str]) -> FaultProxy:
    from kbroker.testing.fault_proxy import FaultProxy

    return FaultProxy(address, target, int(settings.get("socket.request.max.bytes", LARGEST_REQUEST)))


def _close(
    runner: BrokerProcess | BrokerInprocess, proxy: FaultProxy | None, ports: list[ReservedPort], folder: Folder
) -> None:
    try:
        if proxy is not None:
            proxy.close()
    finally:
        runner.discard()
        for port in ports:
            port.release()
        folder.remove()


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_remove_ownerless_once: Callable[[], None] = functools.cache(remove_ownerless)
