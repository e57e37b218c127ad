"""One process of clients of the transaction rounds, in a thread each: confluent-kafka, unmodified, and one of our own.

`python -m tests.crash.transaction_clients '<json>'` goes on until its standard input ends, then finishes what is begun.
A client that fails for good begins another life, as a program would that is started again.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.kit.clients.epoch_producer import EpochProducer, Refused, Unanswered
from tests.kit.crash.transaction_journal import Journal

IN, LOG, OUT = "in", "log", "out"
PARTITIONS = 3
GROUP = "movers"
ABORTED_SHARE = 0.2
OVERDUE_SHARE = 0.01
"""The share of transactions that are left open until they time out."""
MOST_ERRORS_S = 8.0
FINISH_S = 35.0
"""Every call of the client library has a shorter timeout, as have two calls together that hang and are left alone."""
CLOSE_ENDS_S = 12
"""SIGALRM ends the process if a consumer's close keeps the interpreter's lock so long. Where confluent-kafka gives up
an assignment, it waits for librdkafka with the lock held, and may wait for ever (see `Client.leave_alone`)."""
FIRST = 0
"""Where readers begin. Nothing is deleted, so that nobody has to ask for it. librdkafka 2.16 goes back to the beginning
long after it has asked for it if the answer is late, whatever has been read or sought meanwhile: an answer that is
outdated, or a former leader's, makes it ask again."""
COMMON: dict[str, Any] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
}


