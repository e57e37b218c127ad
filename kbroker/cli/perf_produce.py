"""`kbroker perf produce`: how many messages a broker takes, at full speed or at a rate, and when it acknowledges."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from kbroker._core.client.producer.delivery import Deliveries, Delivery
from kbroker.cli.client_options import client_options, make_client
from kbroker.cli.histogram import Histogram
from kbroker.cli.pace import Pace
from kbroker.cli.perf_payload import Payload, values_of
from kbroker.cli.perf_report import Clock, Finding
from kbroker.cli.progress import Progress
from kbroker.client.config.producer import PRODUCER
from kbroker.client.errors import TimedOut
from kbroker.client.producer.producer import Producer

PORTION_BYTES = 64 << 10
PORTION_MESSAGES = 1000
ROOM = 1 << 10  #: bytes of a batch besides its values
LAST_WORDS_S = 1.0  #: how long messages under way are waited for after a failure
LATENCY_OF = "from when a message is handed to the client until it and those handed over with it are acknowledged"
LATENCY_OF_RATE = "from when a message was due until it is acknowledged"


def latency_of(arguments: argparse.Namespace) -> str:
    return LATENCY_OF if arguments.rate is None else LATENCY_OF_RATE


def producers_of(
    arguments: argparse.Namespace, values: Sequence[bytes], count: int, stack: ExitStack
) -> list[Producer]:
    """Make `count` producers, which `stack` closes."""
    timeout_ms = int(arguments.timeout * 1000)
    largest = max(map(len, values)) + ROOM
    request = PRODUCER["max.request.size"].default
    memory = PRODUCER["buffer.memory"].default
    options = client_options(
        arguments,
        PRODUCER,
        acks=arguments.acks,
        compression_type=arguments.compression,
        max_request_size=max(request, largest),
        buffer_memory=max(memory, 4 * largest),
        delivery_timeout_ms=timeout_ms,
        max_block_ms=timeout_ms,
    )
    return [stack.enter_context(make_client(Producer, options)) for _ in range(count)]


def measure(arguments: argparse.Namespace, partitions: Sequence[int], shown: bool) -> Finding:
    values = values_of(arguments)
    average = sum(map(len, values)) / len(values)
    portion = max(1, min(PORTION_MESSAGES, int(PORTION_BYTES / max(average, 1))))
    with ExitStack() as stack:
        producers = producers_of(arguments, values, arguments.producers, stack)
        finding: Finding | None = None
        try:
            for producer in producers:
                producer.await_topic(arguments.topic)
            load = _Load(producers, arguments, partitions, Payload(values, portion), portion)
            if arguments.warm_up:
                warm_up = load.run(tenth(arguments.messages), arguments.warm_up, Progress(None, False))
                warm_up.raise_if_interrupted()
            total = None if arguments.messages is None else int(arguments.messages * average)
            progress = Progress(total, shown)
            finding = load.run(arguments.messages, arguments.seconds, progress)
        finally:
            if finding is None or finding.interrupted:
                for producer in producers:
                    producer.close(LAST_WORDS_S)
        progress.finish()
        return finding


def tenth(messages: int | None) -> int | None:
    return None if messages is None else max(1, messages // 10)


class _Portion(NamedTuple):
    """Messages that are handed to the client together."""

    messages: int
    size: int  #: bytes of their values
    due_ns: int


class _Load:
    """Hands portions of messages to the producers: each portion goes to one partition, the next portion to the next.

    A callback waits for the acknowledgement of a portion's last message. The portion's other messages have usually been
    acknowledged by then; if not, they are waited for.
    """

    def __init__(
        self,
        producers: Sequence[Producer],
        arguments: argparse.Namespace,
        partitions: Sequence[int],
        payload: Payload,
        portion: int,
    ):
        self._producers = producers
        self._topic: str = arguments.topic
        self._partitions = partitions
        self._payload = payload
        self._portion = portion
        self._timeout_s: float = arguments.timeout
        self._rate: float | None = arguments.rate
        self._interval_ns: float | None = None
        self._turn = 0
        self._changed = threading.Condition()  # guards the fields below: acknowledgements come on the clients' threads
        self._latency = Histogram()
        self._settled = 0
        self._settled_size = 0
        self._failure: BaseException | None = None

    def run(self, messages: int | None, seconds: float | None, progress: Progress) -> Finding:
        """Send at most `messages` for at most `seconds`, then wait until all of them are acknowledged.

        Ctrl-C ends the sending and shortens the wait; messages that are acknowledged by then count. Raises the first
        failure; TimedOut if acknowledgements do not come.
        """
        with self._changed:
            self._latency, self._settled, self._settled_size = Histogram(), 0, 0
        clock = Clock()
        pace = Pace(clock.started_ns, messages, seconds, self._rate)
        self._interval_ns = pace.interval_ns
        sent = not_sent = 0
        interrupted = False
        try:
            while self._failure is None and (count := pace.await_due(sent, self._portion)):
                given = self._send(count, pace.due_ns(sent))
                sent += count
                progress.add_messages(count)
                progress.add_bytes(given)
            not_sent = pace.not_sent(sent)
            # The client bounds a delivery by delivery.timeout.ms, which is --timeout unless -X sets it.
            limit_s = max(self._timeout_s, self._producers[0].options.seconds("delivery.timeout.ms")) + 10
            if not self._await_all(sent, limit_s):
                raise TimedOut(f"{sent - self._settled} messages are not acknowledged after {limit_s:g} s")
        except KeyboardInterrupt:
            interrupted = True
            self._await_all(sent, LAST_WORDS_S)
        with self._changed:
            return clock.finding(
                self._settled, self._settled_size, latency=self._latency, not_sent=not_sent, interrupted=interrupted
            )

    def _send(self, count: int, due_ns: int) -> int:
        """Hand over `count` messages; return the bytes of their values."""
        turn = self._turn
        self._turn += 1
        producer = self._producers[turn % len(self._producers)]
        # Each producer goes round all partitions.
        partition = self._partitions[turn // len(self._producers) % len(self._partitions)]
        *values, last = self._payload.next_values(count)
        others = producer.send_many(self._topic, values, partitions=partition) if values else None
        delivery = producer.send(self._topic, last, partition=partition)
        size = sum(map(len, values)) + len(last)
        delivery.add_done_callback(partial(self._acknowledged, others, _Portion(count, size, due_ns)))
        return size

    def _acknowledged(self, others: Deliveries | None, portion: _Portion, delivery: Delivery) -> None:
        now = time.perf_counter_ns()
        failure = delivery.exception(0)
        if failure is None and others is not None:
            if not others.done():
                # The answers of two batches came in the wrong order: wait for the other one on another thread.
                threading.Thread(target=self._await_others, args=(others, portion)).start()
                return
            failure = others.exception(0)
        self._settle(portion, now, failure)

    def _await_others(self, others: Deliveries, portion: _Portion) -> None:
        failure = others.exception()
        self._settle(portion, time.perf_counter_ns(), failure)

    def _settle(self, portion: _Portion, now: int, failure: BaseException | None) -> None:
        count, size, due_ns = portion
        with self._changed:
            self._settled += count
            self._settled_size += size
            if failure is not None:
                self._failure = self._failure or failure
            elif self._interval_ns is None:
                self._latency.add(now - due_ns, count)
            else:
                add, interval_ns = self._latency.add, self._interval_ns
                for number in range(count):
                    add(now - due_ns - int(number * interval_ns))
            self._changed.notify()

    def _await_all(self, sent: int, limit_s: float) -> bool:
        """Wait until `sent` messages are acknowledged. False if that takes too long. Raises the first failure."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._settled >= sent, limit_s)
            if self._failure is not None:
                raise self._failure
            return self._settled >= sent
