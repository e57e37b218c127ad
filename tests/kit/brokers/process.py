"""A kbroker in a process of its own, and what every server in a process has. Apache Kafka is in `kafka/process.py`."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from kbroker.testing.lifeline import Lifeline
from kbroker.testing.reserved_port import ReservedPort
from tests.kit.brokers.hosts import LOOPBACK, Host

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
MEMORY_DISK = Path("/dev/shm")
API_VERSIONS_V0 = bytes.fromhex("0000000e 0012 0000 00000007 0004") + b"test"


KEPT: list[ReservedPort] = []


def free_port() -> int:
    """Return a free port. It is not given to anybody else while this process lives."""
    KEPT.append(ReservedPort("127.0.0.1"))
    return KEPT[-1].port


def serves(port: int, address: str = "127.0.0.1") -> bool:
    """Whether an ApiVersions request to `port` is answered."""
    try:
        with socket.create_connection((address, port), timeout=1) as connection:
            connection.settimeout(5)
            connection.sendall(API_VERSIONS_V0)
            return len(connection.recv(4)) > 0
    except OSError:
        return False


def folder_in_memory() -> Path:
    """A new directory in memory where there is room, else on disk."""
    roomy = MEMORY_DISK.is_dir() and shutil.disk_usage(MEMORY_DISK).free > 1 << 30
    return Path(tempfile.mkdtemp(prefix="kafka-test-", dir=MEMORY_DISK if roomy else None))


def write_properties(path: Path, settings: Mapping[str, object]) -> Path:
    """Make a Java properties file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


class ServerProcess:
    """One server and its directory. `stop` (SIGTERM), `kill` (SIGKILL) and `start` again keep port and data. It does
    not outlive this process."""

    start_timeout_s = START_TIMEOUT_S

    def __init__(self, folder: Path | None = None, host: Host = LOOPBACK):
        self.owns_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="kbroker-test-"))
        self.host = host
        with host.entered():
            self._reserved = ReservedPort(host.address)
        self.port = self._reserved.port
        self.process: subprocess.Popen[bytes] | None = None
        self._lifeline = Lifeline()
        self.ready_s = 0.0
        """Seconds from exec to the first answered request, in the last start."""

    @property
    def address(self) -> str:
        return f"{self.host.address}:{self.port}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def output(self) -> str:
        """Everything the process has printed."""
        return (self.folder / "output.txt").read_text(errors="replace")

    def command(self) -> list[str]:
        """The command that starts the server."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Whether the server answers requests."""
        raise NotImplementedError

    def start(self) -> None:
        command = self.command()
        self.folder.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        with self.host.entered(), (self.folder / "output.txt").open("ab") as output:
            self.process = self._lifeline.start(command, stdout=output, stderr=subprocess.STDOUT, cwd=self.folder)
        self.await_ready(started)

    def await_ready(self, started: float) -> None:
        """Wait for the process, started at this time of the performance counter, until it serves."""
        assert self.process is not None
        while not self._serves():
            if self.process.poll() is not None or time.perf_counter() - started > self.start_timeout_s:
                what = f"{type(self).__name__} did not start (exit code {self.process.poll()})"
                raise RuntimeError(f"{what}:\n{self.output[-4000:]}")
            time.sleep(0.002)
        self.ready_s = time.perf_counter() - started

    def _serves(self) -> bool:
        with self.host.entered():
            return self.is_ready()

    def stop(self) -> int:
        """Stop the server with SIGTERM and return its exit code. If it does not stop in time, kill it and raise."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # faulthandler prints every thread's stack
            self.process.wait(10)
            raise RuntimeError(
                f"{type(self).__name__} did not stop within {STOP_TIMEOUT_S} s:\n{self.output[-4000:]}"
            ) from None

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a crash of the process would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill() if kind else self.stop()
        self._lifeline.cut()
        self._reserved.release()
        if self.owns_folder:
            shutil.rmtree(self.folder, ignore_errors=True)


class BrokerProcess(ServerProcess):
    """A kbroker process."""

    def __init__(self, overrides: dict[str, object] | None = None, folder: Path | None = None):
        super().__init__(folder)
        self.overrides = dict(overrides or {})

    def command(self) -> list[str]:
        settings = {"listeners": f"PLAINTEXT://127.0.0.1:{self.port}", **self.overrides}
        command = [sys.executable, "-m", "kbroker.cli.main", "start"]
        if "log.dirs" not in settings:
            command += ["--data", str(self.data)]
        for key, value in settings.items():
            command += ["--override", f"{key}={value}"]
        return command

    def is_ready(self) -> bool:
        return serves(self.port)