class Client(threading.Thread):
    """A client.

    `live` is one life: it returns when the client is to stop, and raises KafkaException if it cannot go on.
    """

    def __init__(self, settings: dict[str, Any], name: str, journal: Journal, stop: threading.Event):
        super().__init__(name=name, daemon=True)
        self.settings, self.client_name, self.journal, self.stopping = settings, name, journal, stop
        self.chance = random.Random(f"{settings['seed']} {name} {settings['life']}")
        self.life = 0
        self.count = 0
        self.stretch = 0

    @property
    def full_name(self) -> str:
        """The name of the client in this life. Both the process and the client may have been started several times."""
        return f"{self.client_name}.{self.settings['life']}.{self.life}"

    def live(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        while not self.stopping.is_set():
            self.life += 1
            self.journal.write("note", what="begins", client=self.full_name)
            try:
                self.live()
            except (KafkaException, SystemError) as error:
                # A fatal error is a SystemError where it is raised within a callback.
                self.journal.write("note", client=self.full_name, what=str(error.__cause__ or error))
                self.stopping.wait(self.chance.uniform(0.01, 0.2))
        self.journal.write("note", what="ends", client=self.full_name)

    def leave_alone(self, step: Callable[[], object], name: str, seconds: float = MOST_ERRORS_S + 6) -> None:
        """Do a step in another thread, as it may never return.

        After lost connections librdkafka's send_offsets_to_transaction sometimes does not return, whatever its timeout
        (against Apache Kafka too). Its close does not return when a rebalance was due while no coordinator was known:
        the group's part ends without an answer to the rebalance's callback, and asks no broker for anything. Once it
        did not return for a reader without a group either, though all brokers were killed and came back meanwhile, so
        that no request was left to wait for. Then this life of the client is over, and the next one fences it.
        """
        failed: list[Exception] = []

        def run() -> None:
            try:
                step()
            except (KafkaException, SystemError) as error:
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{name} hangs"))
        if failed:
            raise failed[0]

    # --- producing --------------------------------------------------------------------------------------
    def new_producer(self, **more: Any) -> Producer:
        return Producer(
            {**COMMON, "bootstrap.servers": self.settings["bootstrap"], "acks": "all", "enable.idempotence": True}
            | {"linger.ms": self.chance.choice((0, 1, 5)), "socket.timeout.ms": 2500, **more}
        )

    def new_transactional_producer(self) -> Producer:
        producer = self.new_producer(
            **{"transactional.id": self.client_name, "transaction.timeout.ms": self.settings["timeout_ms"]}
        )
        self.insist(lambda: producer.init_transactions(5))
        return producer

    def insist(self, step: Callable[[], object]) -> None:
        """Do a step, again as long as the client library says that it can be retried."""
        deadline = time.monotonic() + MOST_ERRORS_S
        while True:
            try:
                step()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
                self.journal.write("note", client=self.full_name, what=f"again: {error}")

    def begin(self, producer: Producer) -> str:
        self.count += 1
        name = f"{self.full_name}.{self.count}"
        self.journal.write("begin", transaction=name, client=self.full_name)
        producer.begin_transaction()
        return name

    def send(self, producer: Producer, transaction: str, topic: str, partition: int, number: int) -> None:
        value = f"{transaction}.{number}"
        self.journal.write("send", transaction=transaction, place=[topic, partition], value=value)
        while True:
            try:
                producer.produce(topic, value.encode(), value.encode(), partition, on_delivery=self.delivered)
                return
            except BufferError:
                producer.poll(0.05)

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        if error is None and value is not None:
            self.journal.write("sent", value=value.decode(), offset=message.offset())

    def abort(self, producer: Producer, transaction: str) -> None:
        # A batch whose answer was lost is dropped by librdkafka 2.16 when its transaction is aborted, and its sequence
        # numbers are given to the next transaction's: the broker, Apache Kafka too, takes those for the same batch.
        if producer.flush(MOST_ERRORS_S):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "batches in doubt"))
        self.insist(lambda: producer.abort_transaction(5))
        self.journal.write("end", transaction=transaction, outcome="aborted")

    def end(self, producer: Producer, transaction: str, step: Callable[[], object], is_wanted: bool) -> bool:
        """Do `step` and then the commit, if it is wanted. Return whether the transaction was committed."""
        try:
            step()
            if is_wanted:
                self.journal.write("commit", transaction=transaction)
                self.insist(lambda: producer.commit_transaction(5))
                self.journal.write("end", transaction=transaction, outcome="committed")
                return True
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.journal.write("note", client=self.full_name, what=str(error))
        self.abort(producer, transaction)
        return False

    # --- consuming --------------------------------------------------------------------------------------
    def new_consumer(self, **more: Any) -> Consumer:
        self.stretch += 1
        return Consumer(
            {**COMMON, "bootstrap.servers": self.settings["bootstrap"], "group.id": f"only-{self.client_name}"}
            | {"enable.auto.commit": False, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50}
            | {"fetch.queue.backoff.ms": 5, "session.timeout.ms": 6000, **more}
        )

    def poll(self, consumer: Consumer, most: int, is_committed: bool = True) -> list[Message]:
        began = time.monotonic_ns()
        messages = []
        for message in consumer.consume(most, 0.1):
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.fatal() or not error.retriable():
                raise KafkaException(error)
        if messages:
            records = [
                (message.topic(), message.partition(), message.offset(), (message.value() or b"").decode())
                for message in messages
            ]
            self.journal.write(
                "poll", client=self.full_name, stretch=self.stretch, began=began, records=records,
                is_committed=is_committed,
            )  # fmt: skip
        return messages


class Writer(Client):
    """Writes small transactions over several partitions. Some are aborted, some left open until they time out."""

    def live(self) -> None:
        producer = self.new_transactional_producer()
        while not self.stopping.is_set():
            transaction = self.begin(producer)
            step = partial(self.write, producer, transaction)
            self.end(producer, transaction, step, self.chance.random() >= ABORTED_SHARE)
            time.sleep(self.chance.uniform(0, 0.02))

    def write(self, producer: Producer, transaction: str) -> None:
        chance = self.chance
        for number in range(chance.randint(1, 6)):
            self.send(producer, transaction, chance.choice((IN, IN, LOG)), chance.randrange(PARTITIONS), number)
            if chance.random() < 0.3:
                producer.flush(chance.uniform(0, 0.05))
        if chance.random() < OVERDUE_SHARE:
            self.stopping.wait(self.settings["timeout_ms"] / 1000 + 1)


