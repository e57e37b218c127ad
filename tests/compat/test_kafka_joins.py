"""Members of groups of KIP-848 when an Apache Kafka 3.9, which has no such groups, joins a cluster of kbrokers."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from kbroker.client import AdminClient, ClientError, Consumer, Producer, TopicPartition
from tests.compat.clients import ROOT, named
from tests.kit.cluster.cluster import Cluster

TOPIC, COUNT = "read", 60
PATIENCE_S = 60.0
KINDS = ("kbroker", "kbroker", "kbroker")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_members_say_why_they_end_and_classic_ones_go_on_where_they_were() -> None:
    with Cluster(KINDS) as cluster, cluster.entered():
        at = cluster.bootstrap_servers
        with AdminClient(bootstrap_servers=at) as admin:
            admin.create_topic(TOPIC, 3, 3)
        write(at)
        told: dict[str, Any] = {"bootstrap": at, "topic": TOPIC, "group": "java", "assignor": None, "static": False}
        told |= {"protocol": "consumer", "count": COUNT, "timeout_s": PATIENCE_S}
        java = subprocess.Popen(
            [*named("java-4.3").prepare(), "member", json.dumps(told)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        of_librdkafka, late = (
            confluent_kafka.Consumer(
                {"bootstrap.servers": at, "group.id": group, "group.protocol": "consumer", "log_level": 0}
                | {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 100}
            )
            for group in ("librdkafka", "late")
        )
        of_librdkafka.subscribe([TOPIC])
        ours = consumer(at, "ours", group_protocol="consumer")
        try:
            assert len(read(lambda: ours.poll(0.2), COUNT)) == COUNT
            assert len(read(lambda: of_librdkafka.consume(100, 0.2), COUNT)) == COUNT
            ours.commit()
            await_that(lambda: committed(at, "java") == COUNT)
            await_that(lambda: committed(at, "librdkafka") == COUNT)
            cluster.add("kafka")
            with pytest.raises(ClientError, match=r"group\.protocol=classic"):
                read(lambda: ours.poll(0.2), 1)
            error = read_error(of_librdkafka)
            assert error.code() == confluent_kafka.KafkaError._FATAL and "version not supported" in error.str()
            late.subscribe([TOPIC])
            assert read_error(late).str() == error.str()
            assert java.stderr is not None
            said = next(line for line in java.stderr if "UnsupportedVersionException" in line)
            assert "group.protocol=classic" in said
        finally:
            ours.close()
            of_librdkafka.close()
            late.close()
            java.communicate("", timeout=PATIENCE_S)
        lines = "".join(node.output for node in cluster.nodes.values() if node.kind == "kbroker")
        write(at)
        for group in ("java", "librdkafka", "ours"):
            assert lines.count(f"'{group}'") == 1
            with consumer(at, group) as classic:
                again = read(lambda classic=classic: classic.poll(0.2), COUNT)  # type: ignore[misc]
                assert sorted(int(each.value) for each in again) == list(range(COUNT))


def write(at: str) -> None:
    with Producer(bootstrap_servers=at) as producer:
        for number in range(COUNT):
            producer.send(TOPIC, b"%d" % number, partition=number % 3)
        producer.flush(PATIENCE_S)


def consumer(at: str, group: str, **options: Any) -> Consumer:
    reader = Consumer(bootstrap_servers=at, group_id=group, auto_offset_reset="earliest", **options)
    reader.subscribe(TOPIC)
    return reader


def read(poll: Callable[[], Any], count: int) -> list[Any]:
    """Poll until `count` records have come."""
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
        found += poll()
    return found


def read_error(reader: confluent_kafka.Consumer) -> confluent_kafka.KafkaError:
    """Return the first error that comes."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for message in reader.consume(100, 0.2):
            if (error := message.error()) is not None:
                return error
    raise AssertionError("no error comes")


def committed(at: str, group: str) -> int:
    with Consumer(bootstrap_servers=at, group_id=group) as reader:
        places = reader.committed([TopicPartition(TOPIC, each) for each in range(3)])
        return sum(each.offset for each in places.values() if each is not None)


def await_that(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)
