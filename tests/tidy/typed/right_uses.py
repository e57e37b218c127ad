"""The whole public API, used as a program would. Only type checkers read it; `assert_type` says what they must find."""

from __future__ import annotations

import concurrent.futures
import re
import ssl
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, assert_type

from kbroker.client import (
    EARLIEST,
    LATEST,
    NEWEST,
    AdminClient,
    Assignor,
    AsyncAdminClient,
    AsyncConsumer,
    AsyncProducer,
    AuditHandler,
    AuthenticationFailed,
    BrokerError,
    BrokerTooOld,
    ClientClosed,
    ClientError,
    CommitFailed,
    ConnectionFailed,
    ConnectorOptions,
    Consumer,
    ConsumerConnector,
    ConsumerGroupMetadata,
    ConsumerOptions,
    ConsumerRebalanceFailed,
    ConsumerRebalanceListener,
    ConsumerRecord,
    ConsumerTimeout,
    Deliveries,
    Delivery,
    ErrorCode,
    FetchFrom,
    ForkedClient,
    KbrokerError,
    LeavingBatch,
    LogTruncated,
    MalformedAnswer,
    Member,
    MessageStream,
    NetworkOptions,
    NewTopic,
    NoSuchPartition,
    OffsetAndMetadata,
    PartialFailure,
    PreparedTransaction,
    Producer,
    ProducerFenced,
    ProducerHandler,
    ProducerOptions,
    QueuedRecord,
    QueueFull,
    RebalanceListener,
    Records,
    RecordTooLarge,
    SimpleConsumer,
    SimpleConsumerOptions,
    SubscriptionPattern,
    TimedOut,
    TopicNotKnown,
    TopicPartition,
    TopicPartitionReplica,
    Topics,
    TransactionAborted,
    TransactionFailed,
    TransactionMustAbort,
    UnreadableRecords,
    UsageError,
)
from kbroker.testing import Broker, BrokerFailed, Cluster, Fault, Faults, ZooKeeper

A0 = TopicPartition("a", 0)


def make_clients(
    network: NetworkOptions,
    sending: ProducerOptions,
    reading: ConsumerOptions,
    fetching: SimpleConsumerOptions,
    connecting: ConnectorOptions,
) -> None:
    Producer(bootstrap_servers="localhost:9092")
    Producer({"bootstrap.servers": "localhost:9092", "linger.ms": "5"}, acks="all", enable_idempotence=True)
    Producer(bootstrap_servers=["a:9092", "b:9092"], acks=1, compression_type="zstd", partitioner="random")
    Producer(partitioner=lambda topic, key, count: hash(key) % count, value_encoder=str.encode)
    Producer(**sending)
    Consumer(group_id="g", auto_offset_reset="earliest", partition_assignment_strategy=["range", OneForAll()])
    Consumer(ssl_context=ssl.create_default_context(), ssl_ca_location=Path("ca.pem"), security_protocol="SSL")
    Consumer(**reading)
    AdminClient(**network)
    AsyncAdminClient({"client.id": "a"}, request_timeout_ms=1_000)
    SimpleConsumer(isolation_level="read_committed", sasl_mechanism="SCRAM-SHA-256")
    SimpleConsumer(**fetching)
    ConsumerConnector(**connecting)


def send(producer: Producer) -> int | None:
    producer.send_nowait("a", b"value", "key", {"name": b"value", "none": None}, 0, 1_700_000_000_000)
    delivery = assert_type(producer.send("a", "value", key=b"key", headers=[("name", "value")]), Delivery)
    delivery.add_done_callback(lambda done: print(done.topic, done.partition, done.offset, done.timestamp))
    assert_type(delivery.done(), bool)
    assert_type(delivery.exception(timeout=1.5), ClientError | None)
    many = assert_type(producer.send_many("a", [b"1", b"2"], keys=["k", None], partitions=0), Deliveries)
    assert_type(many.result(10), int)
    assert_type(len(many), int)
    many.add_done_callback(lambda done: print(assert_type(done, Deliveries).result()))
    producer.send("a", "value", on_delivery=delivered)
    producer.send("a", "value", on_delivery=delivered_or_not)
    producer.send_many("a", ["value"], on_delivery=all_delivered)
    producer.send_many("a", ["value"], on_delivery=lambda error, done: print(error or len(done)))
    producer.flush(timeout=10)
    producer.close()
    with producer as same:
        assert_type(same, Producer)
    return assert_type(delivery.result(timeout=1), Delivery).offset


def delivered(error: ClientError | None, delivery: Delivery) -> None:
    print(error.code if error else delivery.offset)