class EpochWriter(Client):
    """Writes as a Writer does, but with an epoch for each transaction (KIP-890), which librdkafka does not speak."""

    def live(self) -> None:
        port = int(self.settings["bootstrap"].rpartition(":")[2])
        producer = EpochProducer(port, self.client_name, self.settings["timeout_ms"], MOST_ERRORS_S / 2)
        try:
            producer.init()
            while not self.stopping.is_set():
                self.write(producer)
                time.sleep(self.chance.uniform(0, 0.02))
        except (Refused, Unanswered) as error:
            raise KafkaException(KafkaError(KafkaError._FATAL, str(error))) from error
        finally:
            producer.close()

    def write(self, producer: EpochProducer) -> None:
        chance = self.chance
        self.count += 1
        transaction = f"{self.full_name}.{self.count}"
        self.journal.write("begin", transaction=transaction, client=self.full_name)
        for number in range(chance.randint(1, 6)):
            topic, partition = chance.choice((IN, IN, LOG)), chance.randrange(PARTITIONS)
            value = f"{transaction}.{number}"
            self.journal.write("send", transaction=transaction, place=[topic, partition], value=value)
            offset = producer.send(topic, partition, [value.encode()], key=value.encode())
            self.journal.write("sent", value=value, offset=offset)
        if chance.random() < OVERDUE_SHARE:
            self.stopping.wait(self.settings["timeout_ms"] / 1000 + 1)
        commit = chance.random() >= ABORTED_SHARE
        if commit:
            self.journal.write("commit", transaction=transaction)
        producer.end(commit)
        self.journal.write("end", transaction=transaction, outcome="committed" if commit else "aborted")


class Plain(Client):
    """An idempotent producer without transactions, which writes between the transactions of the others."""

    def live(self) -> None:
        # What librdkafka does about its producer id and its sequence numbers is told, for it has hung in doing it.
        producer = self.new_producer(debug="eos", log_level=7, **{"max.in.flight": self.settings["most_in_flight"]})
        while not self.stopping.is_set():
            self.count += 1
            name = f"{self.full_name}.{self.count}"
            self.journal.write("begin", transaction=name, client=self.full_name)
            self.journal.write("commit", transaction=name)  # there is none: it may be read when it is sent
            self.send(producer, name, self.chance.choice((IN, LOG)), self.chance.randrange(PARTITIONS), 0)
            producer.poll(self.chance.uniform(0, 0.03))
        producer.flush(30)

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        super().delivered(error, message)
        value = message.value()
        if error is None and value is not None:
            transaction = value.decode().rpartition(".")[0]
            self.journal.write("end", transaction=transaction, outcome="committed")


