"""What becomes of one record that was sent: a batch and the record's place in it."""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.client.producer.accumulator cimport accumulator_t
from kbroker._core.client.producer.outgoing cimport outgoing_t
from kbroker._core.client.producer.outgoing_list cimport outgoing_list_t

cdef class Delivery:
    """Owns one reference to the batch. Any thread."""
    cdef outgoing_t *batch
    cdef int64_t sent_timestamp
    cdef int32_t index
    cdef readonly int32_t partition
    cdef readonly str topic
    cdef outgoing_t *part(self, int32_t *index) noexcept nogil
    cdef outgoing_t *settled(self, timeout, int32_t *index) except NULL
    cdef waiter(self)
    cdef int watch(self, callback, bint with_error) except -1
    # `function(error, delivery)` once it is done.
    cdef int report_to(self, function) except -1

ctypedef struct stretch_t:
    outgoing_t *batch            # a reference
    int32_t first                # the records between are those of the call, and what other threads have sent meanwhile
    int32_t last

cdef class Deliveries:
    """What becomes of the records of one send_many: the batches they are in."""
    cdef stretch_t *stretches
    cdef int32_t stretch_count
    cdef int32_t capacity
    cdef int64_t count
    # The stretch of a batch in which the record at `index` is of the call; NULL when memory is out. Valid until the next `add`.
    cdef stretch_t *add(self, outgoing_t *batch, int32_t index) noexcept nogil
    # `function(error, deliveries)` once all are done.
    cdef int report_to(self, function) except -1

# With the GIL, once the batch is done: its callbacks are called, each with its Delivery. Takes over the caller's reference.
cdef void run_callbacks(outgoing_t *batch) noexcept
# What was taken out of its queue fails; callbacks are called. With the GIL, on the pump's thread.
cdef int fail_list(accumulator_t *a, outgoing_list_t *failed, error) except -1
