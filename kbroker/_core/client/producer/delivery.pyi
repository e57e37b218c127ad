from collections.abc import Callable, Generator, Iterable
from typing import Any, final

from kbroker.errors import ClientError

@final
class Delivery:
    """The outcome of one record, which `Producer.send` returns. It can be awaited, and used by any thread."""

    @property
    def topic(self) -> str:
        """The topic that the record was sent to."""

    @property
    def partition(self) -> int:
        """The partition that the record goes to."""

    @property
    def offset(self) -> int | None:
        """The record's offset; None before the delivery, and with acks=0, where the broker does not tell it."""

    @property
    def timestamp(self) -> int:
        """The record's timestamp in milliseconds since 1970.

        With message.timestamp.type=LogAppendTime it becomes the time when the broker appended the record.
        """

    def __init__(self) -> None: ...
    def done(self) -> bool:
        """Return whether the outcome is known."""

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Wait for the outcome; return why the delivery failed, or None when the record was delivered.

        Raises TimedOut after `timeout` seconds (None: waits as long as it takes), and ForkedClient in a child process
        while the outcome is not known.
        """

    def result(self, timeout: float | None = None) -> Delivery:
        """Wait for the delivery, and return this object.

        Raises the ClientError of a failed delivery, and TimedOut after `timeout` seconds; then the record may still be
        delivered.
        """

    def __copy__(self) -> Delivery: ...
    def __deepcopy__(self, memo: object, /) -> Delivery: ...
    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback(delivery)` once the outcome is known.

        That is on the producer's thread, or at once in this thread if the outcome is known already. An exception in the
        callback is logged. Raises TypeError when it is not callable.
        """

    def __await__(self) -> Generator[Any, None, Delivery]:
        """Wait as `result` does, in any event loop. Cancelling does not take the record back."""


@final
class Deliveries:
    """The outcome of all records of one `send_many`; `len()` is their number. It can be awaited."""

    def __init__(self) -> None: ...
    @staticmethod
    def of(
        deliveries: Iterable[Delivery],
        on_delivery: Callable[[ClientError | None, Deliveries], object] | None = None,
    ) -> Deliveries:
        """Return the Deliveries of records that were sent one by one. `on_delivery`: see `Producer.send_many`."""

    def __len__(self) -> int: ...
    def done(self) -> bool:
        """Return whether the outcome of every record is known."""

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Wait for all outcomes; return why the first record that failed did, or None when all were delivered.

        Raises TimedOut after `timeout` seconds; None: waits as long as it takes.
        """

    def result(self, timeout: float | None = None) -> int:
        """Wait until all records are delivered, and return their number.

        Raises the ClientError of the first that failed, and TimedOut after `timeout` seconds.
        """

    def __copy__(self) -> Deliveries: ...
    def __deepcopy__(self, memo: object, /) -> Deliveries: ...
    def add_done_callback(self, callback: Callable[[Deliveries], object]) -> None:
        """Call `callback(deliveries)` once all outcomes are known.

        That is on the producer's thread, or at once in this thread if all are known already. An exception in the
        callback is logged. Raises TypeError when it is not callable.
        """

    def __await__(self) -> Generator[Any, None, int]:
        """Wait as `result` does, in any event loop. Cancelling does not take the records back."""
