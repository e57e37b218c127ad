"""Looks once at all partitions of a fetch: what could be sent now, and whether that is enough to answer."""

from libc.stdlib cimport free

from kbroker._core.log.partition cimport segment_unref
from kbroker._core.server.fetch.fetch cimport fetch_entry_t, fetch_t

# Find what can be sent of every partition under the limits of KIP-74, without copying bytes. Sets `read`, `error` and
# `visible_end` of the entries, f.bytes_ready and f.answer_now. Returns 0, or, without `may_block` only, NEEDS_HANDLER:
# a log or segment is closed, something is not in memory, or it is more work than a processor does at once. With
# `may_block` the work is limited too, so that other requests do not wait long; the client's next fetch gets the rest.
cdef int look(fetch_t *f, bint may_block) noexcept nogil

cdef inline void drop_read(fetch_entry_t *e) noexcept nogil:
    if e.read.segment != NULL:
        segment_unref(e.read.segment)
        e.read.segment = NULL
    if e.read.aborted != NULL:
        free(e.read.aborted)
        e.read.aborted = NULL
        e.read.aborted_count = 0
