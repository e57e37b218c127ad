"""Reading a Fetch request."""

from libc.stdint cimport int32_t, uint8_t

from kbroker._core.server.connection cimport request_t
from kbroker._core.server.fetch.fetch cimport fetch_entry_t, fetch_t
from kbroker._core.wire.cursor cimport reader_t

# The whole request into the fields and entries of `f`, whose version is set; `forgotten` is left where the array of
# forgotten topics begins. False when it does not parse or memory is out. Nothing of the entries but what was asked is set.
cdef bint parse_request(fetch_t *f, request_t *request, reader_t *forgotten) noexcept nogil
# The next topic of the forgotten ones: a name, or 16 bytes of an id with size 0. Its partitions stand at the reader.
cdef bint next_forgotten(reader_t *r, bint flexible, bint by_id, const uint8_t **topic, int32_t *topic_size,
                         int32_t *partition_count) noexcept nogil
# One more entry, empty; NULL when memory is out.
cdef fetch_entry_t *add_entry(fetch_t *f) noexcept nogil
