"""`kbroker perf latency`: one message at a time, until it is acknowledged or has been read again."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from kbroker.cli.client_options import client_options, make_client
from kbroker.cli.histogram import Histogram
from kbroker.cli.pace import Pace
from kbroker.cli.perf_payload import Payload, values_of
from kbroker.cli.perf_produce import LAST_WORDS_S, producers_of, tenth
from kbroker.cli.perf_report import Clock, Finding
from kbroker.cli.progress import Progress
from kbroker.client.config.consumer import CONSUMER
from kbroker.client.consumer.consumer import Consumer
from kbroker.client.errors import TimedOut
from kbroker.client.producer.producer import Producer
from kbroker.model import TopicPartition

NONCE_SIZE = 8
LOOKS_EVERY_S = 0.2  #: how often to check whether a message failed that has not come back

LATENCY_OF = "from when a message is sent until it is acknowledged"
LATENCY_OF_READ = "from when a message is sent until a consumer has it"
LATENCY_OF_RATE = "from when a message was due until it is acknowledged"
LATENCY_OF_RATE_READ = "from when a message was due until a consumer has it"


def latency_of(arguments: argparse.Namespace) -> str:
    if arguments.rate is None:
        return LATENCY_OF_READ if arguments.end_to_end else LATENCY_OF
    return LATENCY_OF_RATE_READ if arguments.end_to_end else LATENCY_OF_RATE


def measure(arguments: argparse.Namespace, partitions: Sequence[int], shown: bool) -> Finding:
    values = values_of(arguments)
    with ExitStack() as stack:
        (producer,) = producers_of(arguments, values, 1, stack)
        try:
            producer.await_topic(arguments.topic)
            way: _Acknowledged = _Acknowledged(producer, arguments, partitions)
            if arguments.end_to_end:
                options = client_options(arguments, CONSUMER, enable_auto_commit=False, allow_auto_create_topics=False)
                way = _Read(producer, arguments, partitions, stack.enter_context(make_client(Consumer, options)))
            load = OneByOne(way.send, Payload(values, 1), arguments.rate)
            if arguments.warm_up:
                warm_up = load.run(tenth(arguments.messages), arguments.warm_up, Progress(None, False))
                warm_up.raise_if_interrupted()
            average = sum(map(len, values)) / len(values)
            total = None if arguments.messages is None else int(arguments.messages * average)
            progress = Progress(total, shown)
            finding = load.run(arguments.messages, arguments.seconds, progress)
        except BaseException:
            producer.close(LAST_WORDS_S)
            raise
        progress.finish()
    return finding


class OneByOne:
    """A load of one message at a time: `send` returns when its message was acknowledged or read."""

    def __init__(self, send: Callable[[bytes], None], payload: Payload, rate: float | None):
        self._send = send
        self._payload = payload
        self._rate = rate

    def run(self, messages: int | None, seconds: float | None, progress: Progress) -> Finding:
        latency = Histogram()
        clock = Clock()
        pace = Pace(clock.started_ns, messages, seconds, self._rate)
        sent = size = 0
        interrupted = False
        try:
            while pace.await_due(sent, 1):
                (value,) = self._payload.next_values(1)
                due_ns = pace.due_ns(sent)
                self._send(value)
                latency.add(time.perf_counter_ns() - due_ns)
                sent += 1
                size += len(value)
                progress.add_messages(1)
                progress.add_bytes(len(value))
        except KeyboardInterrupt:
            interrupted = True
        return clock.finding(
            sent, size, latency=latency, not_sent=0 if interrupted else pace.not_sent(sent), interrupted=interrupted
        )


class _Acknowledged:
    """Sends a message and waits for its acknowledgement. Each goes to the next partition."""

    def __init__(self, producer: Producer, arguments: argparse.Namespace, partitions: Sequence[int]):
        self._producer = producer
        self._topic: str = arguments.topic
        self._partitions = partitions
        self._sent = 0

    def send(self, value: bytes) -> None:
        self._producer.send(self._topic, value, partition=self._next_partition()).result()

    def _next_partition(self) -> int:
        self._sent += 1
        return self._partitions[self._sent % len(self._partitions)]


class _Read(_Acknowledged):
    """Sends a message and waits until a consumer has read it. Other messages in the topic are ignored."""

    def __init__(
        self, producer: Producer, arguments: argparse.Namespace, partitions: Sequence[int], consumer: Consumer
    ):
        super().__init__(producer, arguments, partitions)
        self._consumer = consumer
        self._timeout_s: float = arguments.timeout
        self._nonce = os.urandom(NONCE_SIZE)
        consumer.assign(consumer.end_offsets([TopicPartition(self._topic, each) for each in partitions]))

    def send(self, value: bytes) -> None:
        partition = self._next_partition()
        key = self._nonce + self._sent.to_bytes(NONCE_SIZE, "big")
        delivery = self._producer.send(self._topic, value, key, partition=partition)
        until = time.monotonic() + self._timeout_s
        while not any(record.key == key for record in self._consumer.poll(LOOKS_EVERY_S)):
            if delivery.done():
                delivery.result()  # it may have failed
            if time.monotonic() >= until:
                raise TimedOut(
                    f"a message that was sent to {self._topic}-{partition} has not come back after "
                    f"{self._timeout_s:g} s"
                )
