"""Writes a Fetch response."""

from libc.stdint cimport int16_t, int32_t

from kbroker._core.server.connection cimport slot_t
from kbroker._core.server.fetch.fetch cimport fetch_t
from kbroker._core.server.serving cimport Serving

# Append the body to the response header in `slot`: the entries from `first` on, linked by `next`. The file regions of
# their reads become splices of the slot, which takes over the references.
cdef void write_response(Serving serving, fetch_t *f, slot_t *slot, int32_t first, int16_t error,
                         int32_t session_id) noexcept nogil
