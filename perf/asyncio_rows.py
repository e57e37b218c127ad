"""Rows about the asyncio clients: kbroker.client next to aiokafka, in processes of their own, with the same broker."""

from __future__ import annotations

import json
import subprocess
import sys

from perf.duel import Figure, Measured, Runs, compared, delete_topic
from perf.peers import Kbroker, Peer

COUNT, SIZE, PARTITIONS, ROUNDS = 1_000_000, 100, 4, 3


def run(client: str, what: str, peer: Peer, topic: str, count: int = COUNT) -> Measured:
    command = [sys.executable, "-m", "perf.asyncio_client", client, what, peer.address, topic, str(count), str(SIZE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{client} {what}: {done.stderr[-1000:]}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def against_aiokafka() -> list[Figure]:
    """Producing each record with its own `await send`, and consuming a backlog record by record."""
    found: dict[tuple[str, str], Runs] = {}
    with Kbroker({"log.segment.delete.delay.ms": 0}) as peer:
        for number in range(ROUNDS):
            for client in ("kbroker", "aiokafka") if number % 2 else ("aiokafka", "kbroker"):
                topic = f"asyncio-{number}-{client}"
                peer.create_topic(topic, PARTITIONS)
                for what in ("produce", "consume"):
                    for key, value in run(client, what, peer, topic).items():
                        found.setdefault((what, key), {}).setdefault(client, []).append(value)
                delete_topic(peer, topic)
    figures = []
    for what in ("produce", "consume"):
        rates, costs = found[what, "msgs_per_s"], found[what, "cpu_us"]
        figures += [
            compared(f"asyncio {what} : aiokafka", rates["kbroker"], rates["aiokafka"], ">= 3", ">= 8", "msg/s"),
            compared(
                f"client CPU per message, asyncio {what} : aiokafka", costs["kbroker"], costs["aiokafka"], unit="us"
            ),
        ]
    return figures
