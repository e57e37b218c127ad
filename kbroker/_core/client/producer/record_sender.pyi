from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kbroker._core.client.producer.accumulator import Accumulator
from kbroker._core.client.producer.delivery import Deliveries, Delivery
from kbroker.errors import ClientError

_Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]

class RecordSender:
    """The part of `kbroker.client.Producer` that queues records. Every method may be called from any thread.

    Every method that sends raises QueueFull when there is no room within `block_ms`, RecordTooLarge, NoSuchPartition,
    BrokerError or TimedOut when the topic cannot be found, ClientClosed when the producer is closed, and TypeError for
    arguments of a wrong type. A transactional producer raises UsageError while no transaction is open.
    """

    block_ms: int
    encode_key: Callable[[Any], bytes | str | None] | None
    encode_value: Callable[[Any], bytes | str | None] | None
    @property
    def accumulator(self) -> Accumulator: ...
    def __init__(
        self,
        accumulator: Accumulator,
        *,
        partitioner: Callable[[str, Any, int], int] | None = None,
        key_encoder: Callable[[Any], bytes | str | None] | None = None,
        value_encoder: Callable[[Any], bytes | str | None] | None = None,
        block_ms: int = 60000,
    ) -> None: ...
    def await_topic(self, topic: str) -> None:
        """Wait until the partitions of `topic` are known, or raise an exception; called without a lock."""

    def has_partition(self, topic: str, partition: int) -> bool:
        """Return whether the topic has the partition now; called, without a lock, for one that is not known."""

    def refused(self, kind: str, text: str) -> Exception:
        """Return the exception for a record that is refused at the call.

        `kind` is one of closed, shut, queue_full, too_large, no_partition.
        """

    def send_nowait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: _Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Put a record into the queue, without a Delivery: nothing tells what becomes of it.

        See `send` for the arguments, and the class for exceptions.
        """

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: _Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        *,
        on_delivery: Callable[[ClientError | None, Delivery], object] | None = None,
    ) -> Delivery:
        """Put a record into the queue. The returned Delivery tells what becomes of it.

        `value` and `key`: bytes, str (sent as UTF-8), bytearray, memoryview or None, or what the encoders take.
        `headers`: pairs of a name and a value, or a mapping. `partition` None: the partitioner chooses. `timestamp`:
        milliseconds since 1970; None: now. Waits for room up to max.block.ms.

        `on_delivery(error, delivery)` is called on the producer's thread once the outcome is known; `error` is None, or
        why the delivery failed. See the class for exceptions.
        """

    def send_many(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        headers: _Headers | Any | None = None,
        partitions: int | Sequence[int | None] | Any | None = None,
        timestamps: int | Sequence[int] | Any | None = None,
        *,
        on_delivery: Callable[[ClientError | None, Deliveries], object] | None = None,
    ) -> Deliveries:
        """Put a record for each of `values` into the queue, in their order, with one call.

        `values` and `keys` are lists of what `send` takes, NumPy arrays, or Arrow arrays; arrays are read in place,
        without a copy of their items. A NumPy array has dtype S (its trailing zeros are not sent, as in NumPy), dtype
        object, or dtype uint8 with two dimensions, where each row is one record. An Arrow array, chunked or not, is of
        binary, string, large_binary, large_string or fixed_size_binary.

        `headers`: the same for all records, or an Arrow array of list<struct<name, value>> with the headers of each.
        `partitions` and `timestamps`: one int for all records, or a list, a NumPy or an Arrow array of integers. The
        partitioner chooses where a partition is null.

        `on_delivery(error, deliveries)` is called once, when the outcome of all records is known; `error` is None, or
        why the first that failed did. An exception says how many records were taken before it. See the class for
        exceptions.
        """

    def send_some(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        headers: _Headers | Any | None = None,
        partitions: int | Sequence[int | None] | Any | None = None,
        timestamps: int | Sequence[int] | Any | None = None,
        taken: Deliveries | None = None,
    ) -> Deliveries:
        """Put records into the queue as `send_many` does, but only as far as there is room now.

        `len()` of the returned Deliveries says how many records were taken. `taken`: what an earlier call with the same
        arguments has returned; this call goes on behind those records.
        """
