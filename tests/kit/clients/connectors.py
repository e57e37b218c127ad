"""Consumer connectors whose streams are read on threads, for tests of groups."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from kbroker.client import ConsumerConnector, MessageStream
from kbroker.model import TopicPartition

QUICK: dict[str, Any] = {
    "auto_offset_reset": "smallest",
    "rebalance_backoff_ms": 50,
    "rebalance_max_retries": 200,
    "zookeeper_session_timeout_ms": 6_000,
    "retry_backoff_ms": 10,
    "reconnect_backoff_ms": 10,
    "fetch_wait_max_ms": 20,
}
"""Options with short waiting times."""


class Reading:
    """A member of a group as a context manager. It keeps all records that its streams have given, in order."""

    def __init__(self, topics: Mapping[str, int] | str, **options: Any):
        """`topics` maps topics to their number of streams, or is a white list for one stream."""
        self.connector = ConsumerConnector(**(QUICK | options))
        self.records: list[tuple[TopicPartition, int, bytes | None]] = []
        self.errors: list[BaseException] = []
        self._changed = threading.Condition()
        streams: Iterable[MessageStream]
        if isinstance(topics, str):
            streams = self.connector.create_message_streams_by_filter(white_list=topics)
        else:
            made = self.connector.create_message_streams(topics)
            streams = [stream for each in made.values() for stream in each]
        self._threads = [threading.Thread(target=self._read, args=(stream,), daemon=True) for stream in streams]
        for thread in self._threads:
            thread.start()

    @property
    def values(self) -> list[bytes | None]:
        with self._changed:
            return [value for _, _, value in self.records]

    def _read(self, stream: MessageStream) -> None:
        try:
            for record in stream:
                with self._changed:
                    self.records.append((TopicPartition(record.topic, record.partition), record.offset, record.value))
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connector.shutdown()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a stream does not end"
        if kind is None:
            assert self.errors == [], self.errors
