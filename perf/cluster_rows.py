"""Rows about clusters of three brokers: kbroker, and the better of Apache Kafka 3.9.1 (ZooKeeper) and 4.3.1 (KRaft).

`make bench ROWS=cluster` measures all of them. `python -m perf.cluster_rows --peers kafka39 --scale 0.01 produce`
prints what one load measures once, to try it out. KBROKER_BENCH_SCALE multiplies all sizes, for a smaller machine.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from perf import machine, tools
from perf.ack_clock import QUICK, AckClock, OwnAckClock, RdkafkaAckClock, StepClock
from perf.cluster_peers import KINDS, NODES, ClusterPeer
from perf.duel import Figure, Measured, Runs, absolute, compared
from perf.peers import free_port
from tests.kit.clients.wire import WireClient

SCALE = float(os.environ.get("KBROKER_BENCH_SCALE", "1"))
PARTITIONS = 12
WRITTEN_GB = 9
"""Memory to touch before a follower or a loop writes 5 GB: what was touched longer ago is taken back meanwhile."""
KAFKAS = ("kafka39", "kafka43")
LAZY: dict[str, object] = {"log.flush.interval.messages": 2**63 - 1}
"""No fsync before acknowledgements: Kafka's default."""

ByPeer = Mapping[str, Runs]
MakeClock = Callable[[str, str, Sequence[int]], AckClock]
"""Makes the clock of a topic's partitions; gets the brokers' addresses, the topic and the partitions."""


def scaled(number: float, at_least: float = 1) -> int:
    return int(max(at_least, number * SCALE))


# --- loads ----------------------------------------------------------------------------------------------