def all_delivered(error: ClientError | None, deliveries: Deliveries) -> None:
    print(error or len(deliveries))


def delivered_or_not(error: Exception | None, delivery: Delivery) -> None:
    print(error or delivery.offset)


class Handler(ProducerHandler):
    def started(self, producer: Producer) -> None:
        print(producer.options)

    def closing(self) -> None:
        print("closed")

    def before_enqueue(self, record: QueuedRecord) -> QueuedRecord | None:
        return record if record.value else None

    def after_enqueue(self, record: QueuedRecord, added: bool) -> None:
        print(record.topic, added)

    def after_dequeue(self, batches: Sequence[LeavingBatch]) -> None:
        self.before_sending(batches)

    def before_sending(self, batches: Sequence[LeavingBatch]) -> None:
        assert_type(batches[0].record_count, int)


def handle() -> None:
    Producer(handlers=Handler(), value_encoder="json", producer_type="sync", batch_num_messages=100)
    Producer(handlers=[Handler(), AuditHandler()], compression_type="gzip")


async def send_and_await(producer: Producer) -> None:
    assert_type(await producer.send("a", "value"), Delivery)
    assert_type(await producer.send_many("a", [b"1", b"2"]), int)


def transact(producer: Producer, consumer: Consumer) -> None:
    producer.init_transactions(timeout=30)
    with producer.transaction() as same:
        assert_type(same, Producer)
        records = consumer.poll()
        producer.send_many("b", [record.value for record in records])
        producer.send_offsets_to_transaction(records.next_offsets(), consumer.group_metadata(), timeout=10)
    producer.begin_transaction()
    producer.send_offsets_to_transaction({("a", 0): 5}, ConsumerGroupMetadata("g"))
    producer.commit_transaction(timeout=10)
    producer.abort_transaction()
    producer.begin_transaction()
    prepared: PreparedTransaction = producer.prepare_transaction(timeout=5)
    print(prepared.transactional_id, prepared.producer_id, prepared.epoch, prepared.version)


async def send_async(producer: AsyncProducer) -> None:
    async with producer as same:
        assert_type(await same.send_and_wait("a", "value", key="key"), Delivery)
        delivery = assert_type(await same.send("a", "value", headers={"name": b"value"}), Delivery)
        assert_type(await delivery, Delivery)
        same.send_nowait("a", b"value", partition=0)
        assert_type(await (await same.send_many("a", ["1", "2"])), int)
        await same.flush(timeout=10)
    await producer.init_transactions(timeout=30)
    async with producer.transaction() as same:
        assert_type(same, AsyncProducer)
        await producer.send_offsets_to_transaction({("a", 0): 5}, ConsumerGroupMetadata("g"), timeout=10)
    await producer.begin_transaction()
    await producer.commit_transaction(timeout=10)
    await producer.abort_transaction()
    assert_type(await producer.prepare_transaction(), PreparedTransaction)
    await producer.close(timeout=5)


class Listener(RebalanceListener):
    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        print(partitions)

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        print([partition.topic for partition in partitions])

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        self.on_revoked(partitions)


class OneForAll(Assignor):
    name = "one-for-all"
    protocols = ("cooperative", "eager")

    def user_data(self, topics: frozenset[str], previous: frozenset[TopicPartition], generation: int) -> bytes | None:
        return b"%d" % generation

    def as_told(self, member: Member) -> Member:
        print(member.place, member.rack, member.owned, member.generation, member.user_data, member.group_instance_id)
        return member

    def assign(self, members: Collection[Member], topics: Topics) -> Mapping[str, Collection[TopicPartition]]:
        first = min(member.member_id for member in members)
        return {first: topics.of(next(iter(members)).topics)}


def committed(offsets: Mapping[TopicPartition, OffsetAndMetadata], error: ClientError | None) -> None:
    print({partition.partition_id: found.offset for partition, found in offsets.items()}, error)


