"""A batch that is too large for its broker becomes two."""

from libc.stdint cimport int64_t, uint8_t

from kbroker._core.client.producer.accumulator cimport accumulator_t
from kbroker._core.client.producer.outgoing cimport outgoing_t
from kbroker._core.client.producer.outgoing_list cimport outgoing_list_t

# With the lock: a compressed batch has its records again as they were. False: these are not they, or memory is out.
cdef bint restore_records(accumulator_t *a, outgoing_t *batch, const uint8_t *records, int64_t size) noexcept nogil
# With the lock: the head of `items`, which is not compressed, becomes two. False: it has one record only, or memory is out.
cdef bint split_outgoing(accumulator_t *a, outgoing_list_t *items) noexcept nogil
