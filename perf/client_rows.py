"""Rows about the Python client: producing next to confluent-kafka, and how long it takes to begin."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from perf import machine
from perf.client_load import COLUMN, PARTITIONS, SIZE
from perf.duel import Figure, Runs, absolute, compared, delete_topic
from perf.peers import Kbroker

COUNT = 5_000_000
RUNS = 5
SIDES = ("kbroker", "confluent")
SETTINGS = {"log.segment.delete.delay.ms": 0}
"""Deleted segments go at once, so that what one run wrote makes room for the next."""


def side(load: str, who: str, address: str, topic: str, count: int = 0) -> dict[str, float]:
    """Return what one process of perf.client_load has measured."""
    command = [sys.executable, "-m", "perf.client_load", load, who, address, topic, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{load} {who}: {done.stderr[-500:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def alternated(load: str, peer: Kbroker, partitions: int, count: int = 0) -> dict[str, list[dict[str, float]]]:
    """Run both sides against one broker, in turns, each with a topic of its own."""
    found: dict[str, list[dict[str, float]]] = {who: [] for who in SIDES}
    for number in range(RUNS + 1):
        for who in SIDES if number % 2 else reversed(SIDES):
            machine.touch_memory()
            topic = f"client-{uuid4().hex[:8]}"
            peer.create_topic(topic, partitions)
            measured = side(load, who, peer.address, topic, count)
            delete_topic(peer, topic)
            if number:
                found[who].append(measured)
    return found


def produce() -> list[Figure]:
    """Messages per second and CPU per message of the client."""
    figures = []
    names = {
        "produce": "send_nowait : confluent-kafka's produce",
        "produce-and-hear": "send with a future : produce with a callback",
    }
    with Kbroker(SETTINGS) as peer:
        for load, name in names.items():
            found = alternated(load, peer, PARTITIONS, COUNT)
            rates = {who: [COUNT / each["seconds"] for each in runs] for who, runs in found.items()}
            cpu = {who: [each["cpu_seconds"] / COUNT * 1e6 for each in runs] for who, runs in found.items()}
            figures.append(compared(f"client: {name}", rates["kbroker"], rates["confluent"], ">= 1.0", ">= 2", "msg/s"))
            figures.append(
                compared(f"client CPU per message: {name}", cpu["kbroker"], cpu["confluent"], "<= 1.0", "<= 0.5", "us")
            )
    return figures


@contextmanager
def sink() -> Iterator[str]:
    """Yield the address of a process that reads from one connection and drops what it reads."""
    script = (
        "import socket\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "print(listener.getsockname()[1], flush=True)\n"
        "connection, _ = listener.accept()\n"
        "room = bytearray(1 << 20)\n"
        "while connection.recv_into(room):\n"
        "    pass\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


def columns() -> list[Figure]:
    """Bytes per second of send_many, next to a plain socket that another process reads from."""
    count = COUNT // COLUMN * COLUMN
    runs: Runs = {"kbroker": [], "socket": []}
    with Kbroker(SETTINGS) as peer:
        for number in range(RUNS + 1):
            machine.touch_memory()
            topic = f"columns-{number}"
            peer.create_topic(topic, PARTITIONS)
            mine = side("columns", "kbroker", peer.address, topic, count)
            delete_topic(peer, topic)
            with sink() as address:
                bare = side("columns", "socket", address, topic, count)
            if number:
                runs["kbroker"].append(count * SIZE / mine["seconds"] / 1e6)
                runs["socket"].append(count * SIZE / bare["seconds"] / 1e6)
    name = "client: send_many of columns : a plain socket write"
    return [compared(name, runs["kbroker"], runs["socket"], ">= 0.4", ">= 0.8", "MB/s")]


def latency() -> list[Figure]:
    """How long it takes to produce one message and wait for it."""
    with Kbroker(SETTINGS) as peer:
        found = alternated("latency", peer, 1)
    return [
        compared(
            f"client: produce one and wait, {name} : confluent-kafka",
            [each[f"{name}_us"] for each in found["kbroker"]],
            [each[f"{name}_us"] for each in found["confluent"]],
            "<= 1.0",
            "<= 0.7",
            "us",
        )
        for name in ("p50", "p99")
    ]


def imported(statement: str) -> list[float]:
    """Return the milliseconds that an import statement takes, each time in a new process."""
    script = f"import time; t = time.perf_counter(); {statement}; print((time.perf_counter() - t) * 1e3)"
    return [
        float(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
        for _ in range(11)
    ][1:]


def begin() -> list[Figure]:
    """How long it takes to import kbroker.client, and to start a broker of kbroker.testing."""
    package = imported("import kbroker.client")
    classes = imported("from kbroker.client import AdminClient, Consumer, Producer")
    from kbroker.testing import Broker

    ready = []
    for _ in range(11):
        started = time.perf_counter()
        with Broker():
            ready.append((time.perf_counter() - started) * 1e3)
    return [
        absolute("import kbroker.client", package, "<= 100", "<= 50", "ms"),
        absolute("import Producer, Consumer and AdminClient of it", classes, "<= 100", "<= 50", "ms"),
        absolute("kbroker.testing.Broker() ready", ready[1:], "<= 150", "<= 80", "ms"),
    ]
