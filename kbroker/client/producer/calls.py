"""`send`, `send_nowait` and `send_many` of a producer that has handlers, or producer.type=sync."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kbroker._core.client.producer.delivery import Deliveries, Delivery
from kbroker.client.errors import ClientError
from kbroker.client.handlers import ProducerHandler, QueuedRecord, call_after_enqueue, call_before_enqueue
from kbroker.client.producer.columns import queued_records

if TYPE_CHECKING:
    from kbroker._core.client.producer.record_sender import RecordSender


class Calls:
    """Replaces the producer's send methods. Any thread may call them."""

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
        """Send a record; see `Producer.send`. Returns None when a handler has dropped it."""
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
        """Send many records; see `Producer.send_many`. With handlers they are sent one by one.

        Records that a handler has dropped are not in the returned Deliveries.
        """
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
        left = call_before_enqueue(self._handlers, record)
        if left is None:
            return None
        try:
            delivery = self._send(
                left.topic, left.value, left.key, left.headers, left.partition, left.timestamp, on_delivery=on_delivery
            )
        except BaseException:
            call_after_enqueue(self._handlers, left, False)
            raise
        call_after_enqueue(self._handlers, left, True)
        return delivery
