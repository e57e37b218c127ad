"""Rows about messages of magic 0 and 1: reading them, and conversions next to Kafka 3.9, which still serves them."""

from __future__ import annotations

import time

from kbroker._core.wire import message_set
from kbroker._core.wire.message_set import MessageSetBuilder
from kbroker.protocol.compression import Codec, deflate, inflate_shared
from perf import tools
from perf.duel import Duel, Figure, Measured, absolute, compared
from perf.peers import Kafka39, Peer
from perf.produce_rows import measured_produce

TIME = 1_700_000_000_000


def old_messages() -> list[Figure]:
    """Reading a compressed message of magic 1 (snappy, 500 messages of 100 B inside): check, inflate, decode each.

    Runs in this process, on one thread; its CPU time counts.
    """
    builder = MessageSetBuilder(1, compressed=True)
    for row in range(500):
        builder.append(row, TIME + row // 3, None, (b"%08d" % row + bytes(100))[:100])
    data = builder.wrap(Codec.SNAPPY, deflate(Codec.SNAPPY, builder.messages(), magic=1))
    rates = []
    for _ in range(7):
        began, count = time.thread_time(), 0
        while time.thread_time() - began < 0.5:
            for _ in range(100):
                wrapper = message_set.check(data)
                value = memoryview(data)[wrapper.value_position : wrapper.value_position + wrapper.value_size]
                inner = inflate_shared(wrapper.codec, value, 1 << 20, magic=1)
                count += message_set.walk(inner, wrapper=wrapper).count
        rates.append(count / (time.thread_time() - began) / 1e6)
    return [absolute("iterate a compressed set (magic 1, snappy, 100 B), one core", rates, ">= 3", ">= 10", "M/s")]


def down_conversion() -> list[Figure]:
    """Batches of 1 KiB records, no codec, in the page cache, fetched by Fetch 2: MB/s of messages, CPU per GB."""
    partitions, requests = 4, 16_384
    with Duel(kafka=Kafka39) as duel:
        topics = {}
        for peer in (duel.ours, duel.peer):
            topics[peer.name] = duel.new_topic(peer, partitions)
            tools.drive("produce-count", peer.port, topics[peer.name], partitions, 1024, 16, 4, 4, requests, 1)

        def fetch(peer: Peer) -> Measured:
            before = peer.cpu_seconds()
            done = tools.drive("fetch-old", peer.port, topics[peer.name], partitions, 1 << 20, 5)
            return {
                "mb_per_s": done["mb_per_s"],
                "cpu_per_gb": (peer.cpu_seconds() - before) / (done["bytes"] / 1e9),
            }

        ours, kafka = duel.alternate(fetch, writes=False)
    return [
        compared("down-convert 2 to 1, no codec, 1 KiB", ours["mb_per_s"], kafka["mb_per_s"], ">= 1.0", ">= 3", "MB/s"),
        compared("broker CPU per GB down-converted", ours["cpu_per_gb"], kafka["cpu_per_gb"], "", "", "s"),
    ]


def up_conversion() -> list[Figure]:
    """Messages of magic 1 produced by librdkafka as to a broker of 0.10: messages/s, CPU per GB; for information."""
    old = ("-X", "api.version.request=false", "-X", "broker.version.fallback=0.10.0.0")
    figures = []
    with Duel(kafka=Kafka39) as duel:
        for size, count in ((100, 3_000_000), (1024, 1_000_000)):

            def produce(peer: Peer, size: int = size, count: int = count) -> Measured:
                return measured_produce(duel, peer, size, count, *old)

            ours, kafka = duel.alternate(produce)
            figures += [
                compared(f"up-convert 1 to 2, {size} B", ours["msgs_per_s"], kafka["msgs_per_s"], "", "", "msg/s"),
                compared(
                    f"broker CPU per GB up-converted, {size} B", ours["cpu_per_gb"], kafka["cpu_per_gb"], "", "", "s"
                ),
            ]
    return figures
