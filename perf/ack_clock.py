"""How long a client waits when something happens to a cluster: the longest gaps between answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

QUICK: dict[str, object] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "log_level": 0,
}
"""librdkafka asks again at once: what is measured is the cluster."""
VALUE = b"x" * 100
RECORDS_PER_S = 2000
QUIET_S = 3.0
TIMEOUT_S = 120.0


class AckClock:
    """A producer of RECORDS_PER_S to the partitions of a topic in turn, acks=all. A context manager.

    `longest_gap_s` is the longest time that any partition's acknowledgements stayed away, from `begin_to_watch` on.
    """

    def __init__(self, topic: str, partitions: Sequence[int]):
        self._topic, self._partitions = topic, partitions
        self._last = [0.0] * len(partitions)
        self._longest = [0.0] * len(partitions)
        self._failed = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._stopping.is_set():
            due = int((time.monotonic() - began) * RECORDS_PER_S)
            while sent < due and self._send(sent % len(self._partitions)):
                sent += 1
            self._rest()
        self._close()

    def _send(self, place: int) -> bool:
        """Send a record to the partition that has this place among the partitions. Return False if it is to wait."""
        raise NotImplementedError

    def _rest(self) -> None:
        """Wait for some milliseconds, and let callbacks be called."""
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def _acknowledged(self, error: object, place: int) -> None:
        if error is not None:
            self._failed += 1
            return
        now = time.monotonic()
        if self._last[place]:
            self._longest[place] = max(self._longest[place], now - self._last[place])
        self._last[place] = now

    def begin_to_watch(self) -> None:
        """Wait until every partition answers, and forget the gaps so far."""
        deadline = time.monotonic() + TIMEOUT_S
        while not all(self._last):
            if time.monotonic() > deadline:
                raise RuntimeError("partitions do not answer")
            time.sleep(0.05)
        time.sleep(1.0)
        self._longest = [0.0] * len(self._partitions)

    def await_all_again(self) -> None:
        """Wait until every partition has answered again, and none has been silent for long since."""
        began = time.monotonic()
        while time.monotonic() - began < TIMEOUT_S:
            if min(self._last) > began and time.monotonic() - began > QUIET_S:
                return
            time.sleep(0.05)
        silent = sum(last < began for last in self._last)
        raise RuntimeError(f"{silent} of {len(self._partitions)} partitions are silent for {TIMEOUT_S} s")

    @property
    def longest_gap_s(self) -> float:
        if self._failed:
            raise RuntimeError(f"{self._failed} records failed")
        return max(self._longest)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(10)


class RdkafkaAckClock(AckClock):
    """An AckClock with librdkafka."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: Sequence[int]):
        from confluent_kafka import Producer

        super().__init__(topic, partitions)
        settings = {"acks": "all", "linger.ms": 0, "message.timeout.ms": 300_000}
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, **QUICK, **settings})

    def _send(self, place: int) -> bool:
        try:
            self._producer.produce(
                self._topic,
                VALUE,
                partition=self._partitions[place],
                on_delivery=lambda error, _: self._acknowledged(error, place),
            )
        except BufferError:
            return False
        return True

    def _rest(self) -> None:
        self._producer.poll(0.002)

    def _close(self) -> None:
        self._producer.purge()


class OwnAckClock(AckClock):
    """An AckClock with kbroker.client at its defaults."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: Sequence[int]):
        from kbroker.client import Producer

        super().__init__(topic, partitions)
        self._producer = Producer({"bootstrap_servers": bootstrap_servers, "acks": "all", "linger_ms": 0})

    def _send(self, place: int) -> bool:
        self._producer.send(
            self._topic,
            VALUE,
            partition=self._partitions[place],
            on_delivery=lambda error, _: self._acknowledged(error, place),
        )
        return True

    def _rest(self) -> None:
        time.sleep(0.002)

    def _close(self) -> None:
        self._producer.close()


class StepClock:
    """Does a step over and over in a thread; `longest_gap_s` is the longest time between two that were done."""

    def __init__(self, step: Callable[[], object], pause_s: float = 0.01):
        """`step` may raise: then it is done again."""
        self._step, self._pause_s = step, pause_s
        self._stopping = threading.Event()
        self.done = 0
        self.last = 0.0
        self.longest_gap_s = 0.0
        self.last_error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._step()
            except Exception as error:
                self.last_error = error
                time.sleep(0.02)
                continue
            now = time.monotonic()
            if self.last:
                self.longest_gap_s = max(self.longest_gap_s, now - self.last)
            self.last = now
            self.done += 1
            time.sleep(self._pause_s)

    def await_steps(self, count: int) -> None:
        """Wait until the step was done `count` more times."""
        wanted, deadline = self.done + count, time.monotonic() + TIMEOUT_S
        while self.done < wanted:
            if time.monotonic() > deadline:
                raise RuntimeError(f"a step is not done any more: {self.last_error!r}")
            time.sleep(0.02)

    def begin_to_watch(self) -> None:
        self.await_steps(20)
        self.longest_gap_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(30)
