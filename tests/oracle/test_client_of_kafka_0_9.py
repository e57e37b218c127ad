"""The client with Kafka 0.9, a broker that cannot be asked what it serves: by `broker.version.fallback`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.client import AdminClient, BrokerError, ClientError, Consumer, ErrorCode, Producer
from kbroker.client.consumer.simple_consumer import SimpleConsumer
from tests.kit.kafka import maven
from tests.kit.kafka.zookeeper import OldKafka

pytestmark = pytest.mark.slow

SECONDS = 60.0
SETTINGS = {"num.partitions": 2, "offsets.topic.num.partitions": 1}


@pytest.fixture(scope="module")
def kafka() -> Iterator[OldKafka]:
    try:
        OldKafka.classpath()
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))
    with OldKafka(SETTINGS) as started:
        yield started


@pytest.fixture(params=["0.9.0", "0.8.2"])
def options(kafka: OldKafka, request: pytest.FixtureRequest) -> dict[str, str]:
    """Options of a client; the broker also serves what the release before it served."""
    quick = {"socket.connection.setup.timeout.ms": "1000"}
    return quick | {"bootstrap.servers": kafka.address, "broker.version.fallback": request.param}


def test_without_the_option_the_error_names_it(kafka: OldKafka) -> None:
    with (
        AdminClient(bootstrap_servers=kafka.address, request_timeout_ms=500, default_api_timeout_ms=3_000) as admin,
        pytest.raises(ClientError, match=r"Kafka before 0\.10 needs broker\.version\.fallback"),
    ):
        admin.list_topics()


def test_what_is_produced_is_read(options: dict[str, str]) -> None:
    topic = "read-" + options["broker.version.fallback"]
    values = [b"%d" % number for number in range(2000)]
    with Producer(options | {"compression.type": "snappy"}) as producer:
        assert producer.send_many(topic, values, partitions=0).result(SECONDS) == len(values)
        assert producer.send(topic, b"last", key="k", partition=0).result(SECONDS).offset == len(values)
    with Consumer(options | {"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(topic, 0)])
        found = []
        while len(found) <= len(values):
            found += [(record.offset, record.key, record.value) for record in consumer.poll(SECONDS)]
    assert found == [*((at, None, value) for at, value in enumerate(values)), (len(values), b"k", b"last")]
    with SimpleConsumer(options) as simple:
        assert [record.value for record in simple.fetch(topic, 0, 1999, max_bytes=1 << 20)][-1] == b"last"


def test_groups_share_topics_where_the_broker_has_groups(options: dict[str, str]) -> None:
    with Producer(options) as producer:
        for partition in range(2):
            producer.send("shared", b"%d" % partition, partition=partition).result(SECONDS)
    grouped = {
        "auto.offset.reset": "earliest",
        "group.id": options["broker.version.fallback"],
        "session.timeout.ms": "10000",
    }
    with Consumer(options | grouped) as consumer:
        consumer.subscribe("shared")
        if options["broker.version.fallback"] == "0.8.2":
            with pytest.raises(BrokerError, match="JoinGroup") as refused:
                consumer.poll(SECONDS)
            assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
            return
        values: list[bytes | None] = []
        while len(values) < 2:
            values += [record.value for record in consumer.poll(SECONDS)]
        consumer.commit()
        assert sorted(values, key=str)[:2] == [b"0", b"1"]
        assert {each.offset for each in consumer.committed([("shared", 0), ("shared", 1)]).values() if each} == {1}


def test_what_it_has_not_is_said(options: dict[str, str]) -> None:
    with AdminClient(options) as admin:
        assert admin.describe_cluster().brokers
        with pytest.raises(BrokerError, match="CreateTopics") as refused:
            admin.create_topic("new")
        assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
    with Producer(options) as producer:
        error = producer.send("read", b"v", headers={"h": b"1"}).exception(SECONDS)
        assert "headers of records need" in str(error)
