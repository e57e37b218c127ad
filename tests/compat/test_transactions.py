"""Transactional clients, unmodified: the scenario `transactions` of tests/compat/README.md with all that have it.

The test asks for each step, so that a second client, a kill or a restart of the broker comes exactly between two.
"""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException, Producer

from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.testing import Broker
from tests.compat.clients import NEW, ROOT, Client
from tests.compat.conftest import new_broker
from tests.compat.test_clients import create_topic, often
from tests.kit.brokers.process import BrokerProcess
from tests.kit.child_process import ChildProcess
from tests.kit.clients.transactions import committed
from tests.kit.clients.wire import WireClient

FENCED = re.compile(r"fenc|epoch", re.IGNORECASE)
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
PARTITIONS = 3
CLIENTS = [
    pytest.param(one, id=one.name, marks=often(one)) for one in NEW if "transactions" not in one.lacks
]  # fmt: skip
NEWER_GROUPS = [pytest.param(one, id=one.name) for one in NEW if one.name in ("confluent", "java-4.3")]


class Failed(Exception):
    """An error that the client library has raised."""


class TransactionalClient(ChildProcess):
    """One driver, which is told its steps one by one."""

    def __init__(self, client: Client, address: str):
        command = [*client.prepare(), "transactions", json.dumps({"bootstrap": address})]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)

    def ask(self, do: str, patience_s: float = 60, **arguments: Any) -> dict[str, Any]:
        self.tell(do, **arguments)
        return self.answer(patience_s)

    def tell(self, do: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def answer(self, timeout_s: float = 60) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.answers.get(timeout=timeout_s))
        except queue.Empty:
            self.kill()
            assert self.process.stderr is not None
            raise AssertionError(f"no answer in {timeout_s} s\n{self.process.stderr.read()[-2000:]}") from None
        if not found.pop("ok"):
            raise Failed(found["error"])
        return found

    def begin_with(self, topic: str, *values: str) -> None:
        """Begin a transaction and send these values, one to each partition in turn."""
        self.ask("begin")
        for number, value in enumerate(values):
            self.ask("send", topic=topic, partition=number % PARTITIONS, value=value)

    def read(self, topic: str, count: int, isolation: str = COMMITTED, partitions: int = PARTITIONS) -> list[list[str]]:
        """Return the values by partition: wait for `count` of them, then a little longer for more."""
        asked = {"isolation": isolation, "partitions": partitions, "timeout_s": 30 if count else 1, "more_ms": 300}
        found = self.ask("read", topic=topic, count=count, **asked)["values"]
        return [found[str(partition)] for partition in range(partitions)]


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    chosen: Client = request.param
    return chosen


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """A broker that often checks whether a transaction has timed out."""
    with new_broker(SETTINGS) as started:
        yield started


SETTINGS: dict[str, object] = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "group.initial.rebalance.delay.ms": 0,
}


def new_id() -> str:
    return f"id-{uuid4().hex[:12]}"


def send_plainly(broker: BrokerProcess, topic: str, partition: int, *values: str) -> None:
    """Send values with a producer without transactions."""
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value.encode(), partition=partition)
    assert producer.flush(30) == 0


def test_a_transaction_is_seen_when_it_is_committed_and_never_when_it_is_aborted(
    client: Client, broker: BrokerProcess
) -> None:
    topic = create_topic(broker, PARTITIONS)
    with TransactionalClient(client, broker.address) as one:
        one.ask("init", id=new_id(), timeout_ms=30000)
        one.begin_with(topic, "a", "b", "c", "d")
        assert one.read(topic, 0) == [[], [], []]
        assert one.read(topic, 4, UNCOMMITTED) == [["a", "d"], ["b"], ["c"]]
        one.ask("commit")
        assert one.read(topic, 4) == [["a", "d"], ["b"], ["c"]]
        one.begin_with(topic, "x", "y", "z")
        one.ask("abort")
        one.begin_with(topic, "e", "f")
        one.ask("commit")
        assert one.read(topic, 6) == [["a", "d", "e"], ["b", "f"], ["c"]]
        assert one.read(topic, 9, UNCOMMITTED) == [["a", "d", "x", "e"], ["b", "y", "f"], ["c", "z"]]


