"""Checks all batches of a Produce before any of them is appended."""

from libc.stdint cimport uint8_t

from kbroker._core.server.produce.work cimport produce_t
from kbroker._core.server.serving cimport Serving

# Check every partition; false when some batch is left for a thread that may block.
cdef bint produce_check(Serving serving, produce_t *w, uint8_t *frame) noexcept nogil
# On a thread that may block: check and convert the batches that produce_check has left.
cdef void produce_check_rest(Serving serving, produce_t *w, uint8_t *frame) noexcept nogil