def read(consumer: Consumer) -> None:
    consumer.subscribe(["a", "b"], Listener())
    consumer.subscribe("a")
    consumer.subscribe(re.compile("a.*"))
    consumer.subscribe(SubscriptionPattern("a.*"))
    assert_type(consumer.subscription(), frozenset[str] | re.Pattern[str] | SubscriptionPattern | None)
    consumer.unsubscribe()
    consumer.assign([A0, ("a", 1)])
    consumer.assign({A0: 17})
    consumer.assign_topics("a", "b")
    assert_type(consumer.assignment(), list[TopicPartition])
    consumer.seek("a", 0, 5)
    consumer.seek_to_beginning()
    consumer.seek_to_end(("a", 0))
    consumer.pause("a", 0)
    consumer.resume("a", 0)
    assert_type(consumer.paused(), list[TopicPartition])
    assert_type(consumer.position("a", 0), int | None)
    records = assert_type(consumer.poll(0.5, max_records=100), Records)
    read_records(records)
    assert_type(consumer.poll_arrow(1.0, columns=["value"]), Any)
    assert_type(consumer.poll_numpy(1.0, dtypes={"value": "S10"}), dict[str, Any])
    for record in consumer:
        read_record(record)
        break
    assert_type(consumer.offsets_for_times({A0: 1_700_000_000_000}), dict[TopicPartition, int | None])
    assert_type(consumer.beginning_offsets([A0]), dict[TopicPartition, int])
    assert_type(consumer.end_offsets([("a", 0)]), dict[TopicPartition, int])
    for records in consumer.read_range("a", 0, 5, 9, timeout=3):
        assert_type(records, Records)
    consumer.commit()
    consumer.commit({A0: 7}, timeout=3)
    consumer.commit(records.next_offsets())
    consumer.commit({each: at for each, at in consumer.committed([A0]).items() if at is not None})
    assert_type(consumer.commit_async({A0: OffsetAndMetadata(7, "text")}, committed), concurrent.futures.Future[None])
    assert_type(consumer.committed([A0]), dict[TopicPartition, OffsetAndMetadata | None])
    assert_type(consumer.group_metadata(), ConsumerGroupMetadata)
    consumer.enforce_rebalance("why")
    with consumer as same:
        assert_type(same, Consumer)
    consumer.close(timeout=5)


def read_records(records: Records) -> None:
    assert_type(len(records), int)
    assert_type(records[0], ConsumerRecord)
    assert_type(records[1:], Records)
    assert_type(records.partitions(), list[TopicPartition])
    assert_type(records.of_partition("a", 0), Records)
    assert_type(records.next_offsets(), dict[TopicPartition, int])
    assert_type(records.arrow(), Any)
    assert_type(records.numpy(["offset"]), dict[str, Any])


def read_record(record: ConsumerRecord) -> None:
    assert_type(record.topic, str)
    assert_type(record.partition, int)
    assert_type(record.offset, int)
    assert_type(record.timestamp, int)
    assert_type(record.key, bytes | None)
    assert_type(record.value, bytes | None)
    assert_type(record.headers, tuple[tuple[str, bytes | None], ...])
    assert_type(record.leader_epoch, int | None)
    print(record.timestamp_type, record.value_view)


def fetch(simple: SimpleConsumer) -> None:
    assert_type(simple.fetch("a", 0, 17, 1 << 20, min_bytes=1, max_wait_ms=100), Records)
    assert_type(simple.multifetch([FetchFrom("a", 0, 17), ("a", 1, 0), ("a", 2, 0, 100)]), list[Records])
    assert_type(simple.get_offsets_before("a", 0, LATEST, 2), list[int])
    simple.commit_offsets("g", {("a", 0): simple.get_offsets_before("a", 0, EARLIEST)[0]})
    simple.commit_offsets("g", {A0: 1})
    assert_type(simple.fetch_offsets("g", [A0, ("a", 1)]), dict[TopicPartition, int])


class Releases(ConsumerRebalanceListener):
    def before_releasing_partitions(self, partitions: Mapping[str, set[int]]) -> None:
        print(partitions["a"])


def stream(connector: ConsumerConnector) -> None:
    connector.set_consumer_rebalance_listener(Releases())
    streams = assert_type(connector.create_message_streams({"a": 2}), dict[str, list[MessageStream]])
    try:
        for record in streams["a"][0]:
            read_record(record)
    except (ConsumerTimeout, ConsumerRebalanceFailed) as error:
        explain(error)
    assert_type(connector.create_message_streams_by_filter(white_list="a.*", count=2), list[MessageStream])
    connector.commit_offsets()
    assert_type(connector.assignment(), list[TopicPartition])
    connector.shutdown()


