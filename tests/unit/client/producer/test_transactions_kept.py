"""Transactions are whole, once and in order, whatever happens to connections and brokers; on Apache Kafka too."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any
from uuid import uuid4

import pytest

from kbroker.client import Consumer, ConsumerGroupMetadata, Producer
from kbroker.client.producer.errors import TransactionFailed, TransactionMustAbort
from kbroker.testing import Broker
from tests.kit.clients.transactions import SECONDS, committed, committed_offset, new_id, producer_of, send
from tests.kit.kafka.process import Kafka4InMemory, KafkaInMemory


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(faults=True, settings={"num.partitions": 3}) as started:
        yield started


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4().hex[:8]}"


def one_history(address: Any, topic: str, version: int, rounds: int, disturb: Any, **options: Any) -> list[int]:
    """Transactions one after the other, each with a number in all partitions; returns those that were committed."""
    done: list[int] = []
    numbers = count()
    name = new_id()
    producer = producer_of(address, version, name, **options)
    try:
        for number in range(rounds):
            disturb(number)
            value = next(numbers)
            try:
                producer.begin_transaction()
                send(producer, topic, *(f"{value}" for _ in range(3)), *(f"{value}+" for _ in range(3)))
                if number % 5 == 4:
                    producer.abort_transaction(SECONDS)
                    continue
                producer.commit_transaction(SECONDS)
                done.append(value)
            except TransactionMustAbort:
                producer.abort_transaction(SECONDS)
            except TransactionFailed:
                producer.close(0)
                producer = producer_of(address, version, name, **options)
    finally:
        producer.close(SECONDS)
    return done


def check(found: list[list[str]], done: list[int]) -> None:
    """Whole, once, in order."""
    wanted = [value for number in done for value in (f"{number}", f"{number}+")]
    assert found == [wanted] * 3


def test_transactions_are_whole_while_connections_are_cut(broker: Broker, topic: str, version: int) -> None:
    stopped = threading.Event()

    def cut() -> None:
        while not stopped.wait(0.03):
            broker.faults.drop_connections()

    cutting = threading.Thread(target=cut)
    cutting.start()
    try:
        done = one_history(broker, topic, version, 60, lambda number: None)
    finally:
        stopped.set()
        cutting.join()
    assert len(done) > 40
    check(committed(broker, topic), done)


def test_transactions_are_whole_while_the_broker_is_killed_and_paused(topic: str, version: int) -> None:
    with Broker(settings={"num.partitions": 3}, faults=True) as broker:
        stopped = threading.Event()

        def disturb() -> None:
            for number in count():
                if stopped.wait(0.3):
                    return
                if number % 2:
                    broker.pause()
                    stopped.wait(0.1)
                    broker.resume()
                else:
                    broker.kill()
                    broker.start()

        disturbing = threading.Thread(target=disturb)
        disturbing.start()
        try:
            done = one_history(broker, topic, version, 40, lambda number: stopped.wait(0.02))
        finally:
            stopped.set()
            disturbing.join()
        assert len(done) > 25
        check(committed(broker, topic), done)


def test_what_is_read_is_written_exactly_once_with_its_offsets(broker: Broker, topic: str, version: int) -> None:
    group, values = f"g-{topic}", [f"{number}" for number in range(90)]
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for value in values:
            producer.send_nowait(f"in-{topic}", value, partition=int(value) % 3)
    done, name, turn = 0, new_id(), 0
    while done < len(values):
        turn += 1
        with (
            Consumer(
                bootstrap_servers=broker.bootstrap_servers,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            ) as consumer,
            producer_of(broker, version, name) as producer,
        ):
            consumer.subscribe([f"in-{topic}"])
            for attempt in range(4):
                records = list(consumer.poll(5, max_records=7))
                producer.begin_transaction()
                for record in records:
                    assert record.value is not None
                    producer.send_nowait(topic, record.value, partition=record.partition)
                offsets = {(record.topic, record.partition): record.offset + 1 for record in records}
                if attempt == 3 or (turn + attempt) % 3 == 0:
                    producer.flush(SECONDS)
                    break  # the transaction stays open, the offsets are where they were: another one begins anew
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata(), SECONDS)
                broker.faults.drop_connections()
                producer.commit_transaction(SECONDS)
                done += len(records)
            producer._thread.stop()  # as one that is killed
    assert [sorted(map(int, each)) for each in committed(broker, topic)] == [list(range(p, 90, 3)) for p in range(3)]
    assert all(each == sorted(each, key=int) for each in committed(broker, topic))


@pytest.mark.slow
@pytest.mark.parametrize("kafka", [KafkaInMemory, Kafka4InMemory], ids=["3.9", "4.3"])
def test_apache_kafka(kafka: type[KafkaInMemory]) -> None:
    topic = "t"
    with kafka({"num.partitions": 3}) as broker:
        started = features_of(broker)
        version = 2 if started.get("transaction.version", 0) >= 2 else 1
        assert version == (2 if kafka is Kafka4InMemory else 1)
        done = one_history(broker, topic, version, 20, lambda number: pause(broker))
        assert len(done) == 16
        name = new_id()
        with producer_of(broker, version, name) as zombie:
            zombie.begin_transaction()
            send(zombie, topic, "zombie")
            zombie.flush(SECONDS)
            with producer_of(broker, version, name), pytest.raises(TransactionFailed):
                zombie.commit_transaction(SECONDS)
        with producer_of(broker, version) as producer:
            for number in range(1000, 1003):
                producer.begin_transaction()
                send(producer, topic, *[f"{number}"] * 3, *[f"{number}+"] * 3)
                producer.send_offsets_to_transaction({(topic, 0): number}, ConsumerGroupMetadata(f"g-{topic}"), SECONDS)
                if number == 1002:
                    producer.abort_transaction(SECONDS)
                else:
                    producer.commit_transaction(SECONDS)
                    done.append(number)
        assert committed_offset(broker, topic) == 1001
        check(committed(broker, topic), done)


def pause(broker: KafkaInMemory) -> None:
    """Hold it for a moment; what is sent meanwhile waits."""
    os.kill(broker.pid, signal.SIGSTOP)
    threading.Timer(0.05, os.kill, [broker.pid, signal.SIGCONT]).start()


def features_of(broker: KafkaInMemory) -> dict[str, int]:
    with Producer(bootstrap_servers=broker.address, transactional_id="features") as producer:
        producer.init_transactions(SECONDS)
        return producer._background.cluster.network.features