def test_what_others_send_meanwhile_is_read_in_its_order_when_the_transaction_is_over(
    client: Client, broker: BrokerProcess
) -> None:
    topic = create_topic(broker, PARTITIONS)
    with TransactionalClient(client, broker.address) as one, TransactionalClient(client, broker.address) as other:
        for each in (one, other):
            each.ask("init", id=new_id(), timeout_ms=30000)
        send_plainly(broker, topic, 0, "p1")
        one.begin_with(topic, "a1")
        send_plainly(broker, topic, 0, "p2")
        other.begin_with(topic, "x1")
        one.ask("send", topic=topic, partition=0, value="a2")
        send_plainly(broker, topic, 0, "p3")
        assert one.read(topic, 1)[0] == ["p1"]
        other.ask("abort")
        assert one.read(topic, 1)[0] == ["p1"]
        one.ask("commit")
        assert one.read(topic, 5)[0] == ["p1", "a1", "p2", "a2", "p3"]
        assert one.read(topic, 6, UNCOMMITTED)[0] == ["p1", "a1", "p2", "x1", "a2", "p3"]


def test_a_second_producer_of_the_same_id_fences_the_first(client: Client, broker: BrokerProcess) -> None:
    topic, transactional_id = create_topic(broker, PARTITIONS), new_id()
    with TransactionalClient(client, broker.address) as first, TransactionalClient(client, broker.address) as second:
        first.ask("init", id=transactional_id, timeout_ms=30000)
        first.begin_with(topic, "x1", "x2")
        second.ask("init", id=transactional_id, timeout_ms=30000)
        second.begin_with(topic, "a")
        second.ask("commit")  # what the first had begun is aborted
        assert second.read(topic, 1) == [["a"], [], []]
        with pytest.raises(Failed, match=FENCED):
            first.ask("send", topic=topic, partition=0, value="x3")
            first.ask("commit")
        second.begin_with(topic, "b")
        second.ask("commit")
        assert second.read(topic, 2) == [["a", "b"], [], []]


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(
    client: Client, broker: BrokerProcess
) -> None:
    topic = create_topic(broker, PARTITIONS)
    with TransactionalClient(client, broker.address) as one, TransactionalClient(client, broker.address) as reader:
        one.ask("init", id=new_id(), timeout_ms=1500)
        one.begin_with(topic, "x1", "x2")
        send_plainly(broker, topic, 0, "p")
        assert reader.read(topic, 1) == [["p"], [], []]  # it waits for that
        with pytest.raises(Failed):
            one.ask("commit")
        assert reader.read(topic, 3, UNCOMMITTED) == [["x1", "p"], ["x2"], []]
        assert reader.read(topic, 1) == [["p"], [], []]


def test_the_transaction_of_a_killed_client_is_aborted_by_the_next_of_its_id(
    client: Client, broker: BrokerProcess
) -> None:
    topic, transactional_id = create_topic(broker, PARTITIONS), new_id()
    with TransactionalClient(client, broker.address) as killed, TransactionalClient(client, broker.address) as next_one:
        killed.ask("init", id=transactional_id, timeout_ms=60000)
        killed.begin_with(topic, "a")
        killed.ask("commit")
        killed.begin_with(topic, "x1", "x2")
        killed.kill()
        assert next_one.read(topic, 1) == [["a"], [], []]
        next_one.ask("init", id=transactional_id, timeout_ms=60000)
        next_one.begin_with(topic, "b", "c")
        next_one.ask("commit")
        assert next_one.read(topic, 3) == [["a", "b"], ["c"], []]


def test_offsets_and_outputs_are_kept_together_or_not_at_all(client: Client, broker: BrokerProcess) -> None:
    move_twice(client, broker)


@pytest.mark.parametrize("client", NEWER_GROUPS, indirect=True)
def test_members_of_the_newer_protocol_keep_offsets_and_outputs_together(client: Client, broker: BrokerProcess) -> None:
    group = move_twice(client, broker, protocol="consumer")
    with WireClient("127.0.0.1", broker.port) as asked:
        (found,) = asked.call(
            ApiKey.CONSUMER_GROUP_DESCRIBE, 1, M.ConsumerGroupDescribeRequest(group_ids=[group])
        ).groups
    assert not found.error_code and found.group_epoch > 0


