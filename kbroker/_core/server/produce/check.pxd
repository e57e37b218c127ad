"""What a Produce brings, checked before anything of it is appended."""

from libc.stdint cimport uint8_t

from kbroker._core.server.produce.work cimport produce_t
from kbroker._core.server.serving cimport Serving

# Looks at every partition; false when some batch needs a thread that may block.
cdef bint produce_check(Serving serving, produce_t *w, uint8_t *frame) noexcept nogil
# Such a thread: what that has left.
cdef void produce_check_rest(Serving serving, produce_t *w, uint8_t *frame) noexcept nogil
