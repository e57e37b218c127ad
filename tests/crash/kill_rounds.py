"""kill -9 under load, over and over on the same data directory (`make crash`; ten rounds in `make test`).

Real producers, plain and idempotent, go on producing while the broker is killed and started again. At the end every
record that was acknowledged is where its acknowledgement said, whether it had been flushed or not; offsets have no
hole; the idempotent producers' records are there exactly once and in order; no producer id was given out twice.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from tests.kit.broker import BrokerProcess
from tests.kit.wire import WireClient

TOPIC = "crash"
PARTITIONS = 3
PRODUCER_ID_BLOCK = 1000
"""So many ids a broker takes from its store at once: asking for so many makes it take another block."""
SETTINGS: tuple[dict[str, object], ...] = (
    {"acks": 1, "linger.ms": 1},
    {"acks": -1, "enable.idempotence": True, "linger.ms": 2},
    {"acks": -1, "enable.idempotence": True, "compression.type": "zstd", "linger.ms": 20},
)


@dataclass
class Writer:
    """One producer in a thread of its own, and what it was told."""

    name: str
    settings: dict[str, object]
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    failed: int = 0

    def run(self, address: str, stop: threading.Event) -> None:
        producer = Producer(
            {
                "bootstrap.servers": address,
                "message.timeout.ms": 120000,
                "reconnect.backoff.max.ms": 200,
                "socket.timeout.ms": 10000,
                **self.settings,
            }
        )
        number = 0
        while not stop.is_set():
            for _ in range(50):
                producer.produce(
                    TOPIC,
                    value=b"%s:%d:" % (self.name.encode(), number) + b"x" * (number % 500),
                    on_delivery=self.delivered,
                )
                number += 1
            producer.poll(0.01)
            while len(producer) > 5000 and not stop.is_set():
                producer.poll(0.05)
        producer.flush(60)

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
            return
        self.acknowledged[message.partition(), message.offset()] = message.value()


def read_back(address: str) -> dict[tuple[int, int], bytes]:
    """Every record of the topic by (partition, offset); AssertionError when offsets have a hole."""
    reader = Consumer(
        {"bootstrap.servers": address, "group.id": "check", "enable.auto.commit": False, "fetch.queue.backoff.ms": 5}
    )
    found: dict[tuple[int, int], bytes] = {}
    for partition in range(PARTITIONS):
        low, high = reader.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=30)
        reader.assign([TopicPartition(TOPIC, partition, low)])
        expected = low
        while expected < high:
            for message in reader.consume(min(10000, high - expected), 10):
                if message.error():
                    raise KafkaException(message.error())
                assert message.offset() == expected, (
                    f"partition {partition}: offset {message.offset()} where {expected} should be"
                )
                found[partition, message.offset()] = message.value()
                expected += 1
    reader.close()
    return found


def check(writers: list[Writer], found: dict[tuple[int, int], bytes]) -> None:
    for writer in writers:
        for place, value in writer.acknowledged.items():
            assert found.get(place) == value, f"{writer.name}: acknowledged at {place}, found {found.get(place)!r:.60}"
        if writer.settings.get("enable.idempotence"):
            for partition in range(PARTITIONS):
                mine = [
                    v for (p, _), v in found.items() if p == partition and v.startswith(writer.name.encode() + b":")
                ]
                numbers = [int(value.split(b":")[1]) for value in mine]
                assert numbers == sorted(set(numbers)), (
                    f"{writer.name}: partition {partition} repeats or reorders records"
                )


def new_producer_ids(port: int, count: int) -> list[int]:
    """What InitProducerId answers `count` producers."""
    with WireClient("127.0.0.1", port) as client:
        answers = [
            client.call(ApiKey.INIT_PRODUCER_ID, 4, M.InitProducerIdRequest(transactional_id=None))
            for _ in range(count)
        ]
    assert all(answer.error_code == 0 for answer in answers), f"InitProducerId: error {answers[-1].error_code}"
    return [answer.producer_id for answer in answers]


def check_producer_ids(given: list[int]) -> None:
    again = sorted(producer_id for producer_id, count in Counter(given).items() if count > 1)
    assert not again, f"{len(again)} producer ids were given out again after a kill: {again[:10]}"


def run(rounds: int, seed: int, overrides: dict[str, object] | None = None) -> int:
    """Returns how many records were acknowledged."""
    chance = random.Random(seed)
    with BrokerProcess(overrides) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        writers = [Writer(f"w{number}", settings) for number, settings in enumerate(SETTINGS)]
        stop = threading.Event()
        threads = [threading.Thread(target=writer.run, args=(broker.address, stop), daemon=True) for writer in writers]
        for thread in threads:
            thread.start()
        producer_ids = new_producer_ids(broker.port, 3)
        for _ in range(rounds):
            time.sleep(chance.uniform(0.1, 1.0))
            producer_ids += new_producer_ids(broker.port, chance.choice((1, 2, PRODUCER_ID_BLOCK)))
            broker.kill()
            broker.start()
            producer_ids += new_producer_ids(broker.port, 2)
        check_producer_ids(producer_ids)
        time.sleep(0.5)
        stop.set()
        for thread in threads:
            thread.join(90)
            assert not thread.is_alive(), "a producer hangs"
        assert all(writer.acknowledged for writer in writers), "a producer never got through"
        check(writers, read_back(broker.address))
        return sum(len(writer.acknowledged) for writer in writers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    arguments = parser.parse_args()
    print(f"{arguments.rounds} rounds, seed {arguments.seed}", flush=True)
    print(f"{run(arguments.rounds, arguments.seed)} acknowledged records, all there")
