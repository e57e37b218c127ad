"""Somebody sets the clock of a broker's machine, an hour or a day, back and forth, under load: nobody notices."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import confluent_kafka
import pytest

from kbroker.client import AdminClient, Consumer, Producer
from kbroker.testing import Broker
from tests.kit.crash.set_clock import SetClock

SECONDS = 20.0
TOPIC = "timed"
HOUR = 3600
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    "log.retention.check.interval.ms": 100,
    "log.flush.interval.ms": 100,
    "log.flush.scheduler.interval.ms": 50,
    "log.flush.offset.checkpoint.interval.ms": 100,
}


@pytest.fixture
def clock(tmp_path: Path) -> SetClock:
    return SetClock(tmp_path)


@pytest.fixture
def broker(clock: SetClock, tmp_path: Path) -> Iterator[Broker]:
    with clock.preloaded(), Broker(settings=SETTINGS, directory=tmp_path / "data") as broker:
        broker.create_topic(TOPIC, 1)
        yield broker


def wait_for(holds: Callable[[], bool], what: str) -> None:
    pause = threading.Event()
    until_s = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < until_s, what
        pause.wait(0.02)


def open_transaction(broker: Broker) -> tuple[str, confluent_kafka.Producer]:
    """Begin a transaction that its producer leaves open for longer than its timeout. Return its id and the producer."""
    name = f"left-{uuid4().hex[:6]}"
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, "transaction.timeout.ms": 1000}
    )
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(TOPIC, b"never seen")
    assert producer.flush(SECONDS) == 0
    return name, producer


@pytest.mark.timeout(180)
def test_produce_consume_groups_and_transactions_go_on_whatever_the_clock_is_set_to(
    clock: SetClock, broker: Broker, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    sent: list[bytes] = []
    found: list[bytes | None] = []
    checkpoint = tmp_path / "data" / "recovery-point-offset-checkpoint"
    options = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", "group_id": "g"}
    with (
        Producer(bootstrap_servers=servers) as plain,
        Producer(bootstrap_servers=servers, transactional_id="goes-on") as transactional,
        Consumer(bootstrap_servers=servers, **options) as consumer,  # type: ignore[arg-type]
        AdminClient(bootstrap_servers=servers) as admin,
    ):
        transactional.init_transactions()
        consumer.subscribe([TOPIC])
        for set_by in (0, HOUR, -HOUR, 24 * HOUR, -24 * HOUR, 0):
            name, left = open_transaction(broker)
            clock.set_by(set_by)
            for number in range(20):
                sent.append(b"%d %d" % (set_by, number))
                if number % 5:
                    plain.send(TOPIC, sent[-1]).result(SECONDS)
                    continue
                transactional.begin_transaction()
                transactional.send(TOPIC, sent[-1])
                transactional.commit_transaction()
            # An open transaction keeps committed records from being read until it times out, by whichever clock.
            until_s = time.monotonic() + SECONDS
            while len(found) < len(sent) and time.monotonic() < until_s:
                found += [record.value for record in consumer.poll(0.2)]
            assert found == sent, f"set by {set_by} s"
            assert admin.describe_transaction(name).state == "CompleteAbort"
            consumer.commit()
            (end,) = consumer.end_offsets([(TOPIC, 0)]).values()
            wait_for(lambda end=end: f"{TOPIC} 0 {end}\n" in checkpoint.read_text(), "flush.ms flushes nothing")  # type: ignore[misc]
            del left
    assert "ERROR" not in broker.log
