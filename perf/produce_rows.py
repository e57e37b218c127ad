"""Rows about producing: throughput, CPU per GB, small requests, durable acks."""

from __future__ import annotations

import random
import re
import statistics
import subprocess
from collections.abc import Callable

from perf import machine, tools
from perf.duel import Duel, Figure, Measured, Runs, absolute, compared, delete_topic
from perf.peers import Kbroker, Peer, free_port, java_tool

PARTITIONS = 4


def rdkafka_produce(peer: Peer, topic: str, size: int, count: int, *options: str) -> float:
    """Return the messages per second of librdkafka's performance tool."""
    command = [
        tools.rdkafka_performance(), "-P", "-t", topic, "-s", str(size), "-c", str(count), "-b", peer.address,
        "-a", "1", "-X", "linger.ms=5", "-X", "queue.buffering.max.messages=2000000",
        "-X", "queue.buffering.max.kbytes=1000000", *options,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    found = re.findall(r"messages produced .*?, (\d+) msgs/s", done.stdout) or re.findall(r"(\d+) msgs/s", done.stdout)
    if not found:
        raise RuntimeError(f"rdkafka_performance: {(done.stderr or done.stdout)[-500:]}")
    return float(found[-1])


def measured_produce(
    duel: Duel,
    peer: Peer,
    size: int,
    count: int,
    *options: str,
    partitions: int = PARTITIONS,
    config: dict[str, str] | None = None,
) -> Measured:
    topic = duel.new_topic(peer, partitions, config)
    before = peer.cpu_seconds()
    rate = rdkafka_produce(peer, topic, size, count, *options)
    cpu = peer.cpu_seconds() - before
    delete_topic(peer, topic)
    return {"msgs_per_s": rate, "cpu_per_gb": cpu / (size * count / 1e9), "memory_mb": peer.resident_mb()}


def throughput() -> list[Figure]:
    """acks=1, 4 partitions, C client and Java client; CPU per GB; memory after the run."""
    figures = []
    with Duel() as duel:
        for size, count, cpu_aim in ((100, 5_000_000, "<= 0.45"), (1024, 1_500_000, "<= 0.55")):
            ours, kafka = duel.alternate(lambda peer, s=size, c=count: measured_produce(duel, peer, s, c))  # type: ignore[misc]
            figures.append(
                compared(
                    f"produce {size} B, C client", ours["msgs_per_s"], kafka["msgs_per_s"], ">= 1.0", ">= 1.5", "msg/s"
                )
            )
            figures.append(
                compared(
                    f"broker CPU per GB produced, {size} B",
                    ours["cpu_per_gb"],
                    kafka["cpu_per_gb"],
                    "<= 0.7",
                    cpu_aim,
                    "s",
                )
            )
        figures.append(
            absolute(
                "memory after the produce run",
                ours["memory_mb"],
                "<= 150",
                "<= 80",
                "MB",
                kafka["memory_mb"],
            )
        )

        def java(peer: Peer, size: int, count: int) -> Measured:
            topic = duel.new_topic(peer, PARTITIONS)
            properties = [f"bootstrap.servers={peer.address}", "acks=1", "linger.ms=5", "batch.size=131072"]
            output = java_tool("ProducerPerformance", "--topic", topic, "--num-records", count,
                               "--record-size", size, "--throughput", -1,
                               "--producer-props", *properties)  # fmt: skip
            delete_topic(peer, topic)
            return {"msgs_per_s": float(re.findall(r"([\d.]+) records/sec", output)[-1])}

        for size, count in ((100, 3_000_000), (1024, 1_000_000)):
            ours, kafka = duel.alternate(lambda peer, s=size, c=count: java(peer, s, c))  # type: ignore[misc]
            figures.append(
                compared(
                    f"produce {size} B, Java client",
                    ours["msgs_per_s"],
                    kafka["msgs_per_s"],
                    ">= 1.0",
                    ">= 1.5",
                    "msg/s",
                )
            )
    return figures


def produce_zstd(peer: Peer, topic: str, size: int, count: int) -> None:
    """Produce messages like JSON, which zstd halves, with the Python client.

    The messages of librdkafka's tool consist of one byte again and again.
    """
    from confluent_kafka import Producer

    random_ = random.Random(0)
    messages = [b'{"payload": "' + random_.randbytes(size // 2).hex().encode()[: size - 15] + b'"}' for _ in range(997)]
    producer = Producer({
        "bootstrap.servers": peer.address, "acks": 1, "linger.ms": 5, "compression.type": "zstd",
        "queue.buffering.max.messages": 2_000_000, "queue.buffering.max.kbytes": 2_000_000,
    })  # fmt: skip
    for number in range(count):
        producer.produce(topic, messages[number % len(messages)])
    if producer.flush(120):
        raise RuntimeError("messages that could not be sent")


def measured_zstd(duel: Duel, peer: Peer, size: int, count: int) -> Measured:
    topic = duel.new_topic(peer, PARTITIONS)
    before = peer.cpu_seconds()
    produce_zstd(peer, topic, size, count)
    cpu = peer.cpu_seconds() - before
    delete_topic(peer, topic)
    return {"cpu_per_gb": cpu / (size * count / 1e9)}


def variants() -> list[Figure]:
    """CPU per GB with zstd, with LogAppendTime, and into 1,000 partitions in small batches."""
    size = 1024
    with Duel() as duel:
        loads: dict[str, Callable[[Peer], Measured]] = {
            "zstd": lambda peer: measured_zstd(duel, peer, size, 700_000),
            "LogAppendTime": lambda peer: measured_produce(
                duel, peer, size, 700_000, config={"message.timestamp.type": "LogAppendTime"}
            ),
            "1,000 partitions, small batches": lambda peer: measured_produce(
                duel, peer, size, 700_000, "-X", "batch.num.messages=10", partitions=1000
            ),
        }
        figures = []
        for name, load in loads.items():
            ours, kafka = (runs["cpu_per_gb"] for runs in duel.alternate(load))
            figures.append(compared(f"broker CPU per GB, 1 KiB, {name}", ours, kafka, "<= 0.8", "<= 0.5", "s"))
    return figures


def against_the_loop() -> list[Figure]:
    """CPU per GB of kbroker, next to a loop that only receives, checks the CRC, appends and answers.

    The same driver sends the same 1 MB requests of 1 KiB records to both. They get as many bytes as fit into memory
    that has just been touched: with more, the cost of fresh memory alone decides.
    """
    load = (PARTITIONS, 1024, 900, 4, 2, 600, 1)
    runs: Runs = {"kbroker": [], "loop": []}
    with Kbroker({"log.segment.delete.delay.ms": 0}) as peer:
        for number in range(11):
            for who in ("kbroker", "loop") if number % 2 else ("loop", "kbroker"):
                machine.touch_memory()
                if who == "kbroker":
                    topic = f"loop-{number}"
                    peer.create_topic(topic, PARTITIONS)
                    before = peer.cpu_seconds()
                    done = tools.drive("produce-count", peer.port, topic, *load)
                    cpu = peer.cpu_seconds() - before
                    delete_topic(peer, topic)
                else:
                    port, path = free_port(), peer.folder / "loop.log"
                    with tools.Loop("append", port, path) as loop:
                        done = tools.drive("produce-count", port, "loop", *load)
                    cpu = loop.result["cpu_s"]
                    path.unlink()
                if number:
                    runs[who].append(cpu / (done["bytes_sent"] / 1e9))
    name = "broker CPU per GB produced, 1 KiB : the loop"
    return [compared(name, runs["kbroker"], runs["loop"], "<= 1.5", "<= 1.15", "s")]


def small_requests() -> list[Figure]:
    """Requests of one 100 B message, pipelined on one connection and on 64, next to Kafka and to the loop.

    64 connections have 5 requests each in flight, as clients have by default. The loop's rate is the driver's ceiling.
    With one in flight each, the loop itself does not reach three times what Kafka does: that ratio has no bound.
    """
    figures = []
    bounds = (">= 3", ">= 8")
    shapes = (
        ("1 connection, 100 in flight", 1, 100, bounds),
        ("64 connections, 5 in flight each", 64, 5, bounds),
        ("64 connections, 1 in flight each", 64, 1, ("", "")),
    )
    with Duel() as duel:
        for name, connections, in_flight, (must, aim) in shapes:

            def load(peer: Peer, c: int = connections, f: int = in_flight) -> Measured:
                topic = duel.new_topic(peer, PARTITIONS)
                before = peer.cpu_seconds()
                done = tools.drive("produce", peer.port, topic, PARTITIONS, 100, 1, c, f, 4, 1)
                cpu = peer.cpu_seconds() - before
                delete_topic(peer, topic)
                return {"per_s": done["requests_per_s"], "cpu_us": cpu / done["requests"] * 1e6}

            ours, kafka = duel.alternate(load)
            port, path = free_port(), duel.ours.folder / "loop.log"
            loops = []
            for _ in range(3):
                machine.touch_memory()
                with tools.Loop("append", port, path):
                    loops.append(
                        tools.drive("produce", port, "loop", PARTITIONS, 100, 1, connections, in_flight, 4, 1)[
                            "requests_per_s"
                        ]
                    )
                path.unlink()
            # The loop's runs are not neighbours in time of kbroker's: medians are compared, not rounds.
            medians = [statistics.median(ours["per_s"])], [statistics.median(loops)]
            against_loop = compared(f"requests/s : the loop, {name}", *medians, ">= 0.4", ">= 0.7", "/s")
            figures += [
                compared(
                    f"requests/s, {name}", ours["per_s"], kafka["per_s"], must, aim, "/s", ceiling=against_loop.ratio
                ),
                compared(f"broker CPU per request, {name}", ours["cpu_us"], kafka["cpu_us"], "<= 0.3", "<= 0.12", "us"),
                against_loop,
            ]
    return figures


def ping_pong() -> list[Figure]:
    """One request in flight on one connection, next to a bare ping-pong over the same socket."""
    ours, bare = [], []
    with Kbroker() as peer:
        peer.create_topic("ping", 1)
        for _ in range(4):
            ours.append(tools.drive("produce", peer.port, "ping", 1, 100, 1, 1, 1, 3, 1)["p50_us"])
            port = free_port()
            with tools.Loop("pingpong", port):
                bare.append(tools.drive("produce", port, "ping", 1, 100, 1, 1, 1, 3, 1)["p50_us"])
    return [compared("p50, one in flight : a bare ping-pong", ours, bare, "<= 2.5", "<= 1.5", "us")]


def two_processors() -> list[Figure]:
    """The ratio of requests/s with two network processors to those with one, under 64 connections."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    with Kbroker({"num.network.threads": 1}) as one, Kbroker({"num.network.threads": 2}) as two:
        for peer in (one, two):
            peer.create_topic("two", PARTITIONS)
        for number in range(16):
            for threads, peer in ((1, one), (2, two)) if number % 2 else ((2, two), (1, one)):
                rates[threads].append(
                    tools.drive("produce", peer.port, "two", PARTITIONS, 100, 1, 64, 1, 2, 1)["requests_per_s"]
                )
    return [compared("two processors : one, requests/s, 64 connections", rates[2], rates[1], ">= 1.0", ">= 1.5", "/s")]


def durable_acks() -> list[Figure]:
    """fsync before ack: 100 B, 64 producers, 1 and 64 partitions, next to append and fdatasync in a loop."""
    figures = []
    with Kbroker({"log.flush.interval.messages": 1}) as peer:
        for partitions in (1, 64):
            peer.create_topic(f"durable-{partitions}", partitions)
            ours, loop = [], []
            for _ in range(3):
                ours.append(
                    tools.drive("produce", peer.port, f"durable-{partitions}", partitions, 100, 1, 64, 1, 4, 1)[
                        "requests_per_s"
                    ]
                )
                command = [tools.c_program("loop"), "fsync", str(peer.folder / "fsync"), "168", "10000"]
                output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                loop.append(float(re.findall(r'"per_s": ([\d.]+)', output)[0]))
            name = f"durable acks/s, 64 producers, {partitions} partition{'s' * (partitions > 1)} : append+fdatasync"
            figures.append(compared(name, ours, loop, ">= 3", ">= 8", "/s"))
    return figures
