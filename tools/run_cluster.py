"""`make cluster`: three brokers and a ZooKeeper on this machine, until Ctrl-C. Data stays in build/cluster.

ZooKeeper's jars are those that tests use: they come from Maven Central, once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from kbroker.testing import zookeeper  # noqa: E402
from kbroker.testing.lifeline import Lifeline  # noqa: E402
from tests.kit.brokers.process import serves, write_properties  # noqa: E402
from tests.kit.kafka.maven import MavenFailed  # noqa: E402
from tests.kit.kafka.process import KafkaProcess  # noqa: E402

DATA = ROOT / "build" / "cluster"
FIRST_PORT, ZOOKEEPER_PORT = 9092, 2181
HTTP_ABOVE = 1000
"""By how much a broker's HTTP port is above its port for clients."""
START_TIMEOUT_S, STOP_TIMEOUT_S = 60.0, 30.0


class Failed(Exception):
    """Raised when the cluster cannot run: a port is taken, or a process has ended or does not serve."""


class Process:
    """One process of the cluster, with its log in `data`."""

    def __init__(self, name: str, data: Path, command: list[str]):
        self.name, self.log = name, data / f"{name}.log"
        self._lifeline = Lifeline()
        with self.log.open("ab") as output:
            # A group of its own: Ctrl-C is for this program, which stops them in order.
            self.process = self._lifeline.start(command, stdout=output, stderr=output, cwd=data, process_group=0)

    def await_serving(self, port: int, is_zookeeper: bool = False) -> None:
        """Wait until it answers. Raises Failed when it ends or takes too long."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (zookeeper.serves(port) if is_zookeeper else serves(port)):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"{self.name} does not serve; see {self.log}")
            time.sleep(0.05)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def check_free(ports: Sequence[int]) -> None:
    """Raise Failed if something listens on one of the ports: it would be taken for the cluster."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise Failed(
                    f"port {port}: {error.strerror}. Does another cluster or broker run? Stop it, or choose others: "
                    'make cluster ARGS="--port 19092 --zookeeper-port 12181 --data build/other"'
                ) from error


def remove_data(data: Path) -> None:
    """Remove what an earlier cluster has left in `data`, and nothing else that is there."""
    for path in (*data.glob("zookeeper*"), *data.glob("broker-*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def run(brokers: int, data: Path, first_port: int, zookeeper_port: int, *, is_new: bool) -> None:
    """Start everything, say where it is, and stop it at Ctrl-C, the ZooKeeper last."""
    ports = {number: first_port + number - 1 for number in range(1, brokers + 1)}
    check_free([zookeeper_port, *ports.values(), *(port + HTTP_ABOVE for port in ports.values())])
    if is_new:
        remove_data(data)
    data.mkdir(parents=True, exist_ok=True)
    settings = zookeeper.properties(data / "zookeeper", zookeeper_port)
    file = write_properties(data / "zookeeper.properties", settings)
    jvm = [zookeeper.find_java(), *zookeeper.JAVA_OPTIONS, "-cp", KafkaProcess.classpath(), zookeeper.MAIN_CLASS]
    started = [Process("zookeeper", data, [*jvm, str(file)])]
    try:
        started[0].await_serving(zookeeper_port, is_zookeeper=True)
        print(f"ZooKeeper at 127.0.0.1:{zookeeper_port}", flush=True)
        factor, in_sync = min(3, brokers), 2 if brokers >= 3 else 1
        replicated = {
            "default.replication.factor": factor,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": factor,
            "transaction.state.log.replication.factor": factor,
            "transaction.state.log.min.isr": in_sync,
        }
        for number, port in ports.items():
            own = {
                "broker.id": number,
                "zookeeper.connect": f"127.0.0.1:{zookeeper_port}",
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "log.dirs": data / f"broker-{number}",
                "kbroker.http.address": f"127.0.0.1:{port + HTTP_ABOVE}",
                **replicated,
            }
            properties = write_properties(data / f"broker-{number}.properties", own)
            command = [sys.executable, "-m", "kbroker.cli.main", "start", str(properties)]
            os.environ["PYTHONPATH"] = str(ROOT)
            started.append(Process(f"broker-{number}", data, command))
        for process, (number, port) in zip(started[1:], ports.items(), strict=True):
            process.await_serving(port)
            where = f"127.0.0.1:{port}, http 127.0.0.1:{port + HTTP_ABOVE}"
            print(f"broker {number} at {where}, pid {process.process.pid}, log {process.log}", flush=True)
        servers = ",".join(f"127.0.0.1:{port}" for port in ports.values())
        print(f"\nkbroker cluster status --bootstrap-server {servers}\nCtrl-C stops it.", flush=True)
        told: set[str] = set()
        while True:
            time.sleep(0.5)
            for process in started:
                # A broker may be killed to see what happens: the others go on.
                if process.process.poll() is not None and process.name not in told:
                    told.add(process.name)
                    print(f"{process.name} has ended; see {process.log}", flush=True)
    except KeyboardInterrupt:
        print("stopping", flush=True)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C, of somebody in a hurry, stops nothing sooner
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for process in reversed(started):
            if process.process.poll() is None:
                process.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--new", action="store_true", help="remove the data of an earlier cluster first")
    parser.add_argument("--port", type=int, default=FIRST_PORT, help="of the first broker; the others have the next")
    parser.add_argument("--zookeeper-port", type=int, default=ZOOKEEPER_PORT)
    parser.add_argument("--data", type=Path, default=DATA, help="the directory of data and logs, build/cluster")
    arguments = parser.parse_args()
    if arguments.brokers < 1:
        parser.error("--brokers: at least one")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have told its background jobs to ignore it
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(
            arguments.brokers, arguments.data.absolute(), arguments.port, arguments.zookeeper_port,
            is_new=arguments.new,
        )  # fmt: skip
    except (Failed, MavenFailed, zookeeper.ZooKeeperMissing) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
