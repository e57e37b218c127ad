"""Topics that are not there when a consumer wants them: allow.auto.create.topics."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.client import AdminClient, ClientError, Consumer, ErrorCode, Producer
from kbroker.testing import Broker
from tests.kit.whole_broker import WholeBroker

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
def test_a_topic_that_is_wanted_is_made_unless_that_is_forbidden(broker: WholeBroker, use: Use) -> None:
    made, never = f"made-by-{use.__name__}", f"never-by-{use.__name__}"
    with AdminClient(bootstrap_servers=f"127.0.0.1:{broker.port}") as admin:
        with consumer_of(broker, use, allow_auto_create_topics=False, default_api_timeout_ms=2_000) as consumer:
            if use in (subscribe, subscribe_by_heartbeats, assign):
                use(consumer, never)
            else:
                with pytest.raises(ClientError, match=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name):
                    use(consumer, never)  # time may be up between two attempts, or during one
        assert never not in admin.list_topics()
        with consumer_of(broker, use) as consumer:
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
            Consumer(options, group_id="early", auto_offset_reset="earliest") as consumer,
            Producer(options) as producer,
        ):
            struck = broker.faults.error("Metadata", "INVALID_REPLICATION_FACTOR", times=4)
            use(consumer, "late")
            assert producer.send("late", b"here").result(SECONDS).offset == 0
            if use is not ask_for_an_end:
                assert [record.value for record in consumer.poll(SECONDS)] == [b"here"]
            assert struck.left == 0
