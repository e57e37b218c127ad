"""Topics that are not there when a consumer wants them: allow.auto.create.topics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest

from kbroker.client import (
    LATEST,
    AdminClient,
    AsyncConsumer,
    BrokerError,
    ClientError,
    Consumer,
    ErrorCode,
    Producer,
    TimedOut,
    UsageError,
)
from kbroker.testing import Broker
from tests.kit.brokers.whole import WholeBroker
from tests.kit.parts.processors import wait_until

SECONDS = 30.0
Use = Callable[[Consumer, str], object]


def subscribe(consumer: Consumer, topic: str) -> None:
    consumer.subscribe([topic])
    consumer.poll(0.5)


def subscribe_by_heartbeats(consumer: Consumer, topic: str) -> None:
    subscribe(consumer, topic)


def assign(consumer: Consumer, topic: str) -> None:
    consumer.assign([(topic, 0)])
    consumer.poll(0.5)


def assign_topics(consumer: Consumer, topic: str) -> None:
    consumer.assign_topics(topic)


def ask_for_an_end(consumer: Consumer, topic: str) -> None:
    consumer.end_offsets([(topic, 0)])


USES: list[Use] = [subscribe, subscribe_by_heartbeats, assign, assign_topics, ask_for_an_end]


def consumer_of(broker: WholeBroker, use: Use, **options: object) -> Consumer:
    return Consumer(
        bootstrap_servers=f"127.0.0.1:{broker.port}",
        group_id=f"missing-{use.__name__}",
        group_protocol="consumer" if use is subscribe_by_heartbeats else "classic",
        retry_backoff_max_ms=100,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("use", USES)
def test_a_topic_that_is_wanted_is_made_only_if_that_is_allowed(broker: WholeBroker, use: Use) -> None:
    made, never = f"made-by-{use.__name__}", f"never-by-{use.__name__}"
    with AdminClient(bootstrap_servers=f"127.0.0.1:{broker.port}") as admin:
        with consumer_of(broker, use, default_api_timeout_ms=2_000) as consumer:
            if use in (subscribe, subscribe_by_heartbeats, assign):
                use(consumer, never)
            else:
                with pytest.raises(ClientError, match=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name):
                    use(consumer, never)  # time may be up between two attempts, or during one
        assert never not in admin.list_topics()
        with consumer_of(broker, use, allow_auto_create_topics=True) as consumer:
            use(consumer, made)
            admin.describe_topics([made])
        assert made in admin.list_topics()


@pytest.mark.parametrize("use", [subscribe, assign, assign_topics, ask_for_an_end])
def test_a_broker_that_knows_too_few_others_to_make_a_topic_is_asked_again(use: Use) -> None:
    """One of a cluster that has only just begun says so of topics that are there."""
    with Broker(faults=True) as broker:
        with AdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topic("late", 1)
        options = {"bootstrap_servers": broker.bootstrap_servers, "retry_backoff_max_ms": 100}
        with (
            Consumer(
                options, group_id="early", auto_offset_reset="earliest", allow_auto_create_topics=True
            ) as consumer,
            Producer(options) as producer,
        ):
            struck = broker.faults.error("Metadata", "INVALID_REPLICATION_FACTOR", times=4)
            use(consumer, "late")
            assert producer.send("late", b"here").result(SECONDS).offset == 0
            if use is not ask_for_an_end:
                assert [record.value for record in consumer.poll(SECONDS)] == [b"here"]
            assert struck.left == 0


@pytest.mark.parametrize("use", [subscribe, subscribe_by_heartbeats, assign])
def test_a_topic_that_is_not_there_is_told_once(
    broker: WholeBroker, use: Use, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"slip-by-{use.__name__}"

    def told() -> list[str]:
        return [each.getMessage() for each in caplog.records if repr(name) in each.getMessage()]

    with consumer_of(broker, use) as consumer:
        use(consumer, name)
        wait_until(told, "the log says it", SECONDS)
        asked = consumer._fetching.cluster.refresh
        for _ in range(3):
            consumer._thread.call(asked())
        assert told() == [f"topic {name!r} is not there: create the topic, or look for a slip in its name"]
        broker.create_topic(name, 1)
        wait_until(lambda: consumer.poll(0.1) or consumer.assignment(), "it is read once it is there", SECONDS)
        assert len(told()) == 1


def test_a_partition_that_its_topic_does_not_have_is_told_as_such(
    broker: WholeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("of-two", 2)
    words = "of-two-9: UNKNOWN_TOPIC_OR_PARTITION: the topic has partitions 0 to 1 (choose a partition that is there"
    server = {"bootstrap.servers": f"127.0.0.1:{broker.port}", "default.api.timeout.ms": 200}
    with Consumer(server, retry_backoff_max_ms=20) as consumer, AdminClient(server) as admin:
        consumer.assign([("of-two", 9)])
        told = lambda: [each for each in caplog.records if each.getMessage().startswith(words)]  # noqa: E731
        wait_until(told, "the log says it", SECONDS)
        for ask in (consumer.end_offsets, lambda each: admin.list_offsets(each, LATEST)):
            # It is a TimedOut if the time is over during an attempt, and names the attempt before.
            with pytest.raises((BrokerError, TimedOut), match=re.escape(words)):
                ask([("of-two", 9)])
        assert len(told()) == 1


@pytest.mark.parametrize("group_id", [None, "idle"])
def test_a_poll_of_nothing_is_a_mistake(broker: WholeBroker, group_id: str | None) -> None:
    server = {"bootstrap.servers": f"127.0.0.1:{broker.port}", "group.id": group_id}
    words = "nothing is subscribed to, and nothing is assigned"
    broker.create_topic(f"of-{group_id}", 1)
    with Consumer(server) as consumer:
        calls: list[Callable[[], object]] = [
            consumer.poll, consumer.poll_arrow, consumer.poll_numpy, lambda: next(iter(consumer))
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(UsageError, match=words):
                call()
        consumer.assign_topics(f"of-{group_id}")
        assert len(consumer.poll(0.0)) == 0
        consumer.unsubscribe()
        with pytest.raises(UsageError, match=words):
            consumer.poll()

    async def awaited() -> None:
        async with AsyncConsumer(server) as consumer:
            for call in (consumer.poll, consumer.poll_arrow, consumer.poll_numpy, lambda: anext(aiter(consumer))):
                with pytest.raises(UsageError, match=words):
                    await call()

    asyncio.run(awaited())
