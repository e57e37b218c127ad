"""Which partition a record goes to."""

from __future__ import annotations

import itertools
import subprocess
import zlib
from collections import Counter
from pathlib import Path

import pytest

from kbroker._core.client.producer.accumulator import Accumulator
from kbroker._core.client.producer.partitioner import KINDS, murmur2_of
from kbroker._core.client.producer.record_sender import RecordSender
from kbroker._core.probes.producer import deliver
from kbroker.protocol.records import read_records
from tests.kit.kafka.java_program import compile_java

JAVA = Path(__file__).parent / "java"


def spread(kind: str, keys: list[bytes | None], leaders: list[int], size: int = 10, **how: int) -> list[int]:
    """The partition of each key's record."""
    accumulator = Accumulator(
        memory=1 << 26, records=0, max_record_size=1 << 20, batch_size=1 << 20, partitioner=KINDS[kind], **how
    )
    accumulator.set_topic("t", leaders)
    sender = RecordSender(accumulator)
    sent = [sender.send("t", b"v" * size, key) for key in keys]
    deliver(accumulator)
    return [one.partition for one in sent]


KEYS = [b"%d" % (i * 7919) * (i % 5) for i in range(10_000)]


def test_murmur2_of_known_keys() -> None:
    # What Apache Kafka's own tests state of its hash.
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert {key: murmur2_of(key) for key in known} == known


def test_partitions_of_ten_thousand_keys_are_those_of_java() -> None:
    command = compile_java(JAVA, "Partitions", "3.9.1", "org.apache.kafka:kafka-clients:3.9.1")
    asked = "\n".join([str(37), *(key.hex() for key in KEYS)])
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=100, check=True)
    java = [int(line) for line in done.stdout.split()]
    assert len(java) == len(KEYS)
    assert spread("murmur2", list(KEYS), [0] * 37) == java
    assert spread("murmur2_random", list(KEYS), [0] * 37) == java


@pytest.mark.parametrize("kind", ["consistent", "consistent_random"])
def test_crc_of_the_key_as_in_librdkafka(kind: str) -> None:
    keys = [key for key in KEYS[:500] if key]
    assert spread(kind, list(keys), [0] * 7) == [zlib.crc32(key) % 7 for key in keys]


def test_records_without_key() -> None:
    nothing: list[bytes | None] = [None] * 3000
    assert set(spread("consistent", [None, b""], [0] * 7)) == {0}
    assert set(spread("consistent_random", [b""] * 300, [0] * 7)) == set(range(7))
    assert spread("round_robin", nothing[:10], [0] * 4) == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    for kind in ("random", "murmur2_random", "consistent_random"):
        counted = Counter(spread(kind, nothing, [0] * 3))
        assert sorted(counted) == [0, 1, 2]
        assert min(counted.values()) > 850


def test_a_sticky_partition_changes_after_its_bytes_and_shares_are_even() -> None:
    # A record counts for its value and 6 bytes: 90, and five of them are the bytes of a turn.
    chosen = spread("murmur2", [None] * 20_000, [0] * 4, size=84, sticky_bytes=450)
    lengths = Counter(sum(1 for _ in stay) for _, stay in itertools.groupby(chosen))
    assert all(length % 5 == 0 for length in lengths)
    assert lengths[5] > 0.8 * lengths.total(), "the same one is drawn twice in a row one time in sixteen"
    # Of 4,000 draws each partition gets a share with a standard deviation of about 110 records.
    assert all(abs(count - 5000) < 1000 for count in Counter(chosen).values())
    assert len(set(spread("sticky", [b"key"] * 20, [0] * 4))) == 1


def test_records_without_key_go_where_there_is_a_leader() -> None:
    leaders = [-1, 3, -1, 5]
    for kind in ("murmur2", "murmur2_random", "random", "round_robin", "sticky"):
        assert set(spread(kind, [None] * 300, leaders, sticky_bytes=50)) == {1, 3}
    assert set(spread("random", [None] * 100, [-1, -1])) == {0, 1}
    assert 0 in spread("murmur2", list(KEYS[:100]), leaders)


def test_a_users_partitioner_is_asked() -> None:
    accumulator = Accumulator(memory=1 << 26, records=0, max_record_size=1 << 20, batch_size=1 << 20)
    accumulator.set_topic("t", [0] * 5)
    asked = []

    def last(topic: str, key: object, count: int) -> int:
        asked.append((topic, key, count))
        return count - 1

    sender = RecordSender(accumulator, partitioner=last)
    sender.send_nowait("t", b"1", b"k")
    sender.send_nowait("t", b"2", b"k", partition=0)
    sender.send_many("t", [b"3", b"4"], [b"k1", b"k2"])
    found = [
        (partition, record.value) for _, partition, batch in deliver(accumulator) for record in read_records(batch)
    ]
    assert sorted(found) == [(0, b"2"), (4, b"1"), (4, b"3"), (4, b"4")]
    assert asked == [("t", b"k", 5), ("t", b"k1", 5), ("t", b"k2", 5)]
    with pytest.raises(ValueError, match="out of range"):
        RecordSender(accumulator, partitioner=lambda *_: -1).send_nowait("t", b"v")
