"""docs/CLUSTER.md works as it is written: `make cluster`, from one broker to three, and back to one that is alone.

All of it has a network of its own, so that the ports are those of the page.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker import __version__
from tests.kit import build
from tests.kit.brokers.process import STOP_TIMEOUT_S, serves
from tests.kit.cluster.network import CannotSeparate, Namespace
from tests.kit.kafka import maven
from tests.kit.kafka.process import KafkaInMemory
from tests.kit.kafka.zookeeper import ZooKeeperProcess

WAIT_S = 60.0
PAGE = (build.ROOT / "docs" / "CLUSTER.md").read_text()
LINE = re.compile(r"^broker (\d) at 127\.0\.0\.1:(\d+), http 127\.0\.0\.1:\d+, pid (\d+), log ", re.MULTILINE)
PLACES = {"one": "127.0.0.1", "two": "127.0.0.2", "three": "127.0.0.3", "zk": "127.0.0.1"}
"""The machines of the page, as addresses of this one."""


def lines_of(section: str) -> list[str]:
    """Return the commands of a section of the page."""
    found = re.search(rf"^## {re.escape(section)}\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return [line.strip() for line in found[1].splitlines() if line.startswith("    ")]


@pytest.fixture
def host() -> Iterator[Namespace]:
    try:
        KafkaInMemory.classpath()
        made = Namespace("cluster", "127.0.0.1")
    except (CannotSeparate, maven.MavenFailed) as missing:
        pytest.skip(str(missing))
    made.run("ip", "link", "set", "lo", "up")
    with made.entered():
        yield made
    made.close()


class Shell:
    """Carries out lines of the page: those that start a server in the background, the others until they end."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment: dict[str, str] = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
        self.servers: list[subprocess.Popen[bytes]] = []

    def begin(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / "output.txt").open("ab") as output:
            started = subprocess.Popen(command, stdout=output, stderr=output, env=self.environment, cwd=self.folder)
        self.servers.append(started)
        return started

    def run(self, line: str, code: int | None = 0) -> str:
        """Carry out a line, which must end with `code`, and return what it has printed. None: it may end with any."""
        done = subprocess.run(
            shlex.split(line), env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=WAIT_S
        )
        assert code in (None, done.returncode), f"{line}\n{done.stdout}{done.stderr}\n{self.output[-4000:]}"
        return done.stdout + done.stderr

    def watch(self, line: str) -> str:
        """Carry out a line that watches until it has looked twice; return what it has printed until then."""
        with subprocess.Popen(
            shlex.split(line), env=self.environment, cwd=self.folder, stdout=subprocess.PIPE, text=True
        ) as watching:
            assert watching.stdout is not None
            try:
                printed = ""
                while printed.count("\n\n") < 2:
                    row = watching.stdout.readline()
                    assert row, f"{line} has ended\n{printed}"
                    printed += row
                watching.send_signal(signal.SIGINT)
                assert watching.wait(STOP_TIMEOUT_S) == 130
            finally:
                watching.kill()
        return printed

    @property
    def output(self) -> str:
        """What the servers have printed."""
        return (self.folder / "output.txt").read_text()

    def close(self) -> None:
        for server in reversed(self.servers):
            if server.poll() is None:
                server.send_signal(signal.SIGTERM)
                server.wait(STOP_TIMEOUT_S)


