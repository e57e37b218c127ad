"""Rows about consuming with the Python client, next to confluent-kafka: one process per side, the same broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from perf.duel import Figure, Measured, Runs, absolute, compared
from perf.peers import Kbroker, Peer
from perf.produce_rows import rdkafka_produce
from perf.python_consumers import PARTITIONS

SIZE = 100
COUNT = 5_000_000
ROUNDS = 5
TIMEOUT_S = 300


def consumed(kind: str, peer: Peer, topic: str) -> Measured:
    command = [sys.executable, "-m", "perf.python_consumers", kind, peer.address, topic, str(COUNT)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=Path(__file__).parent.parent
    )
    if done.returncode:
        raise RuntimeError(f"{kind}: {done.stderr[-1000:]}")
    return {key: float(value) for key, value in json.loads(done.stdout).items()}


def rounds(peer: Peer, topic: str, *kinds: str) -> dict[str, Runs]:
    """Run the kinds in turn, forwards and backwards, and return their results. The first round does not count."""
    found: dict[str, Runs] = {kind: defaultdict(list) for kind in kinds}
    for number in range(ROUNDS + 1):
        for kind in kinds if number % 2 else reversed(kinds):
            for key, value in consumed(kind, peer, topic).items():
                if number:
                    found[kind][key].append(value)
    return found


def against_confluent() -> list[Figure]:
    with Kbroker() as peer:
        peer.create_topic("consumed", PARTITIONS)
        rdkafka_produce(peer, "consumed", SIZE, COUNT)
        tuned = rounds(peer, "consumed", "kbroker", "confluent")
        plain = rounds(peer, "consumed", "kbroker", "confluent-defaults")
        columns = rounds(peer, "consumed", "kbroker-arrow", "kbroker-arrow-values")
    ours, other = tuned["kbroker"], tuned["confluent"]
    default_ours, default_other = plain["kbroker"], plain["confluent-defaults"]
    rates = ours["msgs_per_s"], other["msgs_per_s"]
    default_rates = default_ours["msgs_per_s"], default_other["msgs_per_s"]
    return [
        compared("client: consume, reading value : confluent-kafka tuned", *rates, ">= 1.2", ">= 2.5", "msg/s"),
        compared("client: consume, reading value : confluent-kafka, both defaults", *default_rates, unit="msg/s"),
        compared(
            "client: CPU per message consumed : confluent-kafka",
            ours["cpu_us"], other["cpu_us"], "<= 1.0", "<= 0.5", "us",
        ),
        absolute(
            "client: poll_arrow, million msg/s",
            [rate / 1e6 for rate in columns["kbroker-arrow"]["msgs_per_s"]], ">= 5", ">= 10", "M msg/s",
        ),
        absolute(
            "client: poll_arrow of values alone, million msg/s",
            [rate / 1e6 for rate in columns["kbroker-arrow-values"]["msgs_per_s"]], "", "", "M msg/s",
        ),
        absolute("client: poll_arrow, CPU per message", columns["kbroker-arrow"]["cpu_us"], "", "", "us"),
    ]  # fmt: skip