class Mover(Client):
    """A member of a group that makes one output of each input, in one transaction with the offsets of its input."""

    def live(self) -> None:
        producer = self.new_transactional_producer()
        consumer = self.new_consumer(**{"group.id": GROUP, "isolation.level": "read_committed"})
        try:
            consumer.subscribe([IN], on_assign=self.assigned, on_revoke=self.revoked)
            while not self.stopping.is_set():
                messages = self.poll(consumer, self.chance.randint(1, 20))
                if messages and not self.move(producer, consumer, messages):
                    self.go_back(consumer)
        finally:
            signal.alarm(CLOSE_ENDS_S)
            try:
                self.leave_alone(consumer.close, "close", MOST_ERRORS_S)
            finally:
                signal.alarm(0)

    def assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self.stretch += 1
        consumer.assign(self.ask_offsets(consumer, places))

    def revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self.stretch += 1

    def ask_offsets(self, consumer: Consumer, places: list[TopicPartition]) -> list[TopicPartition]:
        """Return where to go on in these partitions: the group's offsets, and 0 where it has none."""
        began = time.monotonic_ns()
        found: list[TopicPartition] = []
        self.insist(lambda: found.extend(consumer.committed(places, 5)))
        for one in found:
            if one.error is not None:
                raise KafkaException(one.error)
            offset = max(one.offset, -1)  # the client's number for no offset is another
            place = [one.topic, one.partition]
            self.journal.write("offset", group=GROUP, place=place, offset=offset, began=began)
        return [TopicPartition(one.topic, one.partition, max(one.offset, FIRST)) for one in found]

    def go_back(self, consumer: Consumer) -> None:
        self.stretch += 1
        places = consumer.assignment()
        for one in self.ask_offsets(consumer, places) if places else []:
            self.insist(lambda one=one: consumer.seek(one))

    def move(self, producer: Producer, consumer: Consumer, messages: list[Message]) -> bool:
        transaction = self.begin(producer)
        records = [(m.topic(), m.partition(), m.offset(), (m.value() or b"").decode()) for m in messages]
        ends = {(topic, partition): offset + 1 for topic, partition, offset, _ in records}
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]

        def step() -> None:
            for number, message in enumerate(messages):
                self.send(producer, transaction, OUT, message.partition() or 0, number)
            self.journal.write(
                "use", transaction=transaction, group=GROUP, records=records,
                offsets=[(one.topic, one.partition, one.offset) for one in offsets],
            )  # fmt: skip
            group = consumer.consumer_group_metadata()
            send = partial(producer.send_offsets_to_transaction, offsets, group, 5)
            self.leave_alone(lambda: self.insist(send), "send_offsets_to_transaction")

        return self.end(producer, transaction, step, self.chance.random() >= ABORTED_SHARE / 2)


class Reader(Client):
    """Reads everything in order, and now and then again from an earlier offset."""

    is_committed = True
    isolation = "read_committed"

    def live(self) -> None:
        consumer = self.new_consumer(**{"isolation.level": self.isolation})
        places = [(topic, partition) for topic in (IN, LOG, OUT) for partition in range(PARTITIONS)]
        consumer.assign([TopicPartition(*place, FIRST) for place in places])
        try:
            while not self.stopping.is_set():
                messages = self.poll(consumer, self.chance.choice((1, 10, 500)), self.is_committed)
                if messages and self.chance.random() < 0.02:
                    self.stretch += 1
                    back = self.chance.choice(messages)
                    offset = self.chance.randint(0, back.offset() or 0)
                    place = TopicPartition(back.topic() or "", back.partition() or 0, offset)
                    self.insist(lambda place=place: consumer.seek(place))
        finally:
            self.leave_alone(consumer.close, "close", MOST_ERRORS_S)


class DirtyReader(Reader):
    """A Reader with read_uncommitted."""

    is_committed = False
    isolation = "read_uncommitted"


class LyingReader(Reader):
    """Claims to be read_committed and is not: the checker must find the anomalies that it sees."""

    isolation = "read_uncommitted"


KINDS: dict[str, type[Client]] = {
    kind.__name__: kind for kind in (Writer, EpochWriter, Plain, Mover, Reader, DirtyReader, LyingReader)
}


def main(settings: dict[str, Any]) -> None:
    faulthandler.register(signal.SIGQUIT)
    journal = Journal(Path(settings["journal"]))
    stop = threading.Event()
    clients = [KINDS[kind](settings, name, journal, stop) for name, kind in settings["clients"].items()]
    for client in clients:
        client.start()
    sys.stdin.read()
    stop.set()
    deadline = time.monotonic() + FINISH_S
    for client in clients:
        client.join(max(0, deadline - time.monotonic()))
    hanging = [client for client in clients if client.is_alive()]
    for client in hanging:
        frame = sys._current_frames().get(client.ident or 0)
        where = traceback.extract_stack(frame)[-1] if frame else None
        print(f"{client.full_name} hangs in {where.line if where else '?'}", file=sys.stderr, flush=True)
    sys.stderr.flush()
    os._exit(1 if hanging else 0)  # nothing waits for what was left alone


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
