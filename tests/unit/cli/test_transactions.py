"""`kbroker transactions` against a real broker, as a process of its own, as a person calls it.

KBROKER_TEST_AGAINST=kafka has Apache Kafka in its place: what is typed and what comes out are the same.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kit.brokers.process import BrokerProcess
from tests.kit.clients.transactional_producer import HOUR_MS, TransactionalProducer, now_ms
from tests.kit.clients.wire import WireClient
from tests.kit.kafka.process import KafkaInMemory

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SETTINGS: dict[str, object] = {"transaction.state.log.num.partitions": 3, "offsets.topic.num.partitions": 3}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    is_kafka = os.environ.get("KBROKER_TEST_AGAINST") == "kafka"
    made = KafkaInMemory(SETTINGS) if is_kafka else BrokerProcess({**SETTINGS, "broker.id": 0})
    with made as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with WireClient("127.0.0.1", broker.port) as connected:
        yield connected


@pytest.fixture
def kbroker(broker: BrokerProcess) -> Run:
    """`kbroker("list")`: runs `kbroker transactions list` against the broker, expecting the exit code `code`."""

    def run(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kbroker.cli.main", "transactions", *map(str, words), "-b", broker.address]
        done = subprocess.run(command, capture_output=True, timeout=60, text=True)
        assert done.returncode == code, done.stderr
        return done

    return run


def from_json(kbroker: Run, *words: object) -> Any:
    return json.loads(kbroker(*words, "--json").stdout)


@pytest.fixture
def producer(client: WireClient) -> TransactionalProducer:
    return TransactionalProducer(client)


def test_transactions_are_listed_by_state_and_producer(
    kbroker: Run, client: WireClient, producer: TransactionalProducer
) -> None:
    producer.add()
    other = TransactionalProducer(client)
    mine = {"transactional_id": producer.id, "coordinator": 0, "producer_id": producer.producer_id, "state": "Ongoing"}
    assert mine in from_json(kbroker, "list")
    assert from_json(kbroker, "list", "--producer-id", producer.producer_id) == [mine]
    assert from_json(kbroker, "list", "--producer-id", producer.producer_id, "--state", "Empty") == []
    found = from_json(kbroker, "list", "--state", "Empty", "--state", "Ongoing")
    assert {one["transactional_id"]: one["state"] for one in found}.items() >= {
        (producer.id, "Ongoing"),
        (other.id, "Empty"),
    }
    assert mine not in from_json(kbroker, "list", "--running-longer-than", HOUR_MS)
    first, *rows = kbroker("list").stdout.splitlines()
    assert first.split() == ["transactional", "id", "coordinator", "producer", "id", "state"]
    assert [producer.id, "0", str(producer.producer_id), "Ongoing"] in [row.split() for row in rows]


def test_a_transaction_is_described_with_its_partitions(kbroker: Run, producer: TransactionalProducer) -> None:
    assert re.fullmatch(
        rf"{producer.id}  Empty, producer {producer.producer_id} epoch 1, coordinator 0, timeout 60000 ms\n",
        kbroker("describe", producer.id).stdout,
    )
    producer.add(1)
    producer.add(0)
    (described,) = from_json(kbroker, "describe", producer.id)
    assert abs(now_ms() - described.pop("start_time_ms")) < HOUR_MS and 0 <= described.pop("duration_ms") < HOUR_MS
    assert described == {
        "transactional_id": producer.id,
        "coordinator": 0,
        "producer_id": producer.producer_id,
        "producer_epoch": 1,
        "state": "Ongoing",
        "timeout_ms": 60_000,
        "partitions": [f"{producer.topic}-0", f"{producer.topic}-1"],
    }
    text = kbroker("describe", producer.id).stdout
    assert "Ongoing" in text and ", open since 20" in text and f"\n  {producer.topic}-1\n" in text
    producer.end()
    producer.until(lambda: from_json(kbroker, "describe", producer.id)[0]["state"] == "CompleteCommit")
    assert from_json(kbroker, "describe", producer.id)[0]["duration_ms"] is None
    assert re.search(r"CompleteCommit, .*, timeout 60000 ms, began 20\S+Z\n$", kbroker("describe", producer.id).stdout)
    assert kbroker("describe", "nobody", code=1).stderr == (
        "kbroker: transactional id 'nobody': TRANSACTIONAL_ID_NOT_FOUND\n"
    )


def test_the_producers_of_a_partition_are_described(kbroker: Run, producer: TransactionalProducer) -> None:
    where = ("--topic", producer.topic, "--partition", 0)
    assert from_json(kbroker, "describe-producers", *where) == []
    producer.add()
    at_ms = now_ms()
    producer.send(at_ms=at_ms)
    producer.send(at_ms=at_ms)
    assert from_json(kbroker, "describe-producers", *where, "--broker-id", 0) == [
        {
            "producer_id": producer.producer_id,
            "producer_epoch": 1,
            "coordinator_epoch": -1,
            "last_sequence": 1,
            "last_timestamp": at_ms,
            "current_transaction_start_offset": 0,
        }
    ]
    producer.end()
    producer.until(lambda: from_json(kbroker, "describe-producers", *where)[0]["coordinator_epoch"] == 0)
    assert kbroker("describe-producers", *where).stdout.splitlines()[-1].split()[-1] == "-"
    nowhere = kbroker("describe-producers", "--topic", producer.topic, "--partition", 9, code=1)
    assert nowhere.stderr == f"kbroker: topic {producer.topic!r} has no partition 9; it has 2\n"
    nobody = kbroker("describe-producers", *where, "--broker-id", 7, code=1)
    assert nobody.stderr == "kbroker: broker 7 is not in the cluster\n"


def test_what_hangs_is_found_and_aborted(kbroker: Run, client: WireClient, producer: TransactionalProducer) -> None:
    in_topic = ("--topic", producer.topic)
    producer.add(1)
    producer.send(1, now_ms() - 2 * HOUR_MS)
    assert from_json(kbroker, "find-hanging", *in_topic) == [], "its coordinator will end it"
    offset = producer.hang(0)
    (found,) = from_json(kbroker, "find-hanging", *in_topic)
    assert found["minutes"] in (120, 121) and abs(now_ms() - found["last_timestamp"] - 2 * HOUR_MS) < HOUR_MS
    assert (found["partition"], found["start_offset"], found["producer_id"]) == (0, offset, producer.producer_id)
    assert from_json(kbroker, "find-hanging", "--partition", 0, *in_topic) == [found]
    assert from_json(kbroker, "find-hanging", "--partition", 1, *in_topic) == []
    assert found in from_json(kbroker, "find-hanging")
    assert found in from_json(kbroker, "find-hanging", "--broker-id", 0)
    assert "broker 7 is not in the cluster" in kbroker("find-hanging", "--broker-id", 7, code=1).stderr
    assert from_json(kbroker, "find-hanging", *in_topic, "--max-transaction-timeout", 180) == []
    assert producer.topic in kbroker("find-hanging", *in_topic).stdout
    stranger = TransactionalProducer(client)
    stranger.topic = producer.topic
    hanging = stranger.hang(0)
    assert len(from_json(kbroker, "find-hanging", *in_topic)) == 2

    in_partition = (*in_topic, "--partition", 0)
    missing = kbroker("abort", *in_partition, "--start-offset", 77, code=1)
    assert missing.stderr == f"kbroker: {producer.topic}-0 has no open transaction that begins at offset 77\n"
    done = kbroker("abort", *in_partition, "--start-offset", offset)
    assert done.stdout == f"aborted the transaction of producer {producer.producer_id} in {producer.topic}-0\n"
    (left,) = from_json(kbroker, "find-hanging", *in_topic)
    assert left["start_offset"] == hanging
    of_stranger = ("--producer-id", stranger.producer_id, "--producer-epoch", stranger.epoch)
    assert "which transaction" in kbroker("abort", *in_partition, *of_stranger, code=1).stderr
    kbroker("abort", *in_partition, *of_stranger, "--coordinator-epoch", -1)
    assert from_json(kbroker, "find-hanging", *in_topic) == []
    old = (*of_stranger[:2], "--producer-epoch", 0, "--coordinator-epoch", 0)
    assert "INVALID_PRODUCER_EPOCH" in kbroker("abort", *in_partition, *old, code=1).stderr


def test_a_partition_needs_its_topic(kbroker: Run) -> None:
    assert "--topic" in kbroker("find-hanging", "--partition", 0, code=1).stderr


def test_a_state_that_is_none_is_refused_with_those_that_there_are(kbroker: Run) -> None:
    said = " ".join(kbroker("list", "--state", "Done", code=2).stderr.replace("'", "").split())
    assert "invalid choice: Done (choose from Empty, Ongoing, PrepareCommit," in said
