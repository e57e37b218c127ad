"""`Broker`: a real broker for one test, or for all tests of a run."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from kbroker.model import bracketed
from kbroker.testing.broker_process import BrokerProcess
from kbroker.testing.folder import Folder, remove_ownerless
from kbroker.testing.pausing import Pausable
from kbroker.testing.reserved_port import ReservedPort

if TYPE_CHECKING:
    from kbroker.testing.broker_inprocess import BrokerInprocess
    from kbroker.testing.fault_proxy import FaultProxy
    from kbroker.testing.faults import Faults

START_TIMEOUT_S = 30.0
LARGEST_REQUEST = 100 << 20
"""The broker's default of socket.request.max.bytes."""

QUICK = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
"""Defaults that differ from the broker's: no test waits for 50 new partitions."""

OF_THE_KIT = {
    "listeners": "host=",
    "port": "nothing: the system chooses one, and it stays the same",
    "host.name": "host=",
    "log.dirs": "directory=",
    "log.dir": "directory=",
}


class Broker(Pausable):
    """A broker in a subprocess, on a free port, with temporary data: ready when the `with` block begins.

        with Broker(settings={"num.partitions": 3}) as broker:
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

    `settings`: the broker's settings, by Kafka's names. `inprocess`: run the broker in this process, without a
    subprocess; then it cannot be killed or paused. `faults`: clients connect through a proxy that does what
    `broker.faults` is told. `directory`: where the data is kept (log.dirs) instead of a temporary directory. `host`:
    the address that the broker listens on. `log_level`: how much it logs. `start_timeout_s`: how long a start may take.

    A Broker is for one thread at a time; different Brokers are independent of each other. The end of the `with` block
    raises BrokerFailed when the broker has ended by itself. The constructor raises ValueError for settings that this
    class makes itself: listeners, port, host.name, log.dirs and log.dir.
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
            listener = f"PLAINTEXT://{bracketed(host)}:{behind.port}"
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
        """The port that clients connect to. It stays the same over all restarts."""
        return self._port.port

    @property
    def bootstrap_servers(self) -> str:
        """The address HOST:PORT, for the setting `bootstrap.servers` of any client."""
        return f"{bracketed(self.host)}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The id of the broker's process; None while it is stopped, and always with `inprocess=True`."""
        return self._runner.pid

    @property
    def log(self) -> str:
        """Everything that the broker has logged since its first start. It can be read after `close` too."""
        return self._log_path.read_text(errors="replace") if self._close.alive else self._last_log

    @property
    def faults(self) -> Faults:
        """The object by which a test orders faults. Raises RuntimeError without `faults=True`."""
        if self._proxy is None:
            raise RuntimeError("nothing stands between clients and this broker; make it with faults=True")
        return self._proxy.faults

    # --- its life ----------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the broker, and return when clients can connect. It has its earlier data, and the same port.

        Raises BrokerFailed when it does not start within `start_timeout_s`, and RuntimeError when it is closed.
        """
        if not self._close.alive:
            raise RuntimeError("the broker is closed, and its data is gone; make another one")
        self._runner.start(self._start_timeout_s)
        if self._proxy is not None:
            self._proxy.open()

    def stop(self) -> None:
        """Stop the broker as SIGTERM does, and return when it has ended.

        Raises BrokerFailed when it had ended by itself, does not end within 30 s or ends with an error, and
        RuntimeError when it is not running.
        """
        self._shut_proxy()
        self._runner.stop()

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as a crash would. What was acknowledged is there after the next `start`.

        Raises RuntimeError when it is not running, and with `inprocess=True`.
        """
        self._shut_proxy()
        self._runner.kill()

    def restart(self, *, kill: bool = False) -> None:
        """Call `stop`, or `kill` with `kill=True`; then `start`."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    def pause(self) -> None:
        """Stop all threads of the broker (SIGSTOP). Its connections stay open, and requests wait until `resume`.

        Raises RuntimeError when it is not running, and with `inprocess=True`.
        """
        self._runner.pause()

    def resume(self) -> None:
        """Let a paused broker go on."""
        self._runner.resume()

    def close(self) -> None:
        """End the broker in whatever state it is, and remove temporary data. Closing twice is allowed."""
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
        """Create a topic. Every client finds it when this returns. `configs`: its settings, as `retention_ms=1000`.

        Raises kbroker.client.BrokerError when the broker refuses, RuntimeError when it is not running, and BrokerFailed
        when it has ended by itself.
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


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_remove_ownerless_once: Callable[[], None] = functools.cache(remove_ownerless)
