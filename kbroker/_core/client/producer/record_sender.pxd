"""Takes records from a producer's callers. A record is encoded at once into the open batch of its partition."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.client.producer.accumulator cimport Accumulator, Topic, accumulator_t, incoming_t
from kbroker._core.client.producer.outgoing cimport outgoing_t
from kbroker._core.wire.cursor cimport writer_t

cdef class RecordSender:
    """Base of `kbroker.client.Producer`. Every method may be called from any thread."""
    cdef readonly Accumulator accumulator
    cdef object partition_of         # the user's partitioner, callable(topic, key, partition count), or None
    cdef public object encode_key
    cdef public object encode_value
    cdef public int64_t block_ms     # how long a call waits for room; -1: for ever
    cdef Topic topic_of(self, str name)
    cdef int add(self, Topic topic, int32_t *partition, const incoming_t *record, bint keep, outgoing_t **batch,
                 int32_t *index) except -1
    cdef int refuse(self, int finding, Topic topic, int64_t partition, int64_t size) except -1
    cdef int send_one(self, str topic, value, key, headers, partition, timestamp, bint keep, outgoing_t **batch,
                      int32_t *index, int32_t *chosen, int64_t *sent_timestamp) except -1

cdef int64_t timestamp_of(timestamp) except -1
cdef int64_t partition_number(partition) except -2
cdef int put_headers(writer_t *out, headers) except -1
