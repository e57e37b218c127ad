"""One look at everything that a fetch asks for: what could be sent now, and whether that is reason enough to answer."""

from libc.stdlib cimport free

from kbroker._core.log.partition cimport segment_unref
from kbroker._core.server.fetch.fetch cimport fetch_entry_t, fetch_t

# Read every partition's place under the limits of KIP-74, into `read`, `error` and `visible_end` of the entries, and
# f.bytes_ready and f.answer_now. 0, or NEEDS_HANDLER, unless it `may_block`: a log or segment is closed, something is not in
# memory, or it is more work than a processor does at once. A handler looks at so much at once that no other request waits for
# long, and leaves the rest to the client's next fetch.
cdef int look(fetch_t *f, bint may_block) noexcept nogil

cdef inline void drop_read(fetch_entry_t *e) noexcept nogil:
    if e.read.segment != NULL:
        segment_unref(e.read.segment)
        e.read.segment = NULL
    if e.read.aborted != NULL:
        free(e.read.aborted)
        e.read.aborted = NULL
        e.read.aborted_count = 0
