"""What `send`, `send_nowait` and `send_many` are of a producer with handlers, or with producer.type=sync."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kbroker._core.client.producer.delivery import Deliveries, Delivery
from kbroker.client.errors import ClientError
from kbroker.client.producer.columns import queued_records
from kbroker.client.producer.handlers import ProducerHandler, QueuedRecord, entered, entering

if TYPE_CHECKING:
    from kbroker._core.client.producer.record_sender import RecordSender


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
        *,
        on_delivery: Callable[[ClientError | None, Delivery], object] | None = None,
    ) -> Delivery | None:
        """None: a handler has dropped the record."""
        delivery = self._enqueue(QueuedRecord(topic, value, key, headers, partition, timestamp), on_delivery)
        return delivery.result() if self._synchronous and delivery is not None else delivery

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
        *,
        on_delivery: Callable[[ClientError | None, Deliveries], object] | None = None,
    ) -> Deliveries:
        """With handlers the records go one by one; those that one has dropped are not in what is returned."""
        if self._handlers:
            sent: list[Delivery] = []
            try:
                for record in queued_records(topic, values, keys, headers, partitions, timestamps):
                    delivery = self._enqueue(record)
                    if delivery is not None:
                        sent.append(delivery)
            except BaseException as error:
                if sent:
                    error.add_note(f"{len(sent)} records of this call were taken before")
                raise
            deliveries = Deliveries.of(sent, on_delivery)
        else:
            deliveries = self._send_many(topic, values, keys, headers, partitions, timestamps, on_delivery=on_delivery)
        if self._synchronous:
            deliveries.result()
        return deliveries

    def _enqueue(
        self, record: QueuedRecord, on_delivery: Callable[[ClientError | None, Delivery], object] | None = None
    ) -> Delivery | None:
        left = entering(self._handlers, record)
        if left is None:
            return None
        try:
            delivery = self._send(
                left.topic, left.value, left.key, left.headers, left.partition, left.timestamp, on_delivery=on_delivery
            )
        except BaseException:
            entered(self._handlers, left, False)
            raise
        entered(self._handlers, left, True)
        return delivery
