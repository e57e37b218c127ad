"""Rows about living with a broker: start, memory, connections, rebalances."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from perf import tools
from perf.duel import Duel, Figure, Measured, absolute, compared
from perf.peers import Kbroker, Peer
from tests.kit.clients import consumer_group_load
from tests.kit.clients.group_load import time_rebalance


def start() -> list[Figure]:
    """Time from start to ready, empty and with 5,000 partitions after a clean stop; memory while idle."""
    empty, memory, many = [], [], []
    for _ in range(5):
        with Kbroker() as peer:
            empty.append(peer.ready_s)
            time.sleep(0.5)
            memory.append(peer.resident_mb())
    with TemporaryDirectory(prefix="kbroker-bench-") as folder:
        with Kbroker(folder=Path(folder)) as peer:
            for number in range(5):
                peer.create_topic(f"many-{number}", 1000)
        for _ in range(3):
            with Kbroker(folder=Path(folder)) as peer:
                many.append(peer.ready_s)
    return [
        absolute("ready after start, empty", empty, "<= 0.4", "<= 0.2", "s"),
        absolute("ready after start, 5,000 partitions", many, "<= 2", "<= 0.5", "s"),
        absolute("memory while idle", memory, "<= 60", "<= 35", "MB"),
    ]


def connections() -> list[Figure]:
    """5,000 connections of which none waits for another one, and 10,000 that do nothing."""
    figures = []
    with Kbroker() as peer:
        taken = [tools.drive("connect", peer.port, 5000)["seconds"] for _ in range(3)]
        figures.append(absolute("5,000 connections opened at once, one request each", taken, "<= 1", "<= 0.5", "s"))
    with Kbroker() as peer:
        before = peer.memory_mb()
        holders = [
            subprocess.Popen(
                [tools.c_program("drive"), "idle", str(peer.port), "5000", "12"], stdout=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        for holder in holders:
            assert holder.stdout is not None
            holder.stdout.readline()
        time.sleep(1)
        cpu, each = peer.cpu_seconds(), (peer.memory_mb() - before) * 1024 / 10_000
        time.sleep(8)
        used = peer.cpu_seconds() - cpu
        for holder in holders:
            holder.wait()
        figures.append(absolute("10,000 idle connections: CPU in 8 s", [used], "<= 0.05", "<= 0.02", "s"))
        figures.append(absolute("10,000 idle connections: memory each", [each], "<= 20", "<= 8", "KB"))
    return figures


def rebalance() -> list[Figure]:
    """A group of 200 members, one leaves: time until all others have their assignment again, in either protocol."""
    settings: dict[str, object] = {"group.consumer.assignment.interval.ms": 0}  # else that is what is measured
    with Duel(settings) as duel:

        def load(peer: Peer) -> Measured:
            topic = duel.new_topic(peer, 200)
            return {"ms": time_rebalance("127.0.0.1", peer.port, topic, members=200) * 1000}

        def load_consumers(peer: Peer) -> Measured:
            topic = duel.new_topic(peer, 200)
            return {"ms": consumer_group_load.time_rebalance("127.0.0.1", peer.port, topic, 200, members=200) * 1000}

        figures = []
        for what, run in (("members", load), ("consumer group members (KIP-848)", load_consumers)):
            ours, kafka = duel.alternate(run, writes=False)
            name = f"rebalance of 200 {what} after one leaves"
            figures.append(compared(name, ours["ms"], kafka["ms"], "<= 1.0", "<= 0.5", "ms"))
    return figures
