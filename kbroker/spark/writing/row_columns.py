"""Checks a DataFrame's columns as Spark's own connector does, and sends its rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from kbroker.errors import KbrokerError
from kbroker.spark.errors import CannotWrite, NotDelivered
from kbroker.spark.schema import HEADERS

if TYPE_CHECKING:
    import pyarrow

    from kbroker._core.client.producer.delivery import Deliveries
    from kbroker.client import Producer


class RowColumns:
    """The columns of a DataFrame that are written: value, key, headers, topic and partition. Others are left out."""

    def __init__(self, schema: StructType, topic: str | None):
        """`topic`: the topic of all rows, whatever their column topic says; None if that column decides.

        Raises CannotWrite when a column is missing, or of another type.
        """
        self.topic = topic
        if topic is None and "topic" not in schema.names:
            raise CannotWrite("there is no column topic, and option topic is not set: nobody knows where rows go")
        if "value" not in schema.names:
            raise CannotWrite("there is no column value, which every row must have")
        self._places = {name: schema.names.index(name) for name in ALLOWED if name in schema.names}
        for name, place in self._places.items():
            if name == "topic" and topic is not None:
                continue
            found = schema.fields[place].dataType
            if not any(_is_like(found, allowed) for allowed in ALLOWED[name]):
                wanted = " or ".join(allowed.simpleString() for allowed in ALLOWED[name])
                raise CannotWrite(f"column {name} is {found.simpleString()}: it must be {wanted}")

    def send(self, producer: Producer, batches: Iterable[pyarrow.RecordBatch]) -> int:
        """Send all rows, and return how many there were once all are delivered. Partitions keep the order of rows.

        Raises NotDelivered when one was not, and CannotWrite when its topic is null.
        """
        count = 0
        waiting: deque[tuple[str, Deliveries]] = deque()
        for batch in batches:
            while waiting and waiting[0][1].done():
                _delivered(*waiting.popleft())
            for topic, part in self._by_topic(batch):
                columns = [self._column(part, name) for name in ("value", "key", "headers", "partition")]
                try:
                    waiting.append((topic, producer.send_many(topic, *columns)))
                except KbrokerError as error:
                    raise NotDelivered(f"topic {topic}: {error}") from error
            count += len(batch)
        while waiting:
            _delivered(*waiting.popleft())
        return count

    def _column(self, batch: pyarrow.RecordBatch, name: str) -> pyarrow.Array | None:
        return batch.column(self._places[name]) if name in self._places else None

    def _by_topic(self, batch: pyarrow.RecordBatch) -> Iterator[tuple[str, pyarrow.RecordBatch]]:
        """Yield each topic with its rows, in their order. Raises CannotWrite when the topic of a row is null."""
        if len(batch) == 0:
            return
        if self.topic is not None:
            yield self.topic, batch
            return
        import pyarrow.compute

        topics = self._column(batch, "topic")
        assert topics is not None
        if topics.null_count:
            raise CannotWrite("a row has a null in column topic; option topic says where all rows go")
        encoded = topics.dictionary_encode()
        names: list[str] = encoded.dictionary.to_pylist()
        if len(names) == 1:
            yield names[0], batch
            return
        order = pyarrow.compute.array_sort_indices(encoded.indices)  # stable: rows of a topic stay in order
        batch = batch.take(order)
        runs = pyarrow.compute.run_end_encode(encoded.indices.take(order))
        start = 0
        for place, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield names[place], batch.slice(start, end - start)
            start = end


ALLOWED: dict[str, tuple[DataType, ...]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (HEADERS,),
    "partition": (IntegerType(),),
}


def _is_like(found: DataType, wanted: DataType) -> bool:
    """Return whether two types are equal, apart from nullability and the case of fields' names."""
    if isinstance(wanted, ArrayType):
        return isinstance(found, ArrayType) and _is_like(found.elementType, wanted.elementType)
    if isinstance(wanted, StructType):
        return (
            isinstance(found, StructType)
            and [name.lower() for name in found.names] == wanted.names
            and all(_is_like(a.dataType, b.dataType) for a, b in zip(found.fields, wanted.fields, strict=True))
        )
    return isinstance(found, type(wanted))


def _delivered(topic: str, deliveries: Deliveries) -> None:
    try:
        deliveries.result()
    except KbrokerError as error:
        raise NotDelivered(f"topic {topic}: {error}") from error
