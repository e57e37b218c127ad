"""The consumer against kbroker, in this process."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import pytest

from kbroker._core.client.consumer.record import ConsumerRecord
from kbroker.client.consumer.consumer import Consumer
from kbroker.client.errors import BrokerError, ClientClosed, TimedOut, UsageError
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol.compression import Codec
from tests.kit.brokers.whole import WholeBroker

numbers = itertools.count()
SECONDS = 30.0


@pytest.fixture
def topic(broker: WholeBroker) -> str:
    """Two partitions, no records."""
    name = f"consumed-{next(numbers)}"
    broker.create_topic(name, 2)
    return name


def consumer_of(broker: WholeBroker, **options: Any) -> Consumer:
    quick = {"retry_backoff_ms": 1, "reconnect_backoff_ms": 1, "fetch_max_wait_ms": 50, "auto_offset_reset": "earliest"}
    return Consumer(bootstrap_servers=f"127.0.0.1:{broker.port}", **(quick | options))


def take(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline
        found += consumer.poll(SECONDS, count - len(found))
    return found


@pytest.mark.parametrize("codec", list(Codec))
def test_what_was_appended_is_read(broker: WholeBroker, topic: str, codec: Codec) -> None:
    values = [b"%d" % number for number in range(500)]
    for start in range(0, 500, 50):
        broker.append(topic, start // 50 % 2, values[start : start + 50], codec=codec)
    with consumer_of(broker) as consumer:
        consumer.assign_topics(topic)
        found = take(consumer, 500)
        assert sorted(record.value or b"" for record in found) == sorted(values)
        for partition in (0, 1):
            assert [record.offset for record in found if record.partition == partition] == list(range(250))
            assert consumer.position(topic, partition) == 250
        assert len(consumer.poll(0)) == 0
        broker.append(topic, 1, [b"later"])
        assert [record.value for record in take(consumer, 1)] == [b"later"]


def test_where_it_begins(broker: WholeBroker, topic: str) -> None:
    broker.append(topic, 0, [b"a", b"b", b"c"])
    partition = TopicPartition(topic, 0)
    with consumer_of(broker, auto_offset_reset="latest") as consumer:
        consumer.assign([partition])
        deadline = time.monotonic() + SECONDS
        while consumer.position(topic, 0) is None:
            assert time.monotonic() < deadline
            consumer.poll(0.05)
        broker.append(topic, 0, [b"d"])
        assert [record.value for record in take(consumer, 1)] == [b"d"]
        consumer.assign({partition: 1})
        assert [record.value for record in take(consumer, 3)] == [b"b", b"c", b"d"]
        consumer.seek_to_beginning()
        assert [record.value for record in take(consumer, 4)] == [b"a", b"b", b"c", b"d"]
        consumer.seek(topic, 0, 2)
        assert [record.value for record in take(consumer, 1)] == [b"c"]
        consumer.seek_to_end((topic, 0))
        assert consumer.position(topic, 0) == 4
        consumer.seek(topic, 0, 77)
        assert len(consumer.poll(0.2)) == 0
        assert consumer.position(topic, 0) in (None, 4, 77)
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition, (topic, 1)]) == {partition: 4, (topic, 1): 0}
        assert consumer.offsets_for_times({partition: 1001, TopicPartition(topic, 1): 5}) == {
            partition: 1,
            (topic, 1): None,
        }


def test_an_offset_that_is_not_there_begins_again_or_is_an_error(broker: WholeBroker, topic: str) -> None:
    broker.append(topic, 0, [b"a"])
    with consumer_of(broker) as consumer:
        consumer.assign({TopicPartition(topic, 0): 99})
        assert [record.value for record in take(consumer, 1)] == [b"a"]
    with consumer_of(broker, auto_offset_reset="none") as consumer:
        consumer.assign({TopicPartition(topic, 0): 99})
        with pytest.raises(BrokerError, match="there is no offset 99") as refused:
            consumer.poll(SECONDS)
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        consumer.seek(topic, 0, 0)
        assert [record.value for record in take(consumer, 1)] == [b"a"]
        consumer.assign([(topic, 1)])
        with pytest.raises(BrokerError, match="no offset to begin at"):
            consumer.poll(SECONDS)


def test_a_topic_that_comes_later_is_read_then(broker: WholeBroker) -> None:
    name = f"later-{next(numbers)}"
    with consumer_of(broker, allow_auto_create_topics=False) as consumer:
        consumer.assign([(name, 0)])
        assert len(consumer.poll(0.1)) == 0
        broker.create_topic(name, 1)
        broker.append(name, 0, [b"there"])
        assert [record.value for record in take(consumer, 1)] == [b"there"]


def test_a_paused_partition_gives_nothing_until_it_is_resumed(broker: WholeBroker, topic: str) -> None:
    for partition in (0, 1):
        broker.append(topic, partition, [b"%d" % partition] * 3)
    with consumer_of(broker) as consumer:
        consumer.assign_topics(topic)
        consumer.pause(topic, 0)
        assert consumer.paused() == [(topic, 0)]
        assert [record.partition for record in take(consumer, 3)] == [1, 1, 1]
        assert len(consumer.poll(0.1)) == 0
        consumer.resume(topic, 0)
        assert [record.partition for record in take(consumer, 3)] == [0, 0, 0]


def test_columns_and_iteration(broker: WholeBroker, topic: str) -> None:
    broker.append(topic, 0, [b"%08d" % number for number in range(9)])
    with consumer_of(broker) as consumer:
        consumer.assign({TopicPartition(topic, 0): 0})
        batch = consumer.poll_arrow(SECONDS, 3, ["offset", "value"])
        assert batch.to_pydict() == {"offset": [0, 1, 2], "value": [b"%08d" % number for number in range(3)]}
        found = consumer.poll_numpy(SECONDS, 3, dtypes={"value": "S8"})
        assert found["value"].tolist() == [b"%08d" % number for number in range(3, 6)]
        assert [record.offset for record in itertools.islice(consumer, 3)] == [6, 7, 8]


def test_a_range_of_offsets(broker: WholeBroker, topic: str) -> None:
    for codec in Codec:
        broker.append(topic, 0, [b"%d" % number for number in range(40)], codec=codec)
    end = 40 * len(Codec)
    with consumer_of(broker, auto_offset_reset="none", max_poll_records=17) as consumer:
        for start, until in [(0, end), (0, 1), (39, 41), (55, 133), (end - 1, end), (7, 7), (end, end)]:
            found = [record.offset for records in consumer.read_range(topic, 0, start, until) for record in records]
            assert found == list(range(start, until))
        ranges = consumer.read_range(topic, 0, 0, end + 1, timeout=0.3)
        with pytest.raises(TimedOut, match=f"{topic}-0: nothing came for 0.3 s between offset {end} and {end + 1}"):
            list(ranges)
        with pytest.raises(BrokerError, match="there is no offset"):
            list(consumer.read_range(topic, 0, end + 5, end + 9))
        with pytest.raises(ValueError, match="from offset 5 to 3"):
            list(consumer.read_range(topic, 0, 5, 3))


def test_misuse_is_refused_with_the_reason(broker: WholeBroker, topic: str) -> None:
    with consumer_of(broker) as consumer:
        with pytest.raises(UsageError, match="is not assigned"):
            consumer.seek(topic, 0, 1)
        with pytest.raises(ValueError, match="offset -5 is negative"):
            consumer.assign({TopicPartition(topic, 0): -5})
        with pytest.raises(ValueError, match="max_records=0: at least 1"):
            consumer.poll(0, 0)
        with pytest.raises(TypeError, match="timeout must be seconds, as a number, not '1'"):
            consumer.poll("1")  # type: ignore[arg-type]
        for wrong, says in (("t", r"a list of partitions, .* not 't'"), (["t"], r"\(topic, number\), not 't'")):
            with pytest.raises(TypeError, match=says):
                consumer.assign(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"several are arguments of their own: not \['t'\]"):
            consumer.assign_topics(["t"])  # type: ignore[arg-type]
        consumer.assign([(topic, 0)])
        with pytest.raises(ValueError, match="time -1 is negative"):
            consumer.offsets_for_times({TopicPartition(topic, 0): -1})
    with pytest.raises(ClientClosed):
        consumer.poll(0)
    with pytest.raises(TypeError, match=r"the nearest is .auto.offset.reset"):
        consumer_of(broker, auto_offset_rset="earliest")


def test_what_is_wrong_with_columns_takes_no_records(broker: WholeBroker, topic: str) -> None:
    broker.append(topic, 0, [b"a"])
    with consumer_of(broker, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(ValueError, match="no column 'val'"):
            consumer.poll_arrow(SECONDS, columns=["val"])
        with pytest.raises(ValueError, match="a dtype for 'offset'"):
            consumer.poll_numpy(SECONDS, dtypes={"offset": "<i8"})
        assert consumer.poll_numpy(SECONDS, columns=iter(["offset"]))["offset"][0] == 0


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"auto.offset.reset": "smallest"}, "auto.offset.reset", "earliest"),
        ({"auto.offset.reset": "Beginning"}, "auto.offset.reset", "earliest"),
        ({"autooffset.reset": "largest"}, "auto.offset.reset", "latest"),
        ({"auto.offset.reset": "end"}, "auto.offset.reset", "latest"),
        ({"fetch.message.max.bytes": 5000}, "max.partition.fetch.bytes", 5000),
        ({"fetch.wait.max.ms": 7}, "fetch.max.wait.ms", 7),
    ],
)
def test_names_of_older_consumers_and_of_librdkafka(given: dict[str, Any], name: str, value: Any) -> None:
    with Consumer({"bootstrap.servers": "127.0.0.1:1"} | given) as consumer:
        assert consumer.options[name] == value


def test_close_ends_a_poll_that_waits(broker: WholeBroker, topic: str) -> None:
    consumer = consumer_of(broker)
    consumer.assign([(topic, 0)])
    threading.Timer(0.1, consumer.close).start()
    assert len(consumer.poll(SECONDS)) == 0
