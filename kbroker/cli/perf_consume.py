"""`kbroker perf consume`: how fast the messages of a topic can be read."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec

from kbroker._core.client.consumer.records import Records
from kbroker.cli.client_options import client_options, make_client
from kbroker.cli.perf_report import Clock, Finding
from kbroker.cli.progress import Progress
from kbroker.client.config.consumer import CONSUMER
from kbroker.client.consumer.consumer import Consumer
from kbroker.client.errors import TimedOut
from kbroker.errors import KbrokerError
from kbroker.model import TopicPartition

POLL_S = 0.5


def _read_records(records: Records) -> int:
    return sum(len(record.value or b"") for record in records)


def _read_arrow(records: Records) -> int:
    import pyarrow.compute

    lengths = pyarrow.compute.binary_length(records.arrow().column("value"))
    return pyarrow.compute.sum(lengths).as_py() or 0


WAYS: dict[str, Callable[[Records], int]] = {"records": _read_records, "arrow": _read_arrow}
"""Functions that read the records of a poll and return the bytes of their values."""


def measure(arguments: argparse.Namespace, partitions: Sequence[int], shown: bool) -> Finding:
    if arguments.read == "arrow" and find_spec("pyarrow") is None:
        raise KbrokerError("--read arrow: pyarrow is not installed")
    isolation = "read_committed" if arguments.committed else "read_uncommitted"
    options = client_options(
        arguments, CONSUMER, isolation_level=isolation, enable_auto_commit=False, allow_auto_create_topics=False
    )
    chosen = [TopicPartition(arguments.topic, partition) for partition in partitions]
    if arguments.warm_up:
        with make_client(Consumer, options) as consumer:
            reader = _Reader(consumer, chosen, arguments)
            tenth = max(1, min(reader.span, arguments.messages or reader.span) // 10)
            reader.read(tenth, arguments.warm_up, Progress(None, False)).raise_if_interrupted()
    # Another consumer than the warm-up's: nothing has been fetched before the clock runs.
    with make_client(Consumer, options) as consumer:
        progress = Progress(None, shown)
        finding = _Reader(consumer, chosen, arguments).read(arguments.messages, arguments.seconds, progress)
        progress.finish()
    return finding


class _Reader:
    """Reads the messages that are in the partitions when it is made."""

    def __init__(self, consumer: Consumer, partitions: Sequence[TopicPartition], arguments: argparse.Namespace):
        self._consumer = consumer
        self._size_of = WAYS[arguments.read]
        self._timeout_s: float = arguments.timeout
        starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        self._ends = {partition: end for partition, end in ends.items() if end > starts[partition]}
        if not self._ends:
            raise KbrokerError(f"topic {arguments.topic!r} has no messages to read")
        self._starts = {partition: starts[partition] for partition in self._ends}
        self.span = sum(end - starts[partition] for partition, end in self._ends.items())  #: how many offsets

    def read(self, messages: int | None, seconds: float | None, progress: Progress) -> Finding:
        """Read until every partition's end, or until so many messages were read or so many seconds have passed."""
        read = size = 0
        interrupted = False
        clock = Clock()
        try:
            for records in self._polls(messages, seconds):
                given = self._size_of(records)
                read += len(records)
                size += given
                progress.add_messages(len(records))
                progress.add_bytes(given)
        except KeyboardInterrupt:
            interrupted = True
        return clock.finding(read, size, interrupted=interrupted)

    def _polls(self, messages: int | None, seconds: float | None) -> Iterator[Records]:
        """Yield the records of each poll that has some. Raises TimedOut if none come for `--timeout`."""
        left = dict(self._ends)
        read = 0
        self._consumer.assign(self._starts)
        until = None if seconds is None else time.monotonic() + seconds
        heard_at = time.monotonic()
        while left and (messages is None or read < messages):
            now = time.monotonic()
            if until is not None and now >= until:
                break
            patience_s = POLL_S if until is None else min(POLL_S, until - now)
            records = self._consumer.poll(patience_s, None if messages is None else self._most(messages - read))
            if records:
                read += len(records)
                yield records
                heard_at = time.monotonic()
            left = {each: end for each, end in left.items() if (self._consumer.position(*each) or 0) < end}
            if left and time.monotonic() - heard_at > self._timeout_s:
                raise TimedOut(f"no message has come for {self._timeout_s:g} s, {min(left)} is not read to its end")

    def _most(self, left: int) -> int:
        most: int = self._consumer.options["max.poll.records"]
        return min(left, most)