def move_twice(client: Client, broker: BrokerProcess, **more: str) -> str:
    """Move records in a committed, then in an aborted transaction; the next member goes on behind the committed one.

    Return the group.
    """
    source, target, group = create_topic(broker, 1), create_topic(broker, 1), f"g-{uuid4().hex[:8]}"
    send_plainly(broker, source, 0, *(f"r{number}" for number in range(9)))
    reading = {"group": group, "source": source, "timeout_ms": 30000, **more}
    with TransactionalClient(client, broker.address) as first, TransactionalClient(client, broker.address) as second:
        first.ask("init", id=new_id(), **reading)
        for ending, values in (("commit", ["r0", "r1", "r2"]), ("abort", ["r3", "r4"])):
            first.ask("begin")
            assert first.ask("move", topic=target, count=len(values))["values"] == values
            first.ask(ending)
        first.ask("leave")
        second.ask("init", id=new_id(), **reading)
        second.ask("begin")
        assert second.ask("move", topic=target, count=4)["values"] == ["r3", "r4", "r5", "r6"]
        second.ask("commit")
        assert second.read(target, 7, partitions=1) == [[f"r{number}!" for number in range(7)]]
    return group


def test_undecided_offsets_are_waited_for(client: Client, broker: BrokerProcess) -> None:
    """The next member is not told an offset that a killed one may yet commit: it begins when that has timed out."""
    source, target, group = create_topic(broker, 1), create_topic(broker, 1), f"g-{uuid4().hex[:8]}"
    send_plainly(broker, source, 0, "r0", "r1", "r2")
    reading = {"group": group, "source": source}
    with TransactionalClient(client, broker.address) as killed, TransactionalClient(client, broker.address) as next_one:
        killed.ask("init", id=new_id(), timeout_ms=4000, **reading)
        killed.ask("begin")
        killed.ask("move", topic=target, count=1)
        killed.kill()
        next_one.ask("init", id=new_id(), timeout_ms=10000, **reading)
        next_one.ask("begin")
        assert next_one.ask("move", topic=target, count=2, patience_s=90)["values"] == ["r0", "r1"]
        next_one.ask("commit")
        assert next_one.read(target, 2, partitions=1) == [["r0!", "r1!"]]


def test_a_client_of_kafka_4_has_an_epoch_for_each_transaction() -> None:
    """The client uses transactions of version 2: it writes to partitions without adding them first."""
    (client,) = (one for one in NEW if one.name == "java-4.3")
    with new_broker({**SETTINGS, "kbroker.http.address": "127.0.0.1:0"}) as broker:
        source, target, name = create_topic(broker, 1), create_topic(broker, 1), new_id()
        send_plainly(broker, source, 0, *(f"r{number}" for number in range(9)))
        with TransactionalClient(client, broker.address) as one:
            one.ask("init", id=name, group=f"g-{uuid4().hex[:8]}", source=source, timeout_ms=30000)
            for epoch, ending in enumerate(("commit", "abort", "commit")):
                one.ask("begin")
                one.ask("move", topic=target, count=2)
                assert epoch_of(broker, name) == epoch
                one.ask(ending)
        assert epoch_of(broker, name) == 3
        counts = requests(broker)
        assert counts["EndTxn"] >= 3 and counts["TxnOffsetCommit"] >= 3
        assert counts.keys().isdisjoint({"AddPartitionsToTxn", "AddOffsetsToTxn"})


def requests(broker: BrokerProcess) -> dict[str, float]:
    """Return how many requests the broker has received, by API."""
    served = re.search(r"on (http://127\.0\.0\.1:\d+)", broker.output)
    assert served is not None, broker.output
    with urllib.request.urlopen(f"{served[1]}/metrics", timeout=30) as answer:
        found = re.findall(r'^kbroker_requests_total\{api="(\w+)"\} (\S+)$', answer.read().decode(), re.MULTILINE)
    return {api: float(count) for api, count in found if float(count)}


def epoch_of(broker: BrokerProcess, transactional_id: str) -> int:
    asked = M.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    with WireClient("127.0.0.1", broker.port) as client:
        (found,) = client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, asked).transaction_states
    return int(found.producer_epoch)


