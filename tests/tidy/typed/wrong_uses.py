"""What type checkers must refuse: every line that ends in `# wrong`, and no other."""

from __future__ import annotations

from kbroker.client import (
    AdminClient,
    AsyncAdminClient,
    AsyncProducer,
    Consumer,
    Producer,
    RebalanceListener,
    SimpleConsumer,
)
from kbroker.testing import Broker


class Listener(RebalanceListener):
    def on_revoked(self, partitions: int) -> None:  # wrong
        pass


def options() -> None:
    Producer(bootstrap_server="localhost:9092")  # wrong
    Producer(group_id="g")  # wrong
    Producer(linger_ms="soon")  # wrong
    Producer(acks="some")  # wrong
    Producer(compression_type="zip")  # wrong
    Producer(partitioner=lambda key: 0)  # wrong
    Producer(["localhost:9092"])  # wrong
    Consumer(auto_offset_reset="beginning")  # wrong
    Consumer(enable_auto_commit=1.5)  # wrong
    Consumer("topic", bootstrap_servers="localhost:9092")  # wrong
    AdminClient(acks=1)  # wrong
    SimpleConsumer(group_id="g")  # wrong


def calls(producer: Producer, consumer: Consumer, admin: AdminClient, simple: SimpleConsumer) -> None:
    producer.send(b"topic", "value")  # wrong
    producer.send("topic", "value", partition="0")  # wrong
    producer.send("topic", "value", headers={"name": 1})  # wrong
    producer.send_nowait("topic", "value").result()  # wrong
    producer.send("topic", "value", on_delivery=lambda delivery: None)  # wrong
    producer.send_many("topic", ["value"], on_delivery=Listener())  # wrong
    producer.flush("10")  # wrong
    producer.send_offsets_to_transaction({("topic", 0): 5}, "group")  # wrong
    consumer.subscribe([1])  # wrong
    consumer.assign(["topic"])  # wrong
    consumer.seek(("topic", 0), 5)  # wrong
    consumer.poll("1")  # wrong
    consumer.commit({"topic": 5})  # wrong
    consumer.poll()[0].value.decode()  # wrong
    consumer.position("topic", 0) + 1  # wrong
    simple.fetch("topic", 0)  # wrong
    admin.create_topic("topic", partitions="3")  # wrong
    admin.alter_replica_log_dirs({("topic", 0): "/data"})  # wrong
    admin.delete_topics({"a": 1}, 2)  # wrong
    admin.remove_members("g", ["member"])  # wrong
    admin.alter_broker_config(None, {"log.retention.ms": 1000})  # wrong
    print(admin.list_topics().offset)  # wrong


async def awaits(admin: AdminClient, awaiting: AsyncAdminClient, producer: AsyncProducer) -> None:
    await admin.list_topics()  # wrong
    awaiting.list_topics()[0].upper()  # wrong
    producer.send("topic", "value").result()  # wrong
    await producer.send_nowait("topic", "value")  # wrong
    await producer.commit_transaction("soon")  # wrong
    AsyncProducer(group_id="g")  # wrong


def testing() -> None:
    Broker(in_process=True)  # wrong
    Broker(log_level="loud")  # wrong
    with Broker(faults=True) as broker:
        broker.faults.error("Produce", 5.5)  # wrong
        broker.create_topic("a", partitions="3")  # wrong
        broker.faults.drop("Fetch").struck()  # wrong
