from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kbroker._core.client.producer.accumulator import Accumulator
from kbroker._core.client.producer.delivery import Deliveries, Delivery
from kbroker.errors import ClientError

_Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]

class RecordSender:
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
    def await_topic(self, topic: str) -> None: ...
    def has_partition(self, topic: str, partition: int) -> bool: ...
    def refused(self, kind: str, text: str) -> Exception: ...
    def send_nowait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: _Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None: ...
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
    ) -> Delivery: ...
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
    ) -> Deliveries: ...
    def send_some(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        headers: _Headers | Any | None = None,
        partitions: int | Sequence[int | None] | Any | None = None,
        timestamps: int | Sequence[int] | Any | None = None,
        taken: Deliveries | None = None,
    ) -> Deliveries: ...