@pytest.mark.timeout(600)
def test_a_broker_that_is_killed_before_any_step_changes_nothing(client: Client) -> None:
    """The broker is killed before each step of two transactions, of which the first is aborted."""
    with new_broker(SETTINGS) as broker:
        topic = create_topic(broker, PARTITIONS)

        def killed() -> None:
            broker.kill()
            broker.start()

        with TransactionalClient(client, broker.address) as one:
            killed()
            one.ask("init", id=new_id(), timeout_ms=600000)
            for ending, prefix in (("abort", "x"), ("commit", "a")):
                killed()
                one.ask("begin")
                for partition in range(PARTITIONS):
                    killed()
                    one.ask("send", topic=topic, partition=partition, value=f"{prefix}{partition}")
                killed()
                one.ask(ending)
            killed()
            assert one.read(topic, 3) == [["a0"], ["a1"], ["a2"]]
            assert one.read(topic, 6, UNCOMMITTED) == [["x0", "a0"], ["x1", "a1"], ["x2", "a2"]]


@pytest.fixture(scope="module")
def mixed_topic(broker: BrokerProcess) -> tuple[str, list[list[str]]]:
    """Make a topic of many transactions of several producers in small segments, a third of them aborted.

    Return the committed values, too.
    """
    topic = create_topic(broker, 2, **{"segment.bytes": "16384"})
    names = ["none", "gzip", "snappy", "lz4"]  # what every client reads
    settings = {"bootstrap.servers": broker.address, "linger.ms": 0}
    producers = [Producer(settings | {"transactional.id": new_id(), "compression.type": name}) for name in names]
    expected: list[list[str]] = [[], []]
    for producer in producers:
        producer.init_transactions(30)
    for turn in range(60):
        for producer in producers:
            producer.begin_transaction()
        for number in range(6):
            for at, producer in enumerate(producers):
                value, partition = f"{turn}.{at}.{number}." + "v" * (number * 40), (turn + number) % 2
                producer.produce(topic, value.encode(), partition=partition)
                producer.flush(30)
                if (turn + at) % 3:
                    expected[partition].append(value)
        for at, producer in enumerate(producers):
            if (turn + at) % 3:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)
        if turn % 5 == 0:
            send_plainly(broker, topic, 0, f"plain {turn}")
            expected[0].append(f"plain {turn}")
    return topic, expected


def test_committed_records_are_read_whole_and_in_order_between_aborted_ones(
    client: Client, broker: BrokerProcess, mixed_topic: tuple[str, list[list[str]]]
) -> None:
    topic, expected = mixed_topic
    with TransactionalClient(client, broker.address) as one:
        found = one.read(topic, sum(map(len, expected)), partitions=2)
    if "overlapping aborts" in client.lacks:
        found = [[value for value in values if value in known] for values, known in zip(found, expected, strict=True)]
    assert found == expected


def test_a_transaction_after_one_that_was_aborted_without_an_answer_is_not_taken_for_it() -> None:
    """librdkafka uses the sequences of a batch again that it purges while it waits to send it a second time."""
    with Broker(faults=True) as broker:
        topic = f"purged-{uuid4()}"
        broker.create_topic(topic, PARTITIONS)
        backoff = {"retry.backoff.ms": 1000, "retry.backoff.max.ms": 1000}
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic, **backoff})

        def send(*values: str) -> None:
            producer.begin_transaction()
            for value in values:
                producer.produce(topic, value, partition=0)

        producer.init_transactions(30)
        send("a1", "a2")
        producer.commit_transaction(30)
        lost = broker.faults.drop("Produce", handled=True)
        send("b1", "b2")
        while not lost.struck:
            producer.poll(0.01)
        producer.abort_transaction(30)
        send("c1", "c2")
        with pytest.raises(KafkaException) as refused:
            producer.commit_transaction(30)
        assert refused.value.args[0].txn_requires_abort()
        producer.abort_transaction(30)
        send("d1", "d2")
        producer.commit_transaction(30)
        assert committed(broker, topic)[0] == ["a1", "a2", "d1", "d2"]
