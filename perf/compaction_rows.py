"""The row about compaction: one cleaner thread of kbroker and of Kafka over the same log."""

from __future__ import annotations

import time
from pathlib import Path

from perf.consume_rows import alter_topic
from perf.duel import Duel, Figure, Measured, compared, delete_topic
from perf.peers import Peer

KEYS = 1_000_000
RECORDS = 1_500_000
VALUE_SIZE = 1024


def compaction() -> list[Figure]:
    """1.5 M records of 1 KiB with 1 M keys in one partition, then compacted: MB/s of the log that the cleaner read.

    The time is from the change of cleanup.policy to the entry in cleaner-offset-checkpoint. Up to a tenth of a second
    of waiting for the cleaner thread may be in it. The files are in the page cache.
    """
    figures = []
    settings: dict[str, object] = {"log.cleaner.threads": 1, "log.cleaner.backoff.ms": 100}
    with Duel(settings) as duel:

        def clean(peer: Peer) -> Measured:
            topic = duel.new_topic(peer, 1, {"segment.bytes": str(100 << 20), "min.cleanable.dirty.ratio": "0.01"})
            produce_keyed(peer, topic)
            size = closed_size(peer, topic)
            before, began = peer.cpu_seconds(), time.perf_counter()
            alter_topic(peer, topic, {"cleanup.policy": "compact"})
            await_cleaned(peer, topic)
            took, cpu = time.perf_counter() - began, peer.cpu_seconds() - before
            if closed_size(peer, topic) > 0.8 * size:
                raise RuntimeError(f"{peer.name} has not compacted {topic}")
            delete_topic(peer, topic)
            return {"mb_per_s": size / took / 1e6, "cpu_per_gb": cpu / (size / 1e9)}

        ours, kafka = duel.alternate(clean)
    figures.append(
        compared("compaction, 1 KiB, 1 M keys", ours["mb_per_s"], kafka["mb_per_s"], ">= 1.0", ">= 2", "MB/s")
    )
    figures.append(compared("broker CPU per GB compacted", ours["cpu_per_gb"], kafka["cpu_per_gb"], "", "", "s"))
    return figures


def produce_keyed(peer: Peer, topic: str) -> None:
    """Produce records whose keys come again and again, in an order that is not theirs."""
    from confluent_kafka import Producer

    producer = Producer({
        "bootstrap.servers": peer.address, "acks": 1, "linger.ms": 5,
        "queue.buffering.max.messages": 2_000_000, "queue.buffering.max.kbytes": 500_000,
    })  # fmt: skip
    value = bytes(VALUE_SIZE)
    for number in range(RECORDS):
        key = b"key-%08d" % (number * 7919 % KEYS)
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise RuntimeError("messages that could not be sent")


def segments(peer: Peer, topic: str) -> list[Path]:
    return sorted((peer.folder / "data" / f"{topic}-0").glob("*.log"))


def closed_size(peer: Peer, topic: str) -> int:
    """Return the bytes that a cleaner may touch: all segments but the active one."""
    return sum(path.stat().st_size for path in segments(peer, topic)[:-1])


def await_cleaned(peer: Peer, topic: str) -> None:
    """Wait until the cleaner has written to its checkpoint up to where the partition is clean."""
    checkpoint = peer.folder / "data" / "cleaner-offset-checkpoint"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if checkpoint.exists():
            entries = [line.split() for line in checkpoint.read_text().splitlines()]
            if any(entry[:2] == [topic, "0"] and int(entry[2]) > 0 for entry in entries if len(entry) == 3):
                return
        time.sleep(0.005)
    raise RuntimeError(f"{peer.name} does not compact {topic}:\n{peer.output[-2000:]}")
