"""Parses a Fetch request."""

from libc.stdint cimport int32_t, uint8_t

from kbroker._core.server.connection cimport request_t
from kbroker._core.server.fetch.fetch cimport fetch_entry_t, fetch_t
from kbroker._core.wire.cursor cimport reader_t

# Parse the whole request into the fields and entries of `f`, whose version is set. `forgotten` becomes a reader at the
# array of forgotten topics. Of the entries, only what the client asks for is set. False when the request does not parse
# or memory is out.
cdef bint parse_request(fetch_t *f, request_t *request, reader_t *forgotten) noexcept nogil
# Read the next forgotten topic: a name, or the 16 bytes of an id, with `topic_size` 0. The reader is at its partitions
# then, `partition_count` of them. False when it does not parse.
cdef bint next_forgotten(reader_t *r, bint flexible, bint by_id, const uint8_t **topic, int32_t *topic_size,
                         int32_t *partition_count) noexcept nogil
# Append an empty entry; NULL when memory is out or there are too many.
cdef fetch_entry_t *add_entry(fetch_t *f) noexcept nogil
