"""Splits a batch that is too large for its broker into two."""

from libc.stdint cimport int64_t, uint8_t

from kbroker._core.client.producer.accumulator cimport accumulator_t
from kbroker._core.client.producer.outgoing cimport outgoing_t
from kbroker._core.client.producer.outgoing_list cimport outgoing_list_t

# Gives a compressed batch its uncompressed `records` back. Returns False if their size is not that of the records
# before compression, or if memory is out. The caller holds the lock.
cdef bint restore_records(accumulator_t *a, outgoing_t *batch, const uint8_t *records, int64_t size) noexcept nogil
# Splits the head of `items` into two batches. Returns False if it has only one record, is compressed, was split too
# often, or if memory is out. The caller holds the lock.
cdef bint split_outgoing(accumulator_t *a, outgoing_list_t *items) noexcept nogil