def administer(admin: AdminClient) -> None:
    admin.create_topic("a", partitions=3, configs={"retention.ms": "1000"})
    admin.create_topics([NewTopic("b", 3, configs={"retention.ms": 1000}), NewTopic("c", assignments=[[1], [2]])])
    admin.create_partitions("a", 6)
    assert_type(admin.list_topics(), list[str])
    for name, topic in admin.describe_topics(["a"]).items():
        print(name, [partition.leader for partition in topic.partitions])
    admin.alter_topic_config("a", {"retention.ms": None}, append={"cleanup.policy": "compact"})
    print(admin.describe_topic_config("a")["retention.ms"].value)
    print([broker.port for broker in admin.describe_cluster().brokers])
    print([group.state for group in admin.list_groups()], admin.describe_group("g").members)
    print(admin.committed("g")[A0].offset, admin.list_offsets([A0], EARLIEST)[A0].offset)
    admin.alter_offsets("g", {A0: 1})
    admin.alter_offsets("g", admin.committed("h", [A0, ("a", 1)], require_stable=True))
    for topic_partition, found in admin.list_offsets([("a", 0)], NEWEST, read_committed=True).items():
        print(topic_partition, found.offset, found.timestamp)
    print(admin.describe_features().finalized, admin.list_transactions(["Ongoing"], older_than_ms=60_000))
    assert_type(admin.delete_records({A0: 10}), dict[TopicPartition, int])
    admin.alter_replica_log_dirs({("a", 0, 1): "/data/1", ("a", 1, 1): "/data/2"})
    admin.alter_replica_log_dirs({TopicPartitionReplica("a", 0, 1): "/data/1"})
    print(admin.describe_replica_log_dirs([("a", 0, 1)])[TopicPartitionReplica("a", 0, 1)].future_path)
    print(admin.list_log_end_offsets([("a", 0, 1)])[TopicPartitionReplica("a", 0, 1)] + 1)
    admin.check_connection()
    administer_more(admin)
    admin.delete_group("g")
    admin.delete_topics(["a"])
    admin.close(timeout=5)


def administer_more(admin: AdminClient) -> None:
    admin.alter_broker_config(None, {"log.retention.ms": "1000"}, validate_only=True)
    admin.alter_group_config("g", {"consumer.session.timeout.ms": None})
    print(admin.describe_broker_config(1)["log.dirs"].is_sensitive, admin.describe_group_config("g").keys())
    print(admin.describe_topic_configs(["a"])["a"]["retention.ms"].value)
    print(admin.describe_topic_configs(["a"], only=["retention.ms"])["a"]["retention.ms"].value)
    for node_id, directories in admin.describe_log_dirs([1]).items():
        print(node_id, [(each.path, each.replicas[A0].size) for each in directories if each.error is None])
    print({group_id: group.state for group_id, group in admin.describe_groups(["g"]).items()})
    admin.delete_offsets("g", [A0, ("a", 1)])
    admin.remove_members("g", member_ids=["m"], instance_ids=["i"])
    admin.delete_groups(["g", "h"])
    print([each.producer_id for each in admin.describe_producers([A0])[A0]])
    print(admin.describe_transaction("t").state, admin.describe_transactions(["t"])["t"].producer_epoch)
    admin.fence_producers(["t"])
    assert_type(admin.elect_leaders([A0, ("a", 1)], unclean=True), dict[TopicPartition, bool])
    admin.alter_partition_reassignments({("a", 0): [1, 2], ("a", 1): None})
    admin.alter_partition_reassignments({A0: [1, 2]})
    print(admin.list_partition_reassignments()[A0].adding, admin.list_partition_reassignments([A0]))
    print(admin.fetch_replica(A0, 1, 0, max_bytes=1000).high_watermark)
    admin.end_transactions([PreparedTransaction("t", 1, 0, 2)], commit=True)


async def administer_and_await(admin: AsyncAdminClient) -> None:
    async with admin as same:
        assert_type(await same.list_topics(internal=True), list[str])
        assert_type(await same.delete_records({A0: -1}), dict[TopicPartition, int])
    await admin.close()


async def produce_and_await(producer: AsyncProducer) -> None:
    async with AsyncProducer({"client.id": "a"}, linger_ms=5) as same:
        assert_type(same, AsyncProducer)
    delivery = await producer.send("a", b"value", "key", {"h": b"v"}, 0, 1)
    assert_type(delivery, Delivery)
    assert_type(await delivery, Delivery)
    assert_type(await producer.send_and_wait("a", b"value"), Delivery)
    deliveries = await producer.send_many("a", [b"1", b"2"], partitions=0)
    assert_type(await deliveries, int)
    producer.send_nowait("a", b"value", headers=[("h", None)])
    await producer.await_topic("a")
    await producer.flush(1.0)
    await producer.close(timeout=1)


