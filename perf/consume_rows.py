"""Rows about consuming: throughput, CPU per GB, long polls, and how cold reads disturb other consumers."""

from __future__ import annotations

import re
import statistics
import subprocess
import threading
import time

from perf import machine, tools
from perf.duel import Duel, Figure, Measured, Runs, compared
from perf.peers import Kbroker, Peer, free_port
from perf.produce_rows import PARTITIONS, rdkafka_produce

SAMPLE_S = 0.01
TIMEOUT_S = 300
BACKOFF = ("-X", "fetch.queue.backoff.ms=5", "-X", "queued.min.messages=1000000")


def rdkafka_consume(peer: Peer, topic: str, count: int) -> Measured:
    """Return messages per second, and the client's share of its own ceiling.

    That is the share of the time in which the client's main thread, which takes the messages, did not wait for any.
    """
    command = [
        tools.rdkafka_performance(), "-G", f"bench-{time.monotonic_ns()}",
        "-t", topic, "-c", str(count), "-b", peer.address,
        "-X", "auto.offset.reset=earliest", "-X", "check.crcs=false", *BACKOFF,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    states = []
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        states.append(machine.thread_state(process.pid))
        time.sleep(SAMPLE_S)
    finished = process.poll() is not None
    process.kill()
    output, errors = process.communicate()
    found = re.findall(r"(\d+) msgs/s", output)
    if not finished or not found:
        raise RuntimeError(f"rdkafka_performance: {(errors or output)[-500:]}")
    consuming = states[len(states) // 4 : len(states) * 3 // 4]  # leaves out joining the group and leaving it
    return {"msgs_per_s": float(found[-1]), "ceiling": consuming.count("R") / len(consuming)}


def throughput() -> list[Figure]:
    """A backlog of 1 KiB and of 100 B messages, read by librdkafka; the raw driver next to the sendfile loop."""
    figures = []
    with Duel() as duel:
        for size, count in ((1024, 2_000_000), (100, 5_000_000)):
            topics = {}
            for peer in (duel.ours, duel.peer):
                topics[peer.name] = duel.new_topic(peer, PARTITIONS)
                rdkafka_produce(peer, topics[peer.name], size, count)

            def load(peer: Peer, size: int = size, count: int = count, topics: dict[str, str] = topics) -> Measured:
                before = peer.cpu_seconds()
                client = rdkafka_consume(peer, topics[peer.name], count)
                return {**client, "cpu_per_gb": (peer.cpu_seconds() - before) / (size * count / 1e9)}

            ours, kafka = duel.alternate(load, rounds=9, writes=False)  # the difference is small
            figures.append(
                compared(
                    f"consume {size} B, C client",
                    ours["msgs_per_s"],
                    kafka["msgs_per_s"],
                    ">= 1.0",
                    ">= 1.2",
                    "msg/s",
                    ceiling=statistics.median(ours["ceiling"]),
                )
            )
            figures.append(
                compared(
                    f"broker CPU per GB consumed, {size} B",
                    ours["cpu_per_gb"],
                    kafka["cpu_per_gb"],
                    "<= 1.1",
                    "<= 1.0",
                    "s",
                )
            )
    figures += against_the_loop()
    return figures


def against_the_loop() -> list[Figure]:
    runs: Runs = {"kbroker": [], "loop": []}
    with Kbroker() as peer:
        peer.create_topic("cold", PARTITIONS)
        tools.drive("produce", peer.port, "cold", PARTITIONS, 1024, 900, 4, 2, 4, 1)
        segments = sorted((peer.folder / "data").glob("cold-*/*0.log"))
        for number in range(6):
            for who in ("kbroker", "loop") if number % 2 else ("loop", "kbroker"):
                if who == "kbroker":
                    before = peer.cpu_seconds()
                    done = tools.drive("fetch", peer.port, "cold", PARTITIONS, 1 << 20, 4)
                    cpu, sent = peer.cpu_seconds() - before, done["bytes"]
                else:
                    port = free_port()
                    with tools.Loop("sendfile", port, 1 << 20, *segments) as loop:
                        # The loop answers any frame with 12 bytes and a region of a file; the driver only counts bytes.
                        tools.drive("regions", port, 1 << 20, PARTITIONS, 4)
                    cpu, sent = loop.result["cpu_s"], loop.result["bytes_out"]
                if number:
                    runs[who].append(cpu / (sent / 1e9))
    name = "broker CPU per GB consumed : the sendfile loop"
    return [compared(name, runs["kbroker"], runs["loop"], "<= 1.4", "<= 1.15", "s")]


def long_polls() -> list[Figure]:
    """1,000 consumers in long polls on one partition: CPU for each that is woken, and CPU while nothing happens."""
    figures = []
    with Duel() as duel:

        def wakes(peer: Peer) -> Measured:
            topic = duel.new_topic(peer, 1)
            before = peer.cpu_seconds()
            done = tools.drive("wake", peer.port, topic, 1000, 10, 5)
            return {"cpu_us": (peer.cpu_seconds() - before) / max(done["wakes"], 1) * 1e6}

        def idle(peer: Peer) -> Measured:
            topic = duel.new_topic(peer, 1)
            before = peer.cpu_seconds()
            tools.drive("wake", peer.port, topic, 1000, 0.01, 10)
            return {"cpu_s": (peer.cpu_seconds() - before) / 10}

        ours, kafka = duel.alternate(wakes, writes=False)
        figures.append(
            compared("1,000 long polls: broker CPU per wake", ours["cpu_us"], kafka["cpu_us"], "<= 1.0", "<= 0.3", "us")
        )
        ours, kafka = duel.alternate(idle, warm_up=False, writes=False)
        figures.append(compared("1,000 long polls: idle CPU", ours["cpu_s"], kafka["cpu_s"], "<= 1.0", "<= 0.3", "s/s"))
    return figures


def end_to_end() -> list[Figure]:
    """Latency from the intended send time to arrival at a consumer in a long poll. Our open-loop driver; linger 0."""
    figures = []
    with Duel() as duel:
        for rate in (100, 2000, 10000):

            def load(peer: Peer, rate: int = rate) -> Measured:
                topic = duel.new_topic(peer, 1)
                done = tools.drive("end-to-end", peer.port, topic, rate, 5)
                return {key: done[key] for key in ("p50_us", "p99_us", "p999_us")}

            ours, kafka = duel.alternate(load, writes=False)
            for key, name in (("p50_us", "p50"), ("p99_us", "p99"), ("p999_us", "p99.9")):
                figures.append(
                    compared(f"end to end at {rate}/s, {name}", ours[key], kafka[key], "<= 1.0", "<= 0.4", "us")
                )
    return figures


def undisturbed() -> list[Figure]:
    """p99 of a tail consumer while another reads cold data, and while retention deletes."""
    gigabytes = 10
    figures = []
    with Duel(
        {"log.segment.bytes": 104857600, "log.retention.check.interval.ms": 1000, "file.delete.delay.ms": 1000}
    ) as duel:

        def cold(peer: Peer) -> Measured:
            old, tail = duel.new_topic(peer, PARTITIONS), duel.new_topic(peer, 1)
            rdkafka_produce(peer, old, 10_000, gigabytes * 100_000)
            for path in (peer.folder / "data").glob(f"{old}-*/*.log"):
                drop_from_page_cache(path)
            reader = threading.Thread(target=tools.drive, args=("fetch", peer.port, old, PARTITIONS, 1 << 20, 12))
            reader.start()
            done = tools.drive("end-to-end", peer.port, tail, 200, 10)
            reader.join()
            alter_topic(peer, old, {"retention.bytes": "1"})
            deleting = tools.drive("end-to-end", peer.port, tail, 200, 8)
            return {"cold_us": done["p99_us"], "deleting_us": deleting["p99_us"]}

        ours, kafka = duel.alternate(cold, rounds=2, warm_up=False)
        for key, name in (("cold_us", "another reads 10 GB of cold data"), ("deleting_us", "retention deletes")):
            figures.append(
                compared(f"p99 of a tail consumer while {name}", ours[key], kafka[key], "<= 1.0", "<= 0.5", "us")
            )
    return figures


def drop_from_page_cache(path: object) -> None:
    import os

    fd = os.open(str(path), os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def alter_topic(peer: Peer, topic: str, config: dict[str, str]) -> None:
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": peer.address})
    admin.incremental_alter_configs([resource])[resource].result(60)