@pytest.fixture
def shell(host: Namespace, tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.close()


@pytest.fixture
def zookeeper(host: Namespace, tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path / "zookeeper") as made:
        yield made


def await_that(is_so: Callable[[], bool], shell: Shell) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, shell.output[-4000:]
        time.sleep(0.05)


def test_make_cluster_is_tried_as_the_page_says(shell: Shell) -> None:
    program = str(build.ROOT / "tools" / "run_cluster.py")
    cluster = shell.begin(sys.executable, program, "--data", "tried")
    await_that(lambda: "Ctrl-C stops it." in shell.output, shell)
    pids = {int(number): int(pid) for number, _, pid in LINE.findall(shell.output)}
    assert [port for _, port, _ in LINE.findall(shell.output)] == ["9092", "9093", "9094"]
    create, describe, watch, back = lines_of("Try it")[1:]
    shell.run(create)
    assert shell.run(describe).count("1,2,3") > 1
    assert "6 partitions, 0 under-replicated" in shell.watch(watch)

    again = f"{sys.executable} {program} --data tried --new"
    assert "port 2181: Address already in use. Does another cluster or broker run?" in shell.run(again, code=1)
    assert "6 partitions" in shell.run(describe), "nothing was removed"

    shell.run(f"kill -9 {pids[2]}")
    led_by_two = re.compile(r"^ +\d+ +2 ", re.MULTILINE)
    await_that(lambda: not led_by_two.search(shell.run(describe)), shell)
    await_that(lambda: f"broker-2 has ended; see {shell.folder}/tried/broker-2.log" in shell.output, shell)
    assert "6 partitions, 6 under-replicated" in shell.run("kbroker cluster status", code=1)
    returned = shell.begin(*shlex.split(back.replace("build/cluster", "tried")))
    await_that(lambda: "6 partitions, 0 under-replicated" in shell.run("kbroker cluster status", code=None), shell)
    status = shell.run("kbroker cluster status")
    assert [f"broker {each} at " in status for each in (1, 2, 3)] == [True] * 3
    assert status.count(f", kbroker {__version__}: ready\n") == 3, "the HTTP ports tell it"
    returned.send_signal(signal.SIGTERM)
    assert returned.wait(STOP_TIMEOUT_S) == 0

    cluster.send_signal(signal.SIGINT)
    await_that(lambda: "stopping" in shell.output, shell)
    cluster.send_signal(signal.SIGINT)  # somebody is in a hurry
    assert cluster.wait(STOP_TIMEOUT_S) == 0
    assert "Traceback" not in shell.output
    assert not any(serves(port) for port in (9092, 9093, 9094))


def at_the_places(line: str) -> str:
    """Return a line of the page with addresses in place of the names of machines, and their folders."""
    for name, address in PLACES.items():
        line = re.sub(rf"\b{name}:", f"{address}:", line)
    machine = {"127.0.0.2:9092": "two", "127.0.0.3:9092": "three"}
    place = next((name for address, name in machine.items() if line.endswith(address)), "one")
    return line.replace("/var/lib/kbroker", place)


def test_one_broker_becomes_three_in_the_lines_of_the_page(
    zookeeper: ZooKeeperProcess, shell: Shell, tmp_path: Path
) -> None:
    lines = lines_of("From one broker to three in ten lines")
    export, first, two, three, servers, *commands = map(at_the_places, lines)
    assert len(commands) == 4, "the page says ten lines, with the export and the address of the servers"
    for place in ("one", "two", "three"):
        (tmp_path / place).mkdir()
    alone = shell.begin("kbroker", "start", "--data", "one", "-o", "listeners=PLAINTEXT://127.0.0.1:9092")
    await_that(lambda: serves(9092), shell)
    shell.run("kbroker topics create views --partitions 3 -c retention.ms=99000000")
    subprocess.run(["kbroker", "produce", "views"], input=b"a\nb\nc\n", env=shell.environment, cwd=tmp_path, check=True)
    alone.send_signal(signal.SIGTERM)
    assert alone.wait(STOP_TIMEOUT_S) == 0

    at = f"127.0.0.1:{zookeeper.port}"
    shell.run(export.replace("127.0.0.1:2181", at))
    for line, address in ((first, "127.0.0.1"), (two, "127.0.0.2"), (three, "127.0.0.3")):
        shell.begin(*shlex.split(line.replace("127.0.0.1:2181", at)))
        await_that(lambda address=address: serves(9092, address), shell)
    name, _, value = servers.removeprefix("export ").partition("=")
    shell.environment[name] = value
    said = [shell.run(line) for line in commands]
    assert "nothing is moving" in said[1]
    assert "3 partitions, 0 under-replicated, 0 under min ISR, 0 without a leader" in said[3]
    described = shell.run("kbroker topics describe views")
    assert "3 partitions  3 messages" in described and "retention.ms=99000000" in described
    rows = [line.split() for line in described.splitlines()[2:]]
    assert [sorted(row[3].split(",")) for row in rows] == [sorted(row[4].split(",")) for row in rows]
    assert {row[3].count(",") for row in rows} == {2}
    assert "compared" in shell.run("kbroker verify-log --replicas")
    shell.close()


VIEWS = "views  3 partitions  3 messages"


@pytest.mark.slow
def test_a_member_is_alone_again_in_the_lines_of_the_page(
    zookeeper: ZooKeeperProcess, shell: Shell, tmp_path: Path
) -> None:
    """One of two members: with its replica as the only one, without the ZooKeeper, and after a move of all replicas.

    The first two are tried with copies of its directory.
    """
    importing, alone = [at_the_places(line) for line in lines_of("Alone again")]
    importing = importing.replace("127.0.0.1:2181", f"127.0.0.1:{zookeeper.port}")
    (moving,) = re.findall(r"\(`(kbroker reassign [^`]*)`\)", PAGE.partition("## Alone again")[2])

    def member(broker_id: int, place: str, address: str) -> subprocess.Popen[bytes]:
        command = f"kbroker start --data {place} -o broker.id={broker_id} -o listeners=PLAINTEXT://{address}:9092"
        started = shell.begin(*shlex.split(f"{command} -o zookeeper.connect=127.0.0.1:{zookeeper.port}/kbroker"))
        await_that(lambda: serves(9092, address), shell)
        return started

    def stop(*started: subprocess.Popen[bytes]) -> None:
        for each in started:
            each.send_signal(signal.SIGTERM)
            assert each.wait(STOP_TIMEOUT_S) == 0

    def start_alone(line: str) -> subprocess.Popen[bytes]:
        started = shell.begin(*shlex.split(line))
        await_that(lambda: serves(9092), shell)
        return started

    def read() -> list[str]:
        return sorted(shell.run("kbroker consume views --from-beginning --exit").split())

    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = member(1, "one", "127.0.0.1"), member(2, "two", "127.0.0.2")
    shell.environment["KBROKER_BOOTSTRAP_SERVERS"] = "127.0.0.1:9092,127.0.0.2:9092"
    shell.run("kbroker topics create views --partitions 3 --replication-factor 2 -c retention.ms=99000000")
    subprocess.run(["kbroker", "produce", "views"], input=b"a\nb\nc\n", env=shell.environment, cwd=tmp_path, check=True)
    shell.run("kbroker consume views --group readers --from-beginning --exit")
    await_that(lambda: "0 under-replicated" in shell.run("kbroker cluster status", code=None), shell)
    stop(one)
    for name in ("imported", "without"):
        shell.run(f"cp -a one {name}")

    assert "other brokers have replicas too of " in shell.run(importing.replace(" --only-replica", ""), code=1)
    assert " carried out of ZooKeeper: " in shell.run(importing.replace(" one", " imported"))
    shell.environment["KBROKER_BOOTSTRAP_SERVERS"] = "127.0.0.1:9092"
    one = start_alone(alone.replace(" one", " imported"))
    described = shell.run("kbroker topics describe views")
    assert VIEWS in described and "retention.ms=99000000" in described and read() == ["a", "b", "c"]
    assert "0 under-replicated" in shell.run("kbroker cluster status")
    stop(one)

    refused = "without is that of a member of a cluster: set zookeeper.connect, or carry its topics back with"
    assert refused in shell.run("kbroker start --data without", code=1)
    shell.run("mv without/coordination.sqlite.carried elsewhere")
    one = start_alone("kbroker start --data without")
    described = shell.run("kbroker topics describe views")
    assert VIEWS in described and "retention.ms" not in described and read() == ["a", "b", "c"]
    assert "nothing is deleted from or compacted in 1 topics whose settings are not known: views; " in shell.output
    stop(one)

    one = member(1, "one", "127.0.0.1")
    await_that(lambda: "0 under-replicated" in shell.run("kbroker cluster status", code=None), shell)
    shell.run(moving)
    await_that(lambda: "nothing is moving" in shell.run("kbroker reassign status", code=None), shell)
    stop(two, one)
    assert "note: " not in shell.run(importing.replace(" --only-replica", "")), "nothing is missing"
    one = start_alone(alone)
    described = shell.run("kbroker topics describe views")
    assert VIEWS in described and "retention.ms=99000000" in described and read() == ["a", "b", "c"]
    groups = shell.run("kbroker groups describe readers")
    assert groups.count("views") == 3, groups
    stop(one)
