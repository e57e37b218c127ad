"""What becomes of a DataFrame's columns when its rows are written: checked as Spark's own connector does, and sent."""

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
    """Of one DataFrame: value, key, headers, topic and partition; others are left out."""

    def __init__(self, schema: StructType, topic: str | None):
        """`topic`: of all rows, whatever their column says. CannotWrite: a column is missing, or of another type."""
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
        """All of them, in their order in each partition; how many rows, once all are delivered. NotDelivered."""
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
        """Rows of a topic stay in their order; those of different topics have none."""
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
        order = pyarrow.compute.array_sort_indices(encoded.indices)  # keeps the order of equal ones
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
    """Whatever may be null in it, and however its fields' names are written."""
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