async def consume_and_await(consumer: AsyncConsumer) -> None:
    async with AsyncConsumer(bootstrap_servers="a:1", group_id="g") as same:
        assert_type(same, AsyncConsumer)
    await consumer.assign({A0: 5})
    await consumer.assign_topics("a")
    await consumer.subscribe(re.compile("a.*"), RebalanceListener())
    consumer.seek("a", 0, 5)
    await consumer.seek_to_end(A0)
    assert_type(consumer.position("a", 0), int | None)
    assert_type(await consumer.poll(0.5, 10), Records)
    await consumer.poll_arrow()
    assert_type(await consumer.poll_numpy(columns=["value"]), dict[str, Any])
    async for record in consumer:
        assert_type(record, ConsumerRecord)
    await consumer.commit({A0: 5}, timeout=1.0)
    assert_type(await consumer.committed([A0]), dict[TopicPartition, OffsetAndMetadata | None])
    assert_type(await consumer.end_offsets([A0]), dict[TopicPartition, int])
    await consumer.unsubscribe()
    await consumer.close()


def explain(error: ClientError) -> str:
    assert_type(error.code, ErrorCode)
    assert_type(error.retriable, bool)
    match error:
        case TimedOut() | ConnectionFailed() | MalformedAnswer() | AuthenticationFailed():
            return "the network"
        case TransactionMustAbort() | TransactionAborted() | ProducerFenced() | TransactionFailed():
            return "the transaction"
        case LogTruncated():
            return f"{error.partition.topic} from {error.divergent_offset or error.offset} on"
        case PartialFailure():
            return ", ".join(str(each) for each in error.errors.values())
        case CommitFailed() | BrokerTooOld() | BrokerError():
            return f"{error.code.name}: {error.hint}"
        case (
            ClientClosed()
            | ForkedClient()
            | UsageError()
            | QueueFull()
            | RecordTooLarge()
            | NoSuchPartition()
            | TopicNotKnown()
        ):
            return "the program"
        case UnreadableRecords():
            return f"{error.topic}-{error.partition} at {error.offset}"
        case _:
            return str(error)


def explain_any(error: KbrokerError) -> str:
    return assert_type(error.code, ErrorCode).name


def use_a_broker() -> None:
    with Broker(settings={"num.partitions": 3}) as broker, Producer(bootstrap_servers=broker.bootstrap_servers) as p:
        assert_type(broker, Broker)
        assert_type(broker.bootstrap_servers, str)
        assert send(p) == 0
    broker = Broker(
        inprocess=True, faults=True, directory=Path("data"), host="::1", log_level="debug", start_timeout_s=5
    )
    try:
        broker.start()
        broker.create_topic("a", partitions=3, retention_ms=1000)
        broker.kill()
        broker.start()
        broker.restart(kill=True)
        broker.pause()
        broker.resume()
        with broker.paused():
            print(assert_type(broker.pid, int | None), broker.host, assert_type(broker.port, int), broker.log)
        broker.stop()
    except BrokerFailed as error:
        print(error)
    broker.close()


def lose_a_leader(kbroker_cluster: Cluster) -> None:
    kbroker_cluster.create_topic("views", partitions=6, retention_ms=1000)
    kbroker_cluster.kill(kbroker_cluster.leader("views", 0))
    with kbroker_cluster.isolated(1, clients_too=True):
        kbroker_cluster.await_in_sync("views")
    kbroker_cluster.start()
    cluster = Cluster(2, settings={"min.insync.replicas": 2}, racks=["a", "b"], zookeeper_jars="lib")
    with cluster, cluster.paused(cluster.controller()):
        print(cluster.brokers[1].log, cluster.zookeeper.connect, cluster.bootstrap_servers)


def order(faults: Faults) -> None:
    lost = assert_type(faults.drop("Produce", handled=True), Fault)
    faults.error("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", times=3)
    faults.error("Metadata", ErrorCode.LEADER_NOT_AVAILABLE, times=None)
    faults.delay("Fetch", 0.5)
    assert_type(faults.drop_connections(), int)
    faults.drop_new_connections(times=2)
    faults.refuse_connections()
    faults.accept_connections()
    faults.clear()
    assert assert_type(lost.struck, int) == assert_type(faults.seen("Produce"), int)


def test_with_fixtures(
    kbroker_broker: Broker,
    kbroker_topic: str,
    kbroker_producer: Producer,
    kbroker_consumer: Consumer,
    kbroker_zookeeper: ZooKeeper,
) -> None:
    order(kbroker_broker.faults)
    kbroker_producer.send(kbroker_topic, kbroker_zookeeper.connect)
    read(kbroker_consumer)
    kbroker_zookeeper.stop()
    kbroker_zookeeper.kill()
    kbroker_zookeeper.start()
    print(assert_type(kbroker_zookeeper.port, int), assert_type(kbroker_zookeeper.log, str))
    kbroker_zookeeper.close()