def rdkafka_produce(peer: ClusterPeer, topic: str, size: int, count: int) -> float:
    """Return the messages per second of librdkafka's performance tool with acks=all."""
    command = [
        tools.rdkafka_performance(), "-P", "-t", topic, "-s", str(size), "-c", str(count), "-b", peer.bootstrap_servers,
        "-a", "-1", "-X", "linger.ms=5", "-X", "queue.buffering.max.messages=2000000",
        "-X", "queue.buffering.max.kbytes=1000000",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found = re.findall(r"messages produced .*?, (\d+) msgs/s", done.stdout) or re.findall(r"(\d+) msgs/s", done.stdout)
    if not found:
        raise RuntimeError(f"rdkafka_performance: {(done.stderr or done.stdout)[-500:]}")
    return float(found[-1])


def produce(peer: ClusterPeer) -> Measured:
    """Throughput and CPU of 100 B and 1 KiB messages, after a run of each that warms up."""
    measured: Measured = {}
    for size, count in ((100, scaled(4_000_000, 20_000)), (1024, scaled(800_000, 5_000))):
        for is_measured in (False, True):
            topic = f"bench-{size}-{is_measured}"
            peer.create_topic(topic, PARTITIONS)
            machine.touch_memory()
            before = peer.cpu_seconds()
            rate = rdkafka_produce(peer, topic, size, count if is_measured else count // 3)
            if is_measured:
                # What followers still have to fetch belongs to it: an acknowledgement waits for one of two.
                peer.await_in_sync(topic, PARTITIONS)
                measured[f"{size}_mb_per_s"] = rate * size / 1e6
                measured[f"{size}_cpu_per_gb"] = (peer.cpu_seconds() - before) / (size * count / 1e9)
            peer.delete_topic(topic)
    measured["resident_mb"] = peer.resident_mb()
    return measured


def latency(peer: ClusterPeer) -> Measured:
    """One message of 100 B in flight on one connection, acks=all."""
    peer.create_topic("one-in-flight", 1, led_by=1)
    for seconds in (max(3, scaled(10)), max(3, scaled(10))):  # the first warms up
        done = tools.drive("produce", peer.nodes[1].port, "one-in-flight", 1, 100, 1, 1, 1, seconds, -1)
    return {"p50_ms": done["p50_us"] / 1000, "p99_ms": done["p99_us"] / 1000}


def idle(peer: ClusterPeer) -> Measured:
    """CPU of an idle cluster with 1,000 partitions, in percent of one core; memory of the largest broker."""
    partitions, seconds = scaled(1000, 12), max(5, scaled(30))
    peer.create_topic("idle", partitions)
    rdkafka_produce(peer, "idle", 100, scaled(1_000_000, 10_000))
    time.sleep(max(5, scaled(10)))
    before, began = peer.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    used = (peer.cpu_seconds() - before) / (time.monotonic() - began)
    return {"cpu_percent": used * 100, "resident_mb": peer.resident_mb()}


def catch_up(peer: ClusterPeer) -> Measured:
    """Bytes per second at which a follower that was away fetches what it has missed."""
    size, count = 1024, scaled(5_000_000, 50_000)
    peer.create_topic("behind", PARTITIONS)
    rdkafka_produce(peer, "behind", size, 10_000)
    away = not_the_controller(peer)
    other = next(node_id for node_id in NODES if node_id != away)
    peer.nodes[away].stop()
    rdkafka_produce(peer, "behind", size, count)
    os.sync()  # or the follower's writes would wait for those of before
    machine.touch_memory(WRITTEN_GB << 30)
    cpu = peer.cpu_seconds()
    began = time.monotonic()
    peer.start(away)
    serving = time.monotonic()
    peer.wait("the follower in sync", lambda: is_whole(peer, "behind", other), pause_s=0.02)
    seconds = time.monotonic() - serving
    cpu = peer.cpu_seconds() - cpu
    return {
        "mb_per_s": size * count / 1e6 / seconds,
        "start_s": serving - began,
        "cpu_per_gb": cpu / (size * count / 1e9),
    }


def is_whole(peer: ClusterPeer, topic: str, node_id: int) -> bool:
    """Return whether a broker knows of no replica of the topic that is not in sync."""
    return all(len(one.isr_nodes) == 3 for one in peer.metadata([topic], node_id).topics[0].partitions)


def not_the_controller(peer: ClusterPeer) -> int:
    peer.wait("a controller", lambda: peer.controller() >= 0)
    controller = peer.controller()
    return next(node_id for node_id in NODES if node_id != controller)


def leader_killed(peer: ClusterPeer, clock: MakeClock = RdkafkaAckClock) -> Measured:
    """The longest gap between acknowledgements when a leader of 100 partitions that is not the controller is killed."""
    partitions = scaled(100, 3)
    victim = not_the_controller(peer)
    peer.create_topic("killed", partitions, led_by=victim)
    with clock(peer.bootstrap_servers, "killed", range(partitions)) as watch:
        watch.begin_to_watch()
        peer.nodes[victim].kill()
        watch.await_all_again()
        return {"gap_s": watch.longest_gap_s}


def leader_stopped(peer: ClusterPeer, clock: MakeClock = RdkafkaAckClock, every: int = 1) -> Measured:
    """The longest gap of any partition, and the whole time, when a leader of 1,000 partitions is stopped cleanly.

    Each partition gets two records a second: with ten, the Kafkas are busy with the load, and their gaps say little. A
    gap is half a second too long then. With `every` 10 it is every tenth partition, and a twentieth of a second.
    """
    partitions = scaled(1000, 12)
    victim = not_the_controller(peer)
    peer.create_topic("stopped", partitions, led_by=victim)
    with clock(peer.bootstrap_servers, "stopped", range(0, partitions, every)) as watch:
        watch.begin_to_watch()
        began = time.monotonic()
        peer.nodes[victim].stop()
        stopped_s = time.monotonic() - began
        watch.await_all_again()
        return {"gap_s": watch.longest_gap_s, "stop_s": stopped_s}


def controller_killed(peer: ClusterPeer) -> Measured:
    """The time from the controller's death until each broker knows new leaders of all of 10,000 partitions."""
    topics = {f"many-{number}": scaled(1000, 10) for number in range(10)}
    for topic, partitions in topics.items():
        peer.create_topic(topic, partitions)
    time.sleep(3)
    victim = peer.controller()
    survivors = [node_id for node_id in NODES if node_id != victim]
    began = time.monotonic()
    peer.nodes[victim].kill()

    def is_told(node_id: int) -> bool:
        answer = peer.metadata(list(topics), node_id)
        leaders = {one.leader_id for topic in answer.topics for one in topic.partitions}
        return answer.controller_id != victim and leaders <= set(survivors)

    for node_id in survivors:
        peer.wait("the new controller's word", lambda node_id=node_id: is_told(node_id), pause_s=0.1)
    return {"told_s": time.monotonic() - began}


def coordinator_of(peer: ClusterPeer, key: str, key_type: int) -> int:
    """Return the id of a group's (0) or a transactional id's (1) coordinator."""
    found = -1

    def is_found() -> bool:
        nonlocal found
        with WireClient("127.0.0.1", peer.nodes[1].port, timeout_s=30) as client:
            asked = M.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            answer = client.call(ApiKey.FIND_COORDINATOR, 4, asked).coordinators[0]
        found = answer.node_id
        return bool(answer.error_code == 0)

    peer.wait(f"the coordinator of {key}", is_found)
    return found


def coordinators_killed(peer: ClusterPeer) -> Measured:
    """The longest gap between commits of a group, and of transactions, when their coordinator is killed."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    measured: Measured = {}
    victim = coordinator_of(peer, "bench-group", 0)
    other = next(node_id for node_id in NODES if node_id != victim)
    peer.create_topic("grouped", 1, led_by=other)
    rdkafka_produce(peer, "grouped", 100, 1000)
    consumer = Consumer(
        {"bootstrap.servers": peer.bootstrap_servers, "group.id": "bench-group", "enable.auto.commit": False, **QUICK}
        | {"auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["grouped"])
    offset = 0

    def commit() -> None:
        nonlocal offset
        consumer.poll(0)
        offset = (offset + 1) % 1000
        consumer.commit(offsets=[TopicPartition("grouped", 0, offset)], asynchronous=False)

    while not consumer.assignment():
        consumer.poll(0.1)
    with StepClock(commit) as clock:
        clock.begin_to_watch()
        peer.nodes[victim].kill()
        clock.await_steps(20)
        measured["group_gap_s"] = clock.longest_gap_s
    consumer.close()
    peer.start(victim)
    peer.await_in_sync("grouped", 1)
    peer.await_in_sync("__consumer_offsets", 3)

    victim = coordinator_of(peer, "bench-transactions", 1)
    other = next(node_id for node_id in NODES if node_id != victim)
    peer.create_topic("transactional", 1, led_by=other)
    producer = Producer(
        {"bootstrap.servers": peer.bootstrap_servers, "transactional.id": "bench-transactions", **QUICK}
        | {"transaction.timeout.ms": 300_000, "linger.ms": 0}
    )
    producer.init_transactions(60)

    def transact() -> None:
        producer.begin_transaction()
        producer.produce("transactional", b"x" * 100)
        producer.commit_transaction(120)

    with StepClock(transact) as clock:
        clock.begin_to_watch()
        peer.nodes[victim].kill()
        clock.await_steps(20)
        measured["transaction_gap_s"] = clock.longest_gap_s
    return measured


LOADS: dict[str, Callable[[ClusterPeer], Measured]] = {
    "produce": produce,
    "latency": latency,
    "idle": idle,
    "catch-up": catch_up,
    "leader-killed": leader_killed,
    "leader-stopped": leader_stopped,
    "leader-killed-own": partial(leader_killed, clock=OwnAckClock),
    "leader-stopped-own": partial(leader_stopped, clock=OwnAckClock, every=10),
    "controller-killed": controller_killed,
    "coordinators-killed": coordinators_killed,
}


# --- measuring ------------------------------------------------------------------------------------------


def measure(
    load: Callable[[ClusterPeer], Measured],
    rounds: int = 3,
    peers: Sequence[str] = tuple(KINDS),
    only: Mapping[str, dict[str, object]] | None = None,
) -> dict[str, Runs]:
    """Return what a load measures on each kind of cluster, a new one each time, in turn: A B C, C B A, A B C.

    `only`: settings of one kind alone.
    """
    runs: dict[str, Runs] = {kind: defaultdict(list) for kind in peers}
    for number in range(rounds):
        for kind in peers if number % 2 == 0 else reversed(peers):
            machine.touch_memory()
            with KINDS[kind]((only or {}).get(kind)) as peer:
                for key, value in load(peer).items():
                    runs[kind][key].append(value)
    return runs


def better(runs: ByPeer, key: str, *, is_less_better: bool) -> list[float]:
    """Return the runs of the better Kafka."""
    pick = min if is_less_better else max
    return pick((runs[kind][key] for kind in KAFKAS), key=statistics.median)


def judged(runs: ByPeer, what: str, key: str, must: str, aim: str, unit: str) -> Figure:
    """Return a figure of kbroker and the better Kafka. A bound of <= says that less is better."""
    other = better(runs, key, is_less_better=must.startswith("<="))
    return compared(f"cluster: {what}", runs["kbroker"][key], other, must, aim, unit)


def produce_rows() -> list[Figure]:
    """Throughput and CPU of three replicas, acks=all, without fsync before acks on both sides; the same CPU next to
    loops; and with fsync before acks, which is kbroker's default.
    """
    runs = measure(produce, only={"kbroker": LAZY})
    loops = [loop_cpu_per_gb() for _ in range(3)]
    durable = measure(produce, peers=("kbroker",))["kbroker"]
    figures = []
    for size, name in ((100, "100 B"), (1024, "1 KiB")):
        rate, cpu_per_gb = f"{size}_mb_per_s", f"{size}_cpu_per_gb"
        kafka_rate = better(runs, rate, is_less_better=False)
        kafka_cpu = better(runs, cpu_per_gb, is_less_better=True)
        with_fsync = f"{name} with fsync before ack : Kafka without"
        figures += [
            judged(runs, f"produce {name}, RF 3, acks=all", rate, ">= 1.5", ">= 2.5", "MB/s"),
            judged(runs, f"CPU of all brokers per GB, {name}", cpu_per_gb, "<= 0.4", "<= 0.2", "s"),
            compared(f"cluster: produce {with_fsync}", durable[rate], kafka_rate, ">= 0.7", ">= 1.0", "MB/s"),
            compared(f"cluster: CPU per GB, {with_fsync}", durable[cpu_per_gb], kafka_cpu, "", "", "s"),
        ]
    cpu = [statistics.median(runs["kbroker"]["1024_cpu_per_gb"])]
    name = "cluster: CPU of all brokers per GB, 1 KiB : three append loops and two sendfile loops"
    return [*figures, compared(name, cpu, [statistics.median(loops)], "<= 1.6", "<= 1.2", "s")]


def loop_cpu_per_gb() -> float:
    """Return what three loops that receive, check and append cost for a GB, and two that send it."""
    folder = Path(os.environ.get("TMPDIR", "/tmp"))
    path = folder / f"kbroker-bench-loop-{os.getpid()}"
    try:
        machine.touch_memory()
        port = free_port()
        with tools.Loop("append", port, path) as loop:
            done = tools.drive("produce-count", port, "loop", PARTITIONS, 1024, 900, 4, 2, scaled(600, 50), -1)
        append = loop.result["cpu_s"] / (done["bytes_sent"] / 1e9)
        port = free_port()
        with tools.Loop("sendfile", port, 1 << 20, path) as loop:
            sent = tools.drive("regions", port, 1 << 20, 4, 3)
        sendfile = loop.result["cpu_s"] / (sent["bytes"] / 1e9)
    finally:
        path.unlink(missing_ok=True)
    return float(3 * append + 2 * sendfile)


def latency_rows() -> list[Figure]:
    """One message in flight, acks=all, without fsync before acks on both sides; with it, kbroker's default."""
    runs = measure(latency, only={"kbroker": LAZY})
    durable = measure(latency, peers=("kbroker",))["kbroker"]
    figures = []
    for name in ("p50", "p99"):
        kafka = better(runs, f"{name}_ms", is_less_better=True)
        what = f"cluster: one in flight, {name}, with fsync before ack : Kafka without"
        figures += [
            judged(runs, f"one in flight, acks=all, {name}", f"{name}_ms", "<= 0.6", "<= 0.3", "ms"),
            compared(what, durable[f"{name}_ms"], kafka, "<= 0.6", "<= 0.3", "ms"),
        ]
    return figures


def idle_rows() -> list[Figure]:
    """CPU and memory of an idle cluster of 1,000 partitions."""
    runs = measure(idle)
    memory = better(runs, "resident_mb", is_less_better=True)
    return [
        judged(runs, "idle, 1,000 partitions, CPU of all brokers", "cpu_percent", "<= 0.3", "<= 0.05", "%"),
        absolute(
            "cluster: resident memory of a broker, 1,000 partitions",
            runs["kbroker"]["resident_mb"], "<= 150", "<= 80", "MB", memory,
        ),
    ]  # fmt: skip


def catch_up_rows() -> list[Figure]:
    """A follower that comes back 5 GB behind, next to the loop that receives, checks and appends as much.

    Without fsync before acks on all sides, and with it, which is kbroker's default.
    """
    runs = measure(catch_up, only={"kbroker": LAZY})
    durable = measure(catch_up, peers=("kbroker",))["kbroker"]["mb_per_s"]
    loops = []
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"kbroker-bench-loop-{os.getpid()}"
    for _ in range(3):
        os.sync()
        machine.touch_memory(WRITTEN_GB << 30)
        port = free_port()
        with tools.Loop("append", port, path):
            began = time.monotonic()
            done = tools.drive("produce-count", port, "loop", PARTITIONS, 1024, 900, 4, 2, scaled(5500, 50), -1)
            loops.append(done["bytes_sent"] / 1e6 / (time.monotonic() - began))
        path.unlink()
    ours, loop = [statistics.median(runs["kbroker"]["mb_per_s"])], [statistics.median(loops)]
    kafka = better(runs, "mb_per_s", is_less_better=False)
    name = "cluster: a follower's catching up"
    return [
        compared(f"{name} : the append loop", ours, loop, ">= 0.6", ">= 0.9", "MB/s"),
        compared(f"{name} : the better Kafka", runs["kbroker"]["mb_per_s"], kafka, "", "", "MB/s"),
        compared(f"{name} with fsync before ack : Kafka without", durable, kafka, "", "", "MB/s"),
    ]


def gap(runs: ByPeer, what: str, key: str, aim_s: str) -> list[Figure]:
    """Return the ratio that must hold, and the seconds that are the aim."""
    return [
        judged(runs, what, key, "<= 0.5", "", "s"),
        absolute(f"cluster: {what}, seconds", runs["kbroker"][key], "", f"<= {aim_s}", "s"),
    ]


def failover_rows() -> list[Figure]:
    """The gaps that clients see when brokers are killed or stopped."""
    killed, stopped = measure(leader_killed), measure(leader_stopped)
    own_killed = measure(partial(leader_killed, clock=OwnAckClock), peers=("kbroker",))["kbroker"]
    own_stopped = measure(partial(leader_stopped, clock=OwnAckClock, every=10), peers=("kbroker",))["kbroker"]
    controller, coordinators = measure(controller_killed), measure(coordinators_killed)
    own = "longest gap seen by kbroker.client, seconds"
    return [
        *gap(killed, "leader killed, 100 partitions, longest gap", "gap_s", "1"),
        absolute(f"cluster: leader killed, 100 partitions, {own}", own_killed["gap_s"], "", "<= 1", "s"),
        *gap(stopped, "leader stopped, 1,000 partitions, longest gap", "gap_s", "0.1"),
        absolute(f"cluster: leader stopped, 1,000 partitions, {own}", own_stopped["gap_s"], "", "<= 0.1", "s"),
        *gap(stopped, "leader stopped, 1,000 partitions, whole stop", "stop_s", "2"),
        *gap(controller, "controller killed, 10,000 partitions, all told", "told_s", "3"),
        *gap(coordinators, "group's coordinator killed, longest gap", "group_gap_s", "1.5"),
        *gap(coordinators, "transactions' coordinator killed, longest gap", "transaction_gap_s", "1.5"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", nargs="*", choices=[*LOADS, []], metavar="load", help=", ".join(LOADS))
    parser.add_argument("--peers", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--scale", type=float, default=SCALE)
    parser.add_argument("--lazy", action="store_true", help="no fsync before acks")
    arguments = parser.parse_args()
    globals()["SCALE"] = arguments.scale
    for name in arguments.loads or LOADS:
        for kind in arguments.peers:
            began = time.monotonic()
            found: Any = measure(LOADS[name], 1, [kind], {kind: LAZY} if arguments.lazy else None)[kind]
            shown = ", ".join(f"{key} {values[0]:.4g}" for key, values in found.items())
            print(f"{name}, {kind}: {shown} ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
