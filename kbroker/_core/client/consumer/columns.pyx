"""Columns of records for pyarrow and NumPy. Each library is imported only when it is used."""

from libc.stdint cimport int32_t

from kbroker._core.wire.columns cimport BinaryColumn


cdef object imported_pyarrow():
    try:
        return __import__("pyarrow")
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ModuleNotFoundError("pyarrow is not installed: pip install pyarrow", name="pyarrow") from None


cdef object arrow_binary(object arrow, object of, BinaryColumn column):
    buffers = [
        arrow.py_buffer(column.validity) if column.null_count else None,
        arrow.py_buffer(column.offsets),
        arrow.py_buffer(column.data),
    ]
    return arrow.Array.from_buffers(of, len(column), buffers, column.null_count)


cdef object arrow_headers(object arrow, columns):
    pairs = arrow.StructArray.from_arrays(
        [arrow_binary(arrow, arrow.string(), columns.header_names),
         arrow_binary(arrow, arrow.binary(), columns.header_values)],
        fields=[arrow.field("key", arrow.string(), False), arrow.field("value", arrow.binary())],
    )
    of = arrow.list_(arrow.field("element", pairs.type, False))
    return arrow.Array.from_buffers(of, len(columns), [None, arrow.py_buffer(columns.header_offsets)], 0,
                                    children=[pairs])


cdef object arrow_numbers(object arrow, object of, buffer):
    return arrow.Array.from_buffers(of, len(buffer), [None, arrow.py_buffer(buffer)], 0)


# No closures here: a closure that refers to itself would keep a batch's memory until the next garbage collection.
cdef object arrow_column(object arrow, str name, columns):
    if name == "topic":
        indexes = arrow_numbers(arrow, arrow.int32(), columns.topic_indexes)
        return arrow.DictionaryArray.from_arrays(indexes, arrow.array(columns.topics, arrow.string()))
    if name == "partition":
        return arrow_numbers(arrow, arrow.int32(), columns.partitions)
    if name == "offset":
        return arrow_numbers(arrow, arrow.int64(), columns.offsets)
    if name == "timestamp":
        return arrow_numbers(arrow, arrow.timestamp("ms", "UTC"), columns.timestamps)
    if name == "timestamp_type":
        return arrow_numbers(arrow, arrow.int8(), columns.timestamp_types)
    if name == "headers":
        return arrow_headers(arrow, columns)
    return arrow_binary(arrow, arrow.binary(), columns.keys if name == "key" else columns.values)


def arrow_batch(columns):
    """Return a pyarrow.RecordBatch of Columns, over the same memory. Raises ModuleNotFoundError without pyarrow.

    topic: dictionary of string; partition: int32; offset: int64; timestamp: timestamp[ms, UTC]; timestamp_type: int8;
    key and value: binary; headers: list of struct<key: string, value: binary>.
    """
    arrow = imported_pyarrow()
    arrays = [arrow_column(arrow, name, columns) for name in columns.names]
    fields = [arrow.field(name, array.type, name in ("key", "value")) for name, array in zip(columns.names, arrays)]
    return arrow.RecordBatch.from_arrays(arrays, schema=arrow.schema(fields))


cdef int put_binary(object numpy, dict found, str name, BinaryColumn column, of) except -1:
    cdef int32_t size
    if of is not None:
        of = numpy.dtype(of)
        size = column.fixed_size()
        if len(column) and size != of.itemsize:
            raise ValueError(f"not every {name} has the {of.itemsize} bytes of {of}")
        found[name] = numpy.frombuffer(column.data, of)
        return 0
    found[name] = numpy.frombuffer(column.data, numpy.uint8)
    found[f"{name}_offsets"] = numpy.frombuffer(column.offsets, numpy.int32)
    bits = numpy.unpackbits(numpy.frombuffer(column.validity, numpy.uint8), count=len(column), bitorder="little")
    found[f"{name}_valid"] = bits.view(numpy.bool_)
    return 0


def numpy_arrays(columns, dtypes=None):
    """Return a dict of NumPy arrays of Columns, over the same memory and read-only.

    `topic` holds indexes into `topics` (an object array of str); `partition`, `offset`, `timestamp` and
    `timestamp_type` hold integers. `key` and `value` hold the bytes of all rows one behind the other (uint8): row i of
    `value` is value[value_offsets[i]:value_offsets[i + 1]], and is None where value_valid[i] is false. With a dtype for
    `key` or `value` in `dtypes`, that array has one element of this type for each row. Headers are stored likewise:
    those of row i are the rows header_offsets[i] to header_offsets[i + 1] - 1 of `header_key` and `header_value`.

    Raises ValueError if a dtype is given for another column, or if not every key (value) has the size of its dtype.
    """
    import numpy

    dtypes = dtypes or {}
    for name in dtypes:
        if name not in ("key", "value"):
            raise ValueError(f"a dtype for {name!r}: only key and value take one")
    found = {}
    for name in columns.names:
        if name == "topic":
            found["topic"] = numpy.frombuffer(columns.topic_indexes, numpy.int32)
            found["topics"] = numpy.array(columns.topics, object)
        elif name == "partition":
            found["partition"] = numpy.frombuffer(columns.partitions, numpy.int32)
        elif name == "offset":
            found["offset"] = numpy.frombuffer(columns.offsets, numpy.int64)
        elif name == "timestamp":
            found["timestamp"] = numpy.frombuffer(columns.timestamps, numpy.int64)
        elif name == "timestamp_type":
            found["timestamp_type"] = numpy.frombuffer(columns.timestamp_types, numpy.int8)
        elif name == "key":
            put_binary(numpy, found, "key", columns.keys, dtypes.get("key"))
        elif name == "value":
            put_binary(numpy, found, "value", columns.values, dtypes.get("value"))
        else:
            found["header_offsets"] = numpy.frombuffer(columns.header_offsets, numpy.int32)
            put_binary(numpy, found, "header_key", columns.header_names, None)
            put_binary(numpy, found, "header_value", columns.header_values, None)
    return found
