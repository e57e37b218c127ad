"""What `send`, `send_nowait` and `send_many` are of a producer with handlers, or with producer.type=sync."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbroker.client.errors import ClientError
from kbroker.client.producer.handlers import ProducerHandler, QueuedRecord, guarded

if TYPE_CHECKING:
    from kbroker._core.delivery import Deliveries, Delivery
    from kbroker._core.record_sender import RecordSender


class Calls:
    """Any thread, as the producer's own."""

    def __init__(self, producer: RecordSender, handlers: Sequence[ProducerHandler], *, synchronous: bool):
        self._send = producer.send
        self._send_many = producer.send_many
        self._handlers = handlers
        self._synchronous = synchronous

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: Any = None,
        timestamp: Any = None,
    ) -> Delivery | None:
        """None: a handler has dropped the record."""
        record: QueuedRecord | None = QueuedRecord(topic, value, key, headers, partition, timestamp)
        for handler in self._handlers:
            assert record is not None
            record = handler.before_enqueue(record)
            if record is None:
                return None
        assert record is not None
        try:
            delivery = self._send(
                record.topic, record.value, record.key, record.headers, record.partition, record.timestamp
            )
        except ClientError:
            self._tell(record, False)
            raise
        self._tell(record, True)
        return delivery.result() if self._synchronous else delivery

    def send_nowait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: Any = None,
        timestamp: Any = None,
    ) -> None:
        self.send(topic, value, key, headers, partition, timestamp)

    def send_many(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        headers: Any = None,
        partitions: Any = None,
        timestamps: Any = None,
    ) -> Deliveries:
        """Not with handlers, which take records one by one."""
        if self._handlers:
            raise TypeError("a producer with handlers takes records one by one: use send")
        deliveries = self._send_many(topic, values, keys, headers, partitions, timestamps)
        if self._synchronous:
            deliveries.result()
        return deliveries

    def _tell(self, record: QueuedRecord, added: bool) -> None:
        for handler in self._handlers:
            guarded(handler.after_enqueue, record, added)
