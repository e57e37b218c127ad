"""The producer against an obvious model of a broker that refuses, forgets and drops, and against kbroker."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from kbroker.client import AdminClient, Deliveries, Delivery, Producer
from kbroker.client.errors import BrokerError, ClientClosed, TimedOut
from kbroker.client.producer.errors import NoSuchPartition, QueueFull, RecordTooLarge
from kbroker.errors import ErrorCode
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.records import read_records
from tests.kit.brokers.produce import ProduceBroker
from tests.kit.brokers.whole import WholeBroker
from tests.kit.kafka.process import Kafka4InMemory, KafkaInMemory

SECONDS = 30.0
HARMLESS = ("refuse", "refuse and drop", "append and refuse", "append and drop", "drop")


def producer_of(broker: ProduceBroker | WholeBroker, **options: Any) -> Producer:
    quick = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 5}
    return Producer(bootstrap_servers=f"127.0.0.1:{broker.port}", **(quick | options))


def send_all(producer: Producer, seed: int, threads: int = 2, count: int = 400) -> list[tuple[bytes, Delivery]]:
    """Every thread sends its numbers in order, to the partitions in turn, one by one and in columns."""
    sent: list[tuple[bytes, Delivery]] = []

    def run(number: int) -> None:
        chosen = random.Random(f"{seed} {number}")
        i = 0
        while i < count:
            partition = chosen.randrange(3)
            if chosen.random() < 0.1:
                values = [b"%d %d %d" % (partition, number, j) for j in range(i, min(count, i + 20))]
                producer.send_many("t", values, partitions=partition)
                i += len(values)
                continue
            value = b"%d %d %d" % (partition, number, i)
            sent.append((value, producer.send("t", value, partition=partition)))
            i += 1
            if chosen.random() < 0.02:
                producer.flush(SECONDS)

    running = [threading.Thread(target=run, args=[number]) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sent


def check(broker: ProduceBroker, sent: list[tuple[bytes, Delivery]], *, threads: int, count: int) -> None:
    """Everything is there once, in the order of its thread, where its Delivery says."""
    values = [value for log in broker.logs.values() for value in log]
    assert len(values) == len(set(values)) == threads * count
    for (_, partition), log in broker.logs.items():
        for number in range(threads):
            mine = [v for v in log if v is not None and v.startswith(b"%d %d " % (partition, number))]
            assert mine == sorted(mine, key=lambda value: int(value.split()[2]))
    for value, delivery in sent:
        assert delivery.exception(0) is None
        if delivery.offset is not None:
            assert broker.logs["t", delivery.partition][delivery.offset] == value


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_everything_is_there_once_and_in_order(seed: int) -> None:
    chosen = random.Random(seed)
    batch_size = chosen.choice([100, 500, 1 << 20])
    with (
        ProduceBroker(seed=seed, faults=HARMLESS, probability=chosen.choice([0.03, 0.3])) as broker,
        producer_of(broker, batch_size=batch_size, linger_ms=chosen.choice([0, 0, 2])) as producer,
    ):
        sent = send_all(producer, seed)
        producer.flush(SECONDS)
        check(broker, sent, threads=2, count=400)
        assert broker.met or broker.batches < 200
        assert broker.epochs_given == 1
        assert producer.accumulator.bytes_used == producer.accumulator.record_count == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_broker_that_forgets_loses_nothing_and_no_order(seed: int) -> None:
    with (
        ProduceBroker(seed=seed, faults=("lose state", "refuse"), probability=0.2) as broker,
        producer_of(broker, batch_size=300) as producer,
    ):
        sent = send_all(producer, seed)
        producer.flush(SECONDS)
        check(broker, sent, threads=2, count=400)
        assert broker.epochs_given > 1


@pytest.mark.parametrize("version", [3, 7, 9, 12])
def test_every_version_of_produce(version: int) -> None:
    with ProduceBroker(versions=(0, version)) as broker, producer_of(broker) as producer:
        sent = send_all(producer, 1)
        producer.flush(SECONDS)
        check(broker, sent, threads=2, count=400)


def test_a_broker_without_a_version_that_we_write() -> None:
    with ProduceBroker(versions=(0, 2)) as broker, producer_of(broker) as producer:
        error = producer.send("t", b"v").exception(SECONDS)
        assert isinstance(error, BrokerError)
        assert error.code == ErrorCode.UNSUPPORTED_VERSION
        assert "no version of Produce that it takes" in str(error)


@pytest.mark.parametrize("acks", [0, 1])
def test_fewer_acks(acks: int) -> None:
    with ProduceBroker() as broker, producer_of(broker, acks=acks) as producer:
        first = producer.send("t", b"first", partition=0).result(SECONDS)
        assert first.offset == (None if acks == 0 else 0)
        producer.send_many("t", [b"%d" % i for i in range(500)], partitions=0)
        producer.flush(SECONDS)
        producer.close()
        broker.wait_until_read(("t", 0), 501)
        assert broker.logs["t", 0] == [b"first", *(b"%d" % i for i in range(500))]
        assert broker.epochs_given == 0


def test_without_idempotence_one_request_under_way_keeps_the_order() -> None:
    with (
        ProduceBroker(seed=1, faults=("refuse",), probability=0.3) as broker,
        producer_of(
            broker, enable_idempotence=False, max_in_flight_requests_per_connection=1, batch_size=300
        ) as producer,
    ):
        sent = send_all(producer, 1)
        producer.flush(SECONDS)
        check(broker, sent, threads=2, count=400)


def test_what_cannot_be_delivered_fails_with_the_brokers_reason() -> None:
    with ProduceBroker() as broker, producer_of(broker) as producer:
        producer.send("t", b"before", partition=0).result(SECONDS)
        broker.fatal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        failed = [producer.send("t", b"%d" % i, partition=0) for i in range(3)]
        told: list[BaseException | None] = []
        done = threading.Event()
        failed[2].add_done_callback(lambda delivery: (told.append(delivery.exception()), done.set()))
        for delivery in failed:
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED") as raised:
                delivery.result(SECONDS)
            assert raised.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert done.wait(SECONDS)
        assert told == [failed[2].exception()]
        broker.fatal = None
        assert producer.send("t", b"after", partition=0).result(SECONDS).offset == 1
        assert broker.logs["t", 0] == [b"before", b"after"]


def test_a_batch_that_is_too_large_for_the_broker_is_split() -> None:
    with ProduceBroker(1, largest_batch=500) as broker, producer_of(broker, linger_ms=50) as producer:
        sent = [
            producer.send("t", b"%d" % i, b"k" * (i % 50), {"h": b"%d" % i}, timestamp=1000 - i) for i in range(300)
        ]
        called: list[Delivery] = []
        sent[77].add_done_callback(called.append)
        many = producer.send_many("t", [b"m"] * 100)
        large = producer.send("t", b"x" * 600)
        last = producer.send("t", b"last")
        producer.flush(SECONDS)
        assert [delivery.result(0).offset for delivery in sent] == list(range(300))
        assert many.result(0) == 100
        assert isinstance(large.exception(0), BrokerError)
        assert large.exception(0).code == ErrorCode.MESSAGE_TOO_LARGE  # type: ignore[union-attr]
        assert last.result(0).offset == 400
        assert broker.logs["t", 0] == [*(b"%d" % i for i in range(300)), *[b"m"] * 100, b"last"]
        assert producer.accumulator.bytes_used == producer.accumulator.record_count == 0
        producer.close()
        assert called == [sent[77]]


def test_a_column_of_which_one_record_is_too_large_for_the_broker_says_so() -> None:
    with ProduceBroker(1, largest_batch=500) as broker, producer_of(broker, linger_ms=50) as producer:
        many = producer.send_many("t", [*[b"m"] * 60, b"x" * 600, *[b"n"] * 60])
        producer.flush(SECONDS)
        with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
            many.result(0)
        assert broker.logs["t", 0] == [*[b"m"] * 60, *[b"n"] * 60]


def test_records_that_nobody_takes_expire() -> None:
    with (
        ProduceBroker() as broker,
        producer_of(broker, delivery_timeout_ms=200, request_timeout_ms=100) as producer,
    ):
        producer.send("t", b"before", partition=0).result(SECONDS)
        broker.silent = True
        lost = [producer.send("t", b"lost", partition=partition) for partition in (0, 0, 1)]
        for delivery in lost:
            assert isinstance(delivery.exception(SECONDS), TimedOut)
        broker.silent = False
        # The broker that was asked knows its sequences no longer: they begin anew.
        assert producer.send("t", b"after", partition=0).result(SECONDS).offset == 1
        assert broker.logs["t", 0] == [b"before", b"after"]


def test_a_partition_without_leader_is_waited_for() -> None:
    with ProduceBroker() as broker, producer_of(broker) as producer:
        broker.leader = -1
        sent = [producer.send("t", b"%d" % i, partition=0) for i in range(3)]
        with pytest.raises(TimedOut, match=r"no answer within 0\.05 s; the record may still be delivered") as raised:
            sent[0].result(0.05)
        assert isinstance(raised.value, TimeoutError) and raised.value.retriable
        with pytest.raises(TimedOut):
            producer.send_many("t", [b"3"], partitions=0).result(0.05)
        broker.leader = 1
        assert [delivery.result(SECONDS).offset for delivery in sent] == [0, 1, 2]


def test_memory_is_bounded_while_a_broker_is_silent() -> None:
    with ProduceBroker() as broker, producer_of(broker, buffer_memory=100_000, queue_enqueue_timeout_ms=20) as producer:
        producer.send("t", b"before").result(SECONDS)
        broker.silent = True
        with pytest.raises(QueueFull) as raised:
            for _ in range(1000):
                producer.send_nowait("t", b"x" * 1000)
        assert raised.value.retriable
        assert 90_000 < producer.accumulator.bytes_used <= 100_000
        with pytest.raises(TimedOut, match="records are not delivered"):
            producer.flush(0.05)
        producer.close(timeout=0)


def test_closing_fails_what_is_left_and_nothing_can_be_sent() -> None:
    with ProduceBroker() as broker:
        producer = producer_of(broker)
        producer.send("t", b"before").result(SECONDS)
        broker.silent = True
        left = producer.send("t", b"left")
        producer.close(timeout=0.05)
        assert isinstance(left.exception(0), ClientClosed)
        with pytest.raises(ClientClosed):
            producer.send("t", b"after")
        with pytest.raises(ClientClosed):
            producer.flush()
        producer.close()


def test_a_record_that_would_never_have_room_is_refused_at_the_call() -> None:
    with ProduceBroker() as broker, producer_of(broker, buffer_memory=2000) as producer:
        with pytest.raises(RecordTooLarge, match=r"2000 bytes .* buffer\.memory"):
            producer.send("t", b"x" * 2000)
        producer.send("t", b"x" * 1000).result(SECONDS)


def test_what_is_wrong_is_refused_at_the_call() -> None:
    with ProduceBroker() as broker, producer_of(broker, max_request_size=1000) as producer:
        with pytest.raises(RecordTooLarge, match=r"max\.request\.size"):
            producer.send("t", b"x" * 1000)
        with pytest.raises(NoSuchPartition, match="partitions 0 to 2, not 3"):
            producer.send("t", b"x", partition=3)
        with pytest.raises(NoSuchPartition, match="partitions 0 to 2, not 3"):
            producer.send_many("t", [b"x", b"y"], partitions=[0, 3])
        with pytest.raises(NoSuchPartition, match="empty"):
            producer.send("", b"x")
        with pytest.raises(TypeError, match="timeout must be seconds, as a number, not '10'"):
            producer.flush("10")  # type: ignore[arg-type]


def test_a_topic_that_grows_is_sent_to_at_once(broker: WholeBroker) -> None:
    servers = f"127.0.0.1:{broker.port}"
    with Producer(bootstrap_servers=servers) as producer, AdminClient(bootstrap_servers=servers) as admin:
        sends: list[Callable[[int], Delivery | Deliveries]] = [
            lambda partition: producer.send("growing", b"v", partition=partition),
            lambda partition: producer.send_many("growing", [b"v"], partitions=partition),
            lambda partition: producer.send_many("growing", [b"v"], partitions=[partition]),
        ]
        admin.create_topic("growing", 1)
        producer.send("growing", b"v").result(SECONDS)
        for count, send in enumerate(sends, 2):
            admin.create_partitions("growing", count)
            send(count - 1).result(SECONDS)
            with pytest.raises(NoSuchPartition, match=f"partitions 0 to {count - 1}, not {count}"):
                send(count)


def test_without_a_broker_a_send_says_whom_it_did_not_reach() -> None:
    with (
        Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=200) as producer,
        pytest.raises(TimedOut, match=r"topic 't': .*cannot connect to 127\.0\.0\.1:1: connection refused"),
    ):
        producer.send("t", b"x")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"acks": 1, "enable_idempotence": True}, ValueError, "needs acks=all"),
        ({"enable_idempotence": True, "max_in_flight_requests_per_connection": 6}, ValueError, "up to 5"),
        ({"partitioner": "murmur"}, ValueError, "partitioner='murmur'"),
        ({"batch_sise": 5}, TypeError, "nearest is 'batch.size'"),
        ({"acks": "some"}, ValueError, "acks"),
        ({"compression_type": "gzip", "compression_level": 15}, ValueError, "compression.level=15"),
        ({"group_id": "g"}, TypeError, "no option 'group_id'; it is one of the consumer"),
        ({"security_protocol": "SASL_PLAINTEXT"}, ValueError, r"SASL_PLAINTEXT needs sasl\.username"),
        ({"security_protocol": "SSL", "ssl_ca_location": "/nowhere"}, ValueError, r"ssl\.ca\.location='/nowhere'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Producer(bootstrap_servers="127.0.0.1:1", **options)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_there_once_and_in_order(codec: str) -> None:
    faults = {"seed": 3, "faults": HARMLESS, "probability": 0.1}
    with (
        ProduceBroker(**faults) as broker,  # type: ignore[arg-type]
        producer_of(broker, compression_type=codec, batch_size=5000) as producer,
    ):
        sent = send_all(producer, 3)
        producer.flush(SECONDS)
        check(broker, sent, threads=2, count=400)
        assert Codec[codec.upper()] in broker.codecs


def test_what_compression_would_not_make_smaller_goes_as_it_is() -> None:
    with ProduceBroker() as broker, producer_of(broker, compression_type="zstd") as producer:
        producer.send("t", b"v").result(SECONDS)
        assert broker.codecs == {Codec.NONE}


def test_zstd_needs_a_broker_that_knows_it() -> None:
    with ProduceBroker(versions=(0, 6)) as broker, producer_of(broker, compression_type="zstd") as producer:
        assert "with zstd from 7 on" in str(producer.send("t", b"v").exception(SECONDS))


def test_closing_at_once_with_batches_at_the_compressor() -> None:
    for _ in range(20):
        with ProduceBroker() as broker:
            producer = producer_of(broker, compression_type="gzip", batch_size=20_000)
            many = producer.send_many("t", [random.randbytes(50) for _ in range(3000)])
            producer.close(timeout=0)
            assert many.done()


def fetched(broker: WholeBroker, topic: str, partition: int) -> list[bytes | None]:
    asked = M.FetchRequest.FetchTopic(
        topic=topic,
        partitions=[M.FetchRequest.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 26)],
    )
    answer = broker.call(ApiKey.FETCH, 4, M.FetchRequest(max_bytes=1 << 26, topics=[asked]))
    return [record.value for record in read_records(answer.responses[0].partitions[0].records)]


def test_kbroker_has_what_was_sent(broker: WholeBroker) -> None:
    values = [b"%d" % i * 20 for i in range(50_000)]
    with producer_of(broker, batch_size=60_000) as producer:
        first = producer.send("sent", values[0]).result(SECONDS)
        many = producer.send_many("sent", values[1:])
        assert many.result(SECONDS) == len(values) - 1
        assert first.offset == 0
    assert fetched(broker, "sent", 0) == values


@pytest.mark.slow
@pytest.mark.parametrize("version", [KafkaInMemory, Kafka4InMemory])
@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_other_clients_read_from_kafka_what_was_sent(version: type[KafkaInMemory], codec: str) -> None:
    values = [b"%d" % i * 20 for i in range(20_000)]
    with version({"num.partitions": 3}) as kafka:
        with Producer(bootstrap_servers=kafka.address, compression_type=codec, batch_size=30_000) as producer:
            sent = [producer.send("sent", value, b"%d" % (i % 50)) for i, value in enumerate(values[:5000])]
            many = producer.send_many("sent", values[5000:], [b"%d" % (i % 50) for i in range(5000, 20_000)])
            assert many.result(SECONDS) == 15_000
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": kafka.address, "group.id": "g", "auto.offset.reset": "earliest", "check.crcs": True}
        )
        consumer.subscribe(["sent"])
        found: list[Any] = []
        deadline = time.monotonic() + SECONDS
        while len(found) < len(values) and time.monotonic() < deadline:
            found += consumer.consume(10_000, 1)
        consumer.close()
    assert sorted(message.value() for message in found) == sorted(values)
    places = {(message.partition(), message.offset()): message.value() for message in found}
    assert [places[delivery.partition, delivery.offset] for delivery in sent] == values[:5000]
    for key in {message.key() for message in found}:
        mine = [int(message.value()[: len(message.value()) // 20]) for message in found if message.key() == key]
        assert mine == sorted(mine)
