"""SimpleConsumer against kbroker, and against brokers that lie."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker._core.client.consumer.record import UnreadableRecords
from kbroker.client import EARLIEST, LATEST, SimpleConsumer
from kbroker.client.errors import BrokerError, ClientClosed, ClientError, ConnectionFailed, TimedOut
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import Codec
from kbroker.protocol.records import encode_batch
from tests.kit.brokers import answers
from tests.kit.brokers.scripted import Asked, Peer, ScriptedBroker
from tests.kit.brokers.whole import WholeBroker

numbers = itertools.count()


@pytest.fixture
def topic(broker: WholeBroker) -> str:
    """Two partitions, no records."""
    name = f"simple-{next(numbers)}"
    broker.create_topic(name, 2)
    return name


@pytest.fixture(scope="module")
def consumer(broker: WholeBroker) -> Iterator[SimpleConsumer]:
    with SimpleConsumer(bootstrap_servers=f"127.0.0.1:{broker.port}", default_api_timeout_ms=3_000) as made:
        yield made


@pytest.mark.parametrize("codec", list(Codec))
def test_records_come_from_the_offset_on(
    broker: WholeBroker, consumer: SimpleConsumer, topic: str, codec: Codec
) -> None:
    broker.append(topic, 1, [b"a", b"b", b"c"], codec=codec)
    broker.append(topic, 1, [b"d"], codec=codec)
    found = consumer.fetch(topic, 1, 1)
    assert [(each.offset, each.value) for each in found] == [(1, b"b"), (2, b"c"), (3, b"d")]
    assert found.next_offsets() == {TopicPartition(topic, 1): 4}
    assert [each.value for each in consumer.fetch(topic, 1, 1)] == [b"b", b"c", b"d"]  # it remembers nothing


def test_at_the_end_there_are_none(broker: WholeBroker, consumer: SimpleConsumer, topic: str) -> None:
    broker.append(topic, 0, [b"a"])
    assert len(consumer.fetch(topic, 0, 1)) == 0
    assert len(consumer.fetch(topic, 1, 0)) == 0


def test_the_broker_waits_for_what_comes(broker: WholeBroker, consumer: SimpleConsumer, topic: str) -> None:
    with SimpleConsumer(bootstrap_servers=f"127.0.0.1:{broker.port}") as other:
        fetching = other._cluster.network.thread.submit(
            other._multifetch([_from(topic)], min_bytes=1, max_wait_ms=60_000)
        )
        waiting = lambda: consumer.get_offsets_before(topic, 0, LATEST)  # noqa: E731
        assert waiting() == [0]
        broker.append(topic, 0, [b"late"])
        assert [each.value for each in fetching.result(30)[0]] == [b"late"]


def _from(topic: str) -> Any:
    from kbroker.client.consumer.simple_consumer import FetchFrom

    return FetchFrom(topic, 0, 0)


def test_max_bytes_bounds_what_comes_and_one_batch_always_does(
    broker: WholeBroker, consumer: SimpleConsumer, topic: str
) -> None:
    for number in range(10):
        broker.append(topic, 0, [b"%d" % number * 1000])
    assert [each.offset for each in consumer.fetch(topic, 0, 3, 10)] == [3]
    assert [each.offset for each in consumer.fetch(topic, 0, 3, 4_000)] == [3, 4, 5]


def test_multifetch_gives_each_its_records_in_order(broker: WholeBroker, consumer: SimpleConsumer, topic: str) -> None:
    broker.append(topic, 0, [b"a", b"b"])
    broker.append(topic, 1, [b"c", b"d"])
    wanted = [(topic, 1, 1), (topic, 0, 0), (topic, 1, 0, 1 << 16), (topic, 0, 2), (topic, 1, 1)]
    found = consumer.multifetch(wanted)
    assert [[each.value for each in records] for records in found] == [[b"d"], [b"a", b"b"], [b"c", b"d"], [], [b"d"]]
    assert consumer.multifetch([]) == []


def test_an_offset_that_is_not_there_is_said(broker: WholeBroker, consumer: SimpleConsumer, topic: str) -> None:
    broker.append(topic, 0, [b"a"])
    with pytest.raises(BrokerError, match=f"{topic}-0: there is no offset 7") as caught:
        consumer.multifetch([(topic, 1, 0), (topic, 0, 7)])
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert "get_offsets_before" in str(caught.value)


def test_a_topic_or_partition_that_is_not_there_is_said(broker: WholeBroker, topic: str) -> None:
    with SimpleConsumer(bootstrap_servers=f"127.0.0.1:{broker.port}", default_api_timeout_ms=1_000) as consumer:
        for name, partition in ((topic, 2), ("nowhere", 0)):
            with pytest.raises(ClientError, match=f"{name}-{partition}: UNKNOWN_TOPIC_OR_PARTITION"):
                consumer.fetch(name, partition, 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.fetch("t", 0, -1),
        lambda consumer: consumer.fetch("t", 0, 1 << 63),
        lambda consumer: consumer.fetch("t", 0, 0, 0),
        lambda consumer: consumer.fetch("t", 0, 0, 1 << 31),
        lambda consumer: consumer.fetch("t", 0, 0, max_wait_ms=-1),
        lambda consumer: consumer.fetch("t", 0, 0, min_bytes=1 << 31),
        lambda consumer: consumer.get_offsets_before("t", 0, -3),
        lambda consumer: consumer.get_offsets_before("t", 0, LATEST, 0),
        lambda consumer: consumer.commit_offsets("g", {("t", 0): -1}),
    ],
)
def test_values_out_of_range_are_refused_at_the_call(
    consumer: SimpleConsumer, call: Callable[[SimpleConsumer], object]
) -> None:
    with pytest.raises(ValueError):
        call(consumer)


def test_offsets_before_a_time(broker: WholeBroker, consumer: SimpleConsumer, topic: str) -> None:
    broker.append(topic, 0, [b"a", b"b", b"c"])
    assert consumer.get_offsets_before(topic, 0, EARLIEST) == [0]
    assert consumer.get_offsets_before(topic, 0, LATEST) == [3]
    assert consumer.get_offsets_before(topic, 0, LATEST, 10) == [3, 0]
    assert consumer.get_offsets_before(topic, 0, int(time.time() * 1000) + 60_000, 10) == [3, 0]
    assert consumer.get_offsets_before(topic, 0, 1_000, 10) == []
    assert consumer.get_offsets_before(topic, 1, LATEST, 10) == [0]


def test_aborted_records_are_left_out_when_committed_ones_are_asked_for() -> None:
    batch = encode_batch(
        [(1, None, b"aborted")], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )

    def answer(asked: Asked) -> M.Message:
        assert asked.message.isolation_level == 1
        aborted = M.FetchResponse.AbortedTransaction(producer_id=7, first_offset=0)
        return fetched(batch, aborted_transactions=[aborted])

    with Liar(answer) as liar, liar.consumer(isolation_level="read_committed") as consumer:
        found = consumer.fetch("t", 0, 0)
        assert list(found) == []
        assert found.next_offsets() == {TopicPartition("t", 0): 1}


def test_offsets_of_a_group(consumer: SimpleConsumer, topic: str) -> None:
    group = f"group-{topic}"
    assert consumer.fetch_offsets(group, [(topic, 0), (topic, 1)]) == {}
    consumer.commit_offsets(group, {(topic, 0): 5})
    assert consumer.fetch_offsets(group, [(topic, 0), (topic, 1)]) == {TopicPartition(topic, 0): 5}
    with pytest.raises(BrokerError, match="nowhere"):
        consumer.commit_offsets(group, {("nowhere", 0): 5})


def test_after_its_end_it_says_so(broker: WholeBroker) -> None:
    consumer = SimpleConsumer(bootstrap_servers=f"127.0.0.1:{broker.port}")
    consumer.close()
    consumer.close()
    with pytest.raises(ClientClosed):
        consumer.fetch("t", 0, 0)


def test_an_option_of_other_clients_is_none_of_its() -> None:
    with pytest.raises(TypeError, match=r"the simple consumer has no option 'group_id'"):
        SimpleConsumer(group_id="x")


# --- lies -------------------------------------------------------------------------------------------------


def fetched(records: bytes | None, topic: str = "t", partition: int = 0, **more: Any) -> M.Message:
    R = M.FetchResponse
    row = R.PartitionData(partition_index=partition, high_watermark=1, records=records, **more)
    return R(responses=[R.FetchableTopicResponse(topic=topic, partitions=[row])])


class Liar:
    """One broker that leads t-0, and answers Fetch as it is told."""

    def __init__(self, answer: Callable[[Asked], M.Message | bytes]):
        self.answer = answer
        self.broker = ScriptedBroker(self.script)

    def script(self, peer: Peer) -> None:
        for asked in peer.requests():
            if asked.api_key == ApiKey.METADATA:
                topics = [answers.topic("t", [0], leader_epoch=0)]
                peer.respond(asked, answers.metadata({0: self.broker.port}, topics))
            elif isinstance(answer := self.answer(asked), bytes):
                peer.answer(asked.correlation_id, b"\0" + answer)
            else:
                peer.respond(asked, answer)

    def consumer(self, **options: Any) -> SimpleConsumer:
        quick = {"retry_backoff_ms": 1, "reconnect_backoff_ms": 1, "default_api_timeout_ms": 1_000}
        return SimpleConsumer(bootstrap_servers=f"127.0.0.1:{self.broker.port}", **(quick | options))

    def __enter__(self) -> Liar:
        self.broker.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.broker.__exit__(*error)


BATCH = encode_batch([(1, None, b"value")])


@pytest.mark.parametrize("records", [BATCH[:-1], BATCH[:-1] + b"x", b"\0" * 100, b"x", BATCH[:16] + b"\7" + BATCH[17:]])
def test_damaged_records_are_unreadable(records: bytes) -> None:
    with Liar(lambda asked: fetched(records)) as liar, liar.consumer() as consumer, pytest.raises(UnreadableRecords):
        list(consumer.fetch("t", 0, 0))


def test_what_is_good_before_the_damage_is_given() -> None:
    with Liar(lambda asked: fetched(BATCH + b"\0" * 100)) as liar, liar.consumer() as consumer:
        assert [each.value for each in consumer.fetch("t", 0, 0)] == [b"value"]


@pytest.mark.parametrize("answer", [fetched(BATCH, topic="u"), fetched(BATCH, partition=1), M.FetchResponse()])
def test_an_answer_about_something_else_is_an_error(answer: M.Message) -> None:
    with Liar(lambda asked: answer) as liar, liar.consumer() as consumer, pytest.raises(BrokerError, match="t-0"):
        consumer.fetch("t", 0, 0)


@pytest.mark.parametrize("body", [b"", b"\xff" * 50, b"\0" * 11])
def test_an_answer_that_does_not_parse_is_an_error(body: bytes) -> None:
    ends = pytest.raises((ConnectionFailed, TimedOut), match="what does not parse")
    with Liar(lambda asked: body) as liar, liar.consumer() as consumer, ends:
        consumer.fetch("t", 0, 0)


def test_a_leader_that_is_none_any_more_is_asked_again() -> None:
    answers = iter([fetched(None, error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER)), fetched(BATCH)])
    with Liar(lambda asked: next(answers)) as liar, liar.consumer() as consumer:
        assert [each.value for each in consumer.fetch("t", 0, 0)] == [b"value"]
