"""Leaders that change and logs that were truncated, against a broker that is told what to say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from kbroker._core.client.consumer.record import ConsumerRecord, UnreadableRecords
from kbroker.client.consumer.consumer import Consumer
from kbroker.client.consumer.fetching import Fetching
from kbroker.client.errors import BrokerError, LogTruncated
from kbroker.client.network.connection import Connection
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.records import Record
from tests.kit.brokers import answers
from tests.kit.brokers.fetch import FetchBroker
from tests.kit.brokers.scripted import Asked, Peer, ScriptedBroker
from tests.kit.models.consumer import Log, LogBatch
from tests.kit.parts.processors import wait_until

SECONDS = 30.0
TOPIC = "t"
KEY = (TOPIC, 0)


def log_of(*values: str) -> Log:
    """A batch for each, of leader epoch 0."""
    return Log([LogBatch(at, at, (Record(at, 5, None, value.encode()),)) for at, value in enumerate(values)])


class Leader:
    """One broker that leads everything: of epoch `epoch`, with `log`, whose epoch 0 ends as `ends` says."""

    def __init__(self) -> None:
        self.epoch = 0
        self.ends = (0, 0)  # leader epoch and end offset
        self.epoch_errors: list[int] = []  # what is answered to who asks for them, oldest first
        self.asked_epochs: list[tuple[int, int]] = []  # current leader epoch, leader epoch
        self.metadata = 0  # how often they were asked for
        self.fetch = FetchBroker({KEY: log_of("a", "b", "c")}, 12, sessions=False)
        self.highest: dict[int, int] = {}  # versions served
        self.list_error = 0
        self.asked_offsets: list[int] = []
        self.broker = ScriptedBroker(self.script)

    def script(self, peer: Peer) -> None:
        for asked in peer.requests(answers.up_to(self.highest)):
            peer.respond(asked, self.answer(asked))

    def answer(self, asked: Asked) -> M.Message:
        message: Any = asked.message
        if asked.api_key == ApiKey.METADATA:
            self.metadata += 1
            return self.describe()
        if asked.api_key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
            return self.tell_end(message)
        if asked.api_key == ApiKey.LIST_OFFSETS:
            row = M.ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, error_code=self.list_error)
            if asked.version == 0:
                row.old_style_offsets = [2] if message.topics[0].partitions[0].timestamp == -2 else []
            else:
                row.offset = 0
            return M.ListOffsetsResponse(
                topics=[M.ListOffsetsResponse.ListOffsetsTopicResponse(name=TOPIC, partitions=[row])]
            )
        assert asked.api_key == ApiKey.FETCH
        for topic in message.topics:
            for ask in topic.partitions:
                self.asked_offsets.append(ask.fetch_offset)
                if ask.current_leader_epoch < self.epoch:
                    self.fetch.errors[KEY] = ErrorCode.FENCED_LEADER_EPOCH
        return self.fetch.answer(message)  # type: ignore[no-any-return]

    def describe(self) -> M.Message:
        return answers.metadata({1: self.broker.port}, [answers.topic(TOPIC, [1], leader_epoch=self.epoch)])

    def tell_end(self, message: Any) -> M.Message:
        ask = message.topics[0].partitions[0]
        self.asked_epochs.append((ask.current_leader_epoch, ask.leader_epoch))
        row = M.OffsetForLeaderEpochResponse.EpochEndOffset(
            partition=0, leader_epoch=self.ends[0], end_offset=self.ends[1]
        )
        if ask.leader_epoch < 0:  # which no broker knows
            row.leader_epoch, row.end_offset = -1, -1
        if self.epoch_errors:
            row.error_code = self.epoch_errors.pop(0)
        topic = M.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=TOPIC, partitions=[row])
        return M.OffsetForLeaderEpochResponse(topics=[topic])

    def elect(self, log: Log, epoch: int, end_offset: int) -> None:
        """Another epoch begins, with another log."""
        self.ends = (epoch, end_offset)
        self.fetch.logs[KEY] = log
        self.epoch += 1


@pytest.fixture
def leader() -> Iterator[Leader]:
    made = Leader()
    with made.broker:
        yield made


@pytest.fixture
def consumer_of(leader: Leader) -> Iterator[Callable[..., Consumer]]:
    made: list[Consumer] = []

    def make(**options: Any) -> Consumer:
        quick = {
            "retry_backoff_ms": 1,
            "retry_backoff_max_ms": 20,
            "fetch_max_wait_ms": 5,
            "auto_offset_reset": "earliest",
        }
        made.append(Consumer(bootstrap_servers=f"127.0.0.1:{leader.broker.port}", **(quick | options)))
        made[-1].assign({KEY: 0})  # type: ignore[dict-item]
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def take(consumer: Consumer, count: int) -> list[tuple[int, bytes | None]]:
    found: list[ConsumerRecord] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline
        found += consumer.poll(1.0, count - len(found))
    return [(record.offset, record.value) for record in found]


ABC = [(0, b"a"), (1, b"b"), (2, b"c")]


def test_a_new_leader_that_has_what_was_read_is_read_on(leader: Leader, consumer_of: Callable[..., Consumer]) -> None:
    consumer = consumer_of()
    assert take(consumer, 3) == ABC
    leader.epoch_errors = [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    leader.elect(log_of("a", "b", "c", "d"), 0, 3)
    assert take(consumer, 1) == [(3, b"d")]
    assert set(leader.asked_epochs) == {(1, 0)}
    assert len(leader.asked_epochs) == 3


def test_who_seeks_before_a_new_leader_has_proved_itself_is_read_on_from_there(
    leader: Leader, consumer_of: Callable[..., Consumer]
) -> None:
    consumer = consumer_of()
    assert take(consumer, 3) == ABC
    leader.epoch_errors = [ErrorCode.UNKNOWN_LEADER_EPOCH] * 100_000
    leader.elect(log_of("a", "b", "c", "d"), 0, 3)
    wait_until(lambda: leader.asked_epochs, "it is asked where the epoch ends", SECONDS)
    consumer.seek(TOPIC, 0, 2)
    leader.epoch_errors.clear()
    assert take(consumer, 2) == [(2, b"c"), (3, b"d")]


@pytest.mark.parametrize("version", [2, 4])  # version 2 proves nothing
def test_a_leader_that_is_given_up_while_it_proves_itself_is_not_read(
    leader: Leader, consumer_of: Callable[..., Consumer], monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """A fetch that was under way fails meanwhile. What the leader says then counts for nothing."""
    given_up: list[TopicPartition] = []
    prove = Fetching._prove_at

    async def prove_late(fetching: Fetching, leader_id: int, led: Mapping[TopicPartition, int]) -> None:
        connection = fetching.cluster.connection

        async def reached(node_id: int) -> Connection:
            found = await connection(node_id)
            if not given_up:
                given_up.append(TopicPartition(*KEY))
                fetching._try_again(given_up[0], ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, -1, -1)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(fetching.cluster, "connection", reached)
            await prove(fetching, leader_id, led)

    monkeypatch.setattr(Fetching, "_prove_at", prove_late)
    leader.highest[ApiKey.OFFSET_FOR_LEADER_EPOCH] = version
    consumer = consumer_of()
    assert take(consumer, 3) == ABC
    leader.elect(log_of("a", "b", "c", "d"), 0, 3)
    assert take(consumer, 1) == [(3, b"d")]
    assert given_up


def test_what_a_former_leader_says_proves_nothing_of_the_next_one(
    leader: Leader, consumer_of: Callable[..., Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = consumer_of()
    assert take(consumer, 3) == ABC
    tell_end = leader.tell_end

    def tell_late(message: Any) -> M.Message:
        told = tell_end(message)
        if len(leader.asked_epochs) == 1:
            leader.elect(log_of("a", "B", "C", "D"), 0, 1)
            consumer._thread.call(consumer._fetching.cluster.refresh(), SECONDS)
        return told

    monkeypatch.setattr(leader, "tell_end", tell_late)
    leader.elect(log_of("a", "b", "c", "d"), 0, 3)
    assert take(consumer, 3) == [(1, b"B"), (2, b"C"), (3, b"D")]
    assert leader.asked_epochs == [(1, 0), (2, 0)]


def test_a_mistake_of_ours_while_leaders_are_looked_for_is_logged_and_does_not_stop_the_consumer(
    leader: Leader,
    consumer_of: Callable[..., Consumer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    consumer = consumer_of()
    assert take(consumer, 3) == ABC
    prove, failed = Fetching._prove_positions, []

    async def fail_first(fetching: Fetching) -> None:
        if not failed:
            failed.append(True)
            raise KeyError("a mistake")
        await prove(fetching)

    monkeypatch.setattr(Fetching, "_prove_positions", fail_first)
    leader.elect(log_of("a", "b", "c", "d"), 0, 3)
    assert take(consumer, 1) == [(3, b"d")]
    assert failed
    assert "it is tried again" in caplog.text


def test_a_truncated_log_is_read_from_where_it_began_to_differ(
    leader: Leader, consumer_of: Callable[..., Consumer]
) -> None:
    consumer = consumer_of()
    assert take(consumer, 3) == ABC
    leader.elect(log_of("a", "B", "C", "D"), 0, 1)
    assert take(consumer, 3) == [(1, b"B"), (2, b"C"), (3, b"D")]


def test_a_log_of_which_nobody_knows_where_it_differs_is_read_from_where_the_reset_says(
    leader: Leader, consumer_of: Callable[..., Consumer]
) -> None:
    consumer = consumer_of()
    assert take(consumer, 3) == ABC
    leader.elect(log_of("A", "B", "C", "D"), -1, -1)
    assert take(consumer, 2) == [(0, b"A"), (1, b"B")]


def test_without_a_reset_every_poll_tells_of_the_truncation_until_somebody_seeks(
    leader: Leader, consumer_of: Callable[..., Consumer]
) -> None:
    consumer = consumer_of(auto_offset_reset="none")
    assert take(consumer, 3) == ABC
    leader.elect(log_of("a", "B", "C", "D"), 0, 1)
    for _ in range(3):
        with pytest.raises(LogTruncated, match="the log was truncated: 3 was read") as raised:
            take(consumer, 1)
        assert (raised.value.partition, raised.value.offset, raised.value.divergent_offset) == (KEY, 3, 1)
        assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    consumer.seek(TOPIC, 0, 1)
    assert take(consumer, 3) == [(1, b"B"), (2, b"C"), (3, b"D")]


def test_what_was_fetched_of_a_truncated_log_and_not_read_is_fetched_again(
    leader: Leader, consumer_of: Callable[..., Consumer]
) -> None:
    consumer = consumer_of(auto_offset_reset="none")
    assert take(consumer, 1) == ABC[:1]
    leader.elect(log_of("a", "b", "C"), 0, 2)
    wait_until(lambda: 1 in leader.asked_offsets, "what was fetched is dropped", SECONDS)
    assert take(consumer, 2) == [(1, b"b"), (2, b"C")]


@pytest.mark.parametrize(
    "code", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_TOPIC_ID]
)
def test_an_error_that_may_pass_is_waited_out_ever_longer(
    leader: Leader, consumer_of: Callable[..., Consumer], code: ErrorCode
) -> None:
    errors = 0

    class Failing(dict[Any, int]):
        def pop(self, key: Any, default: Any = 0) -> int:
            nonlocal errors
            errors += 1
            return code if errors <= 6 else 0

    leader.fetch.errors = Failing()
    started = time.monotonic()
    assert take(consumer_of(retry_backoff_ms=20, retry_backoff_max_ms=1000), 3) == ABC
    # At once, then after 20, 40, 80, 160 and 320 ms, each a fifth shorter at most.
    assert time.monotonic() - started >= 0.8 * 0.620
    assert leader.metadata >= 6


def test_an_error_that_stays_is_raised_by_every_poll_and_asked_for_again(
    leader: Leader, consumer_of: Callable[..., Consumer]
) -> None:
    leader.fetch.errors[KEY] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    consumer = consumer_of()
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        take(consumer, 1)
    assert take(consumer, 3) == ABC
    leader.fetch.errors[KEY] = ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(
        UnreadableRecords, match="the records at offset 3 cannot be read: the broker found them corrupt"
    ):
        take(consumer, 1)


def test_a_broker_of_the_first_list_offsets_tells_beginnings_and_no_times(
    leader: Leader, consumer_of: Callable[..., Consumer]
) -> None:
    leader.highest = {ApiKey.LIST_OFFSETS: 0}
    consumer = consumer_of()
    assert consumer.beginning_offsets([KEY]) == {KEY: 2}
    with pytest.raises(BrokerError, match=r"from Kafka 0\.10\.1 on"):
        consumer.offsets_for_times({TopicPartition(*KEY): 5})


def test_messages_without_times_are_not_found_by_them(leader: Leader, consumer_of: Callable[..., Consumer]) -> None:
    leader.list_error = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert consumer_of().offsets_for_times({TopicPartition(*KEY): 5}) == {KEY: None}
