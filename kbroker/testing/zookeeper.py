"""A real ZooKeeper for tests, from the jars of an installed Apache ZooKeeper, or of an Apache Kafka up to 3.9."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from kbroker.testing.broker_failed import BrokerFailed
from kbroker.testing.folder import Folder
from kbroker.testing.lifeline import Lifeline
from kbroker.testing.pausing import Pausable, stop_threads
from kbroker.testing.reserved_port import ReservedPort

HOST = "127.0.0.1"
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# Tests kill the process, never the machine: an fsync for each change would only cost time.
JAVA_OPTIONS = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dzookeeper.forceSync=no")
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.02
HOMES = {"ZOOKEEPER_HOME": "lib", "KAFKA_HOME": "libs"}
"""Environment variables that name an installation, and the folder in it that has the jars."""


class ZooKeeperMissing(Exception):
    """Raised when Java or ZooKeeper's jars are not found. The message says what was looked for, and where."""


def properties(data: Path, port: int, host: str = HOST) -> dict[str, object]:
    """Return the settings of a server for tests. A tickTime of 500 ms allows session timeouts from one second on."""
    return {
        "dataDir": data,
        "clientPort": port,
        "clientPortAddress": host,
        "tickTime": 500,
        "maxSessionTimeout": 60_000,
        "admin.enableServer": "false",
    }


def serves(port: int, host: str = HOST) -> bool:
    """Return whether a ZooKeeper answers on the port."""
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            connection.settimeout(5)
            connection.sendall(b"srvr")
            return connection.recv(1) == b"Z"  # "Zookeeper version: ..."; else it says that it does not serve yet
    except OSError:
        return False


def find_java(environment: Mapping[str, str] = os.environ) -> str:
    """Return the java program of JAVA_HOME, or without that of PATH. Raises ZooKeeperMissing when there is none."""
    home = environment.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java", path=environment.get("PATH"))
    if found is None:
        raise ZooKeeperMissing(f"there is no java in {home}/bin" if home else "there is no java in the path")
    return found


def find_jars(directory: str | Path | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of jars: `directory`, or that of an installation that HOMES and the environment name.

    Raises ZooKeeperMissing when there is no zookeeper-*.jar in it.
    """
    looked_in = [Path(directory)] if directory else []
    looked_in += [Path(environment[name]) / folder for name, folder in HOMES.items() if environment.get(name)]
    for place in looked_in[:1] if directory else looked_in:
        if any(place.glob("zookeeper-[0-9]*.jar")):
            return place
    if not looked_in:
        raise ZooKeeperMissing(f"neither kbroker_zookeeper_jars nor {' nor '.join(HOMES)} says where ZooKeeper is")
    raise ZooKeeperMissing(f"there is no zookeeper-*.jar in {', '.join(map(str, looked_in))}")


class ZooKeeper(Pausable):
    """One ZooKeeper server on a free port, with temporary data. A context manager. `jars`: see `find_jars`.

    The constructor raises ZooKeeperMissing when Java or the jars are not found.
    """

    def __init__(self, jars: str | Path | None = None):
        self._command = [find_java(), *JAVA_OPTIONS, "-cp", f"{find_jars(jars)}/*", MAIN_CLASS]
        self._folder = Folder()
        self._port = ReservedPort(HOST)
        self._log_path = self._folder.path / "zookeeper.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = Lifeline()
        settings = properties(self._folder.path / "data", self._port.port)
        self._settings_path = self._folder.path / "zookeeper.properties"
        self._settings_path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    @property
    def port(self) -> int:
        """The port that the server listens on. It stays the same over all restarts."""
        return self._port.port

    @property
    def connect(self) -> str:
        """The address HOST:PORT for `zookeeper.connect`. It stays the same over all restarts."""
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> str:
        """Everything that the server has printed since its first start."""
        return self._log_path.read_text(errors="replace")

    def start(self) -> None:
        """Start the server, and return when it serves. It has its earlier data after `stop` or `kill`.

        Raises BrokerFailed when it does not serve within START_TIMEOUT_S.
        """
        with self._log_path.open("ab") as output:
            self._process = self._lifeline.start(
                [*self._command, str(self._settings_path)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder.path,
                process_group=0,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not serves(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                code = self._process.poll()
                self.kill()
                raise BrokerFailed(f"ZooKeeper did not start (exit code {code})", self.log)
            time.sleep(LOOK_EVERY_S)

    def stop(self) -> None:
        """Stop the server with SIGTERM, and wait for its end. Does nothing when it is not running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stop all threads of the server (SIGSTOP). Its connections stay open, and requests wait until `resume`.

        Raises RuntimeError when it is not running.
        """
        stop_threads(self._running())

    def resume(self) -> None:
        """Let a paused server go on. Raises RuntimeError when it is not running."""
        self._running().send_signal(signal.SIGCONT)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("ZooKeeper is not running")
        return self._process

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)  # a paused server gets no other signal than SIGKILL
            try:
                self._process.wait(STOP_TIMEOUT_S)
            finally:
                self._lifeline.cut()  # kills a process that would not stop
                self._process.wait()
                self._process = None

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
        self.close()

    def close(self) -> None:
        """Kill the server and remove its data. Closing twice is allowed."""
        self.kill()
        self._port.release()
        self._folder.remove()
