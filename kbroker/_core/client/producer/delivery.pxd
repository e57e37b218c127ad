"""What becomes of records that were sent. A Delivery is a reference to a batch and the place of its record in it."""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.client.producer.accumulator cimport accumulator_t
from kbroker._core.client.producer.outgoing cimport outgoing_t
from kbroker._core.client.producer.outgoing_list cimport outgoing_list_t

cdef class Delivery:
    """What becomes of one record. Owns one reference to the batch. For any thread."""
    cdef outgoing_t *batch
    cdef int64_t sent_timestamp
    cdef int32_t index
    cdef readonly int32_t partition
    cdef readonly str topic
    cdef outgoing_t *part(self, int32_t *index) noexcept nogil
    cdef outgoing_t *settled(self, timeout, int32_t *index) except NULL
    cdef waiter(self)
    cdef int watch(self, callback, bint with_error) except -1
    # Has `function(error, delivery)` called once the record is done.
    cdef int report_to(self, function) except -1

ctypedef struct stretch_t:
    outgoing_t *batch            # a reference
    int32_t first                # place of the call's first record in the batch
    int32_t last                 # place of its last record; records that other threads sent may lie between

cdef class Deliveries:
    """What becomes of the records of one send_many: the batches they are in."""
    cdef stretch_t *stretches
    cdef int32_t stretch_count
    cdef int32_t capacity
    cdef int64_t count
    # Adds the record at `index` of a batch, and returns its stretch, which is valid until the next `add`. Returns NULL
    # if memory is out.
    cdef stretch_t *add(self, outgoing_t *batch, int32_t index) noexcept nogil
    # Has `function(error, deliveries)` called once all records are done.
    cdef int report_to(self, function) except -1

# Calls the callbacks of a batch that is done, each with its Delivery, and releases the caller's reference. With the
# GIL.
cdef void run_callbacks(outgoing_t *batch) noexcept
# Fails batches that were taken out of their queues with `error`, and calls their callbacks. With the GIL, on the pump's
# thread.
cdef int fail_list(accumulator_t *a, outgoing_list_t *failed, error) except -1
